"""Finds what a seam row points at in the running process, and puts another function there."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from sglang_hisparse.seams.fingerprint import Fingerprint, definition, fingerprint, innermost, inside

OURS = "__hisparse_seam__"
"""Marks our wrappers. It holds the wrapper itself, since `functools.wraps` copies attributes to others."""

_DESCRIPTORS = ("property", "staticmethod", "classmethod", "cached_property")


class TargetError(LookupError):
    """The target is not there, or not there as stock SGLang defines it. The message says what is."""


@dataclass(frozen=True)
class Target:
    """A resolved target: `raw` is `vars(owner)[name]`, descriptors included; `value` is the object inside
    it."""

    owner: ModuleType | type
    name: str
    raw: Any
    value: Any

    @property
    def function(self) -> Callable[..., Any] | None:
        """The callable to wrap, or None for a class or another object."""
        return self.value if callable(self.value) and not isinstance(self.value, type) else None

    def fingerprint(self) -> Fingerprint:
        """Fingerprint of the stock function inside every wrapper."""
        return fingerprint(self.value)

    def rewrapped(self, wrapper: Callable[..., Any]) -> Any:
        """`wrapper` inside a descriptor of the kind that `raw` is, ready to be set on the owner."""
        if isinstance(self.raw, property):
            return property(wrapper, self.raw.fset, self.raw.fdel, self.raw.__doc__)
        if isinstance(self.raw, functools.cached_property) and isinstance(self.owner, type):
            cached = functools.cached_property(wrapper)
            cached.__set_name__(self.owner, self.name)
            return cached
        if isinstance(self.raw, staticmethod | classmethod):
            return type(self.raw)(wrapper)
        return wrapper

    def places(self) -> Iterator[tuple[ModuleType | type, str]]:
        """Everywhere the same object is bound by name, the owner first.

        For a function: modules of SGLang that did `from module import name`, and the main module. For a
        method: other names in the class and in its subclasses. Not covered: functions kept in dicts or lists
        (registries), default arguments, `functools.partial`, module functions kept on classes, bound methods
        kept on instances. Our own modules keep the stock function they imported, so that a hook may call it.
        """
        yield self.owner, self.name
        holders: list[ModuleType | type] = (
            _subclasses(self.owner) if isinstance(self.owner, type) else _sglang_modules()
        )
        for holder in holders:
            for name, value in list(vars(holder).items()):
                if value is self.raw and (holder, name) != (self.owner, self.name):
                    yield holder, name


def resolve(target: str) -> Target:
    """Import the module of `package.module:Qual.name` and find the name in the scope that defines it.

    Raises `TargetError` when it is missing, inherited or re-exported.
    """
    module_name, _, qualname = target.partition(":")
    try:
        owner: Any = importlib.import_module(module_name)
    except Exception as error:  # SGLang's modules run code at import, which may raise anything
        raise TargetError(f"module {module_name} cannot be imported: {error!r}") from error
    *scopes, name = qualname.split(".")
    for scope in scopes:
        owner = vars(owner).get(scope)
        if not isinstance(owner, type):
            raise TargetError(f"class {scope} is missing from {module_name}")
    if name not in vars(owner):
        bases = owner.__mro__[1:] if isinstance(owner, type) else ()
        base = next((base for base in bases if name in vars(base)), None)
        where = f": it is inherited from {base.__module__}:{base.__qualname__}" if base else ""
        raise TargetError(f"{name} is missing from {'.'.join((module_name, *scopes))}{where}")
    raw = vars(owner)[name]
    return Target(owner, name, raw, inside(raw))


def foreign_wrapper(found: Target, target: str) -> str:
    """Who put a function of their own in the target's place: `file:line (name)`, or "" for nobody.

    Stock decorators are told from other people's wrappers by their number: more `__wrapped__` layers than the
    source has decorators means that somebody came first. Our own wrappers do not count.
    """
    module_name, _, qualname = target.partition(":")
    inner = innermost(found.raw)
    if not isinstance(inner, FunctionType):
        return ""
    if inner.__code__.co_qualname != qualname or inspect.getsourcefile(inner) != _source_file(module_name):
        return _where(inner)
    layers, value = [], found.value
    while value is not inner:
        if getattr(value, OURS, None) is not value:
            layers.append(value)
        value = value.__wrapped__
    return _where(layers[0]) if len(layers) > _decorators(inner) else ""


def _decorators(function: FunctionType) -> int:
    names = [ast.unparse(decorator).rpartition(".")[2] for decorator in definition(function).decorator_list]
    return sum(name not in _DESCRIPTORS for name in names)


def _source_file(module_name: str) -> str | None:
    return inspect.getsourcefile(sys.modules[module_name])


def _where(function: Any) -> str:
    code = getattr(function, "__code__", None)
    if code is None:
        return repr(function)
    return f"{code.co_filename}:{code.co_firstlineno} ({code.co_qualname})"


def _subclasses(owner: type) -> list[ModuleType | type]:
    found: list[ModuleType | type] = [owner]
    children: list[type] = type.__subclasses__(owner)
    for child in children:
        found += [known for known in _subclasses(child) if known not in found]
    return found


def _sglang_modules() -> list[ModuleType | type]:
    return [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and (name.partition(".")[0] == "sglang" or name in ("__main__", "__mp_main__"))
    ]
