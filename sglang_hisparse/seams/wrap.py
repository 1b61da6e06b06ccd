"""Builds the function that stands in a target's place: the stock one and the hook, in the order of the
kind."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from sglang_hisparse.seams.seam import AFTER, AROUND, BEFORE, Seam
from sglang_hisparse.seams.target import OURS, Target


class WrapError(TypeError):
    """The target is of a sort that cannot be wrapped. The message says what to target instead."""


def wrap(seam: Seam, found: Target, hook: Callable[..., Any]) -> Any:
    """What to set on the owner: a wrapper that calls as `Kind` says, in the descriptor that was there.

    For a class method, `original` and the hook's arguments are those of the plain function: the class comes
    first. Raises `WrapError` for classes and other objects, and for `async` functions, whose result the hooks
    would get before it is there.
    """
    original = found.function
    if original is None:
        raise WrapError(f"{seam.target} is not a function: name a method of it, or make it REGISTER or RELY")
    stock = inspect.unwrap(original)
    if inspect.iscoroutinefunction(stock) or inspect.isasyncgenfunction(stock):
        raise WrapError(f"{seam.target} is async: name a plain function that it calls")
    wrapper = functools.wraps(original)(_BUILDERS.get(seam.kind, _replace)(original, hook))
    setattr(wrapper, OURS, wrapper)
    return found.rewrapped(wrapper)


def _before(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    def before(*args: Any, **kwargs: Any) -> Any:
        hook(*args, **kwargs)
        return original(*args, **kwargs)

    return before


def _after(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    def after(*args: Any, **kwargs: Any) -> Any:
        return hook(original(*args, **kwargs), *args, **kwargs)

    return after


def _around(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    def around(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    return around


def _replace(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    def replace(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs)

    return replace


_BUILDERS = {BEFORE: _before, AFTER: _after, AROUND: _around}
