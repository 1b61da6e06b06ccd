"""How a hook is called for each kind of seam: `BUILDERS[kind](original, hook)` is what stands in the target's place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_hisparse.seams.seam import AFTER, AROUND, BEFORE, REPLACE, Kind

Function = Callable[..., Any]


def _before(original: Function, hook: Function) -> Function:
    def before(*args: Any, **kwargs: Any) -> Any:
        hook(*args, **kwargs)
        return original(*args, **kwargs)

    return before


def _after(original: Function, hook: Function) -> Function:
    def after(*args: Any, **kwargs: Any) -> Any:
        return hook(original(*args, **kwargs), *args, **kwargs)

    return after


def _around(original: Function, hook: Function) -> Function:
    def around(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    return around


def _replace(original: Function, hook: Function) -> Function:
    def replace(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs)

    return replace


BUILDERS: dict[Kind, Callable[[Function, Function], Function]] = {
    BEFORE: _before,
    AFTER: _after,
    AROUND: _around,
    REPLACE: _replace,
}
