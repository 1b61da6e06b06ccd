"""Builds the function that stands in a target's place: the stock one and the hook, in the order of the
kind."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from sglang_hisparse.seams.calls import BUILDERS
from sglang_hisparse.seams.seam import Seam
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
    wrapper = functools.wraps(original)(BUILDERS[seam.kind](original, hook))
    setattr(wrapper, OURS, wrapper)
    return found.rewrapped(wrapper)
