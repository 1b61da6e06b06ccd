"""Fingerprints of function bodies: a signature check alone misses most changes between SGLang releases.

A fingerprint is `(params, body)`: the parameter names, and 16 hex digits over the syntax tree without
docstrings (comments and layout do not count; decorators, defaults and annotations do). It can be taken from a
live object or from a source file that is never imported; both give the same value, on every Python from 3.11
on.

`python -m sglang_hisparse.seams.fingerprint TARGET...` prints the two values of a seam table row.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

Fingerprint = tuple[tuple[str, ...], str]
NO_SOURCE: Fingerprint = ((), "")
"""Fingerprint of an object that is neither a function nor a class: only its presence can be checked."""

MARK = "hisparse_seam"
"""Name of the call that `patches/` puts at the targets (`patched.py`)."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class FingerprintError(LookupError):
    """The target has no single definition where it was looked for. The message says what was found."""


def fingerprint(target: Any) -> Fingerprint:
    """Fingerprint a live function, method, property, static or class method, or class.

    Decorators and other plugins' `functools.wraps` wrappers are looked through: the value is that of the
    innermost function. Raises `FingerprintError` when its source cannot be read.
    """
    function = innermost(target)
    return _of_node(definition(function)) if isinstance(function, FunctionType | type) else NO_SOURCE


def definition(function: FunctionType | type) -> Definition:
    """Syntax tree of a live function or class. Raises `FingerprintError` when its source cannot be read."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError) as error:
        raise FingerprintError(f"no source for {function!r}: {error}") from error
    # `if 1:` carries the indentation of a method: dedenting would change multi-line strings in it.
    tree = ast.parse("if 1:\n" + source if source[:1].isspace() else source)
    node = next((node for node in ast.walk(tree) if isinstance(node, Definition)), None)
    if node is None:
        raise FingerprintError(f"{function!r} is not made by `def` or `class`: it has no body to compare")
    return node


def fingerprint_source(path: str | Path, qualname: str) -> Fingerprint:
    """Fingerprint `qualname` in the file `path` without importing it. Errors as `locate`; a plain name bound by an
    assignment gives `NO_SOURCE`.
    """
    node = locate(path, qualname)
    return NO_SOURCE if node is None else _of_node(node)


def locate(path: str | Path, qualname: str) -> Definition | None:
    """Syntax tree of `qualname` in the file `path`; None for a plain name bound by an assignment.

    A property gives its getter. Raises `FingerprintError` when the file or the name is missing, or when the name has
    several different definitions (say under an `if`).
    """
    scope: ast.Module | Definition = _parse(Path(path))
    parts = qualname.split(".")
    for depth, name in enumerate(parts):
        found = [node for node in _bindings(scope) if name in _names(node)]
        definitions = [node for node in found if isinstance(node, Definition) and not _is_accessory(node)]
        if not found:
            raise FingerprintError(f"{path} does not define {'.'.join(parts[: depth + 1])}")
        if not definitions:
            return None
        if len({_of_node(node) for node in definitions}) > 1:
            lines = ", ".join(str(node.lineno) for node in definitions)
            raise FingerprintError(f"{path} defines {name} more than once, lines {lines}")
        scope = definitions[-1]
    assert not isinstance(scope, ast.Module)
    return scope


def module_source(module: str, root: str | Path | None = None) -> Path:
    """The file of `module` below `root` (default: where the module's package is installed), without importing
    it.

    Raises `FingerprintError` when there is none.
    """
    package, *rest = module.split(".")
    if root is None:
        spec = importlib.util.find_spec(package)
        if spec is None or not (spec.submodule_search_locations or spec.origin):
            raise FingerprintError(f"package {package} is not installed")
        bases = [Path(where) for where in spec.submodule_search_locations or ()]
        if not bases and not rest and spec.origin:
            return Path(spec.origin)
    else:
        bases = [Path(root, package)]
    for base in bases:
        for path in (base.joinpath(*rest, "__init__.py"), base.joinpath(*rest).with_suffix(".py")):
            if path.is_file():
                return path
    raise FingerprintError(f"module {module} is not in {', '.join(map(str, bases)) or package}")


def fingerprint_target(target: str, root: str | Path | None = None) -> Fingerprint:
    """Fingerprint `package.module:Qual.name` from its source file. Errors as `fingerprint_source`."""
    module, _, qualname = target.partition(":")
    return fingerprint_source(module_source(module, root), qualname)


def innermost(target: Any) -> Any:
    """The function inside a descriptor and any chain of `__wrapped__`; anything else comes back as it is."""
    value = inside(target)
    return inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value


def inside(target: Any) -> Any:
    """What a property, cached property, static or class method holds; anything else comes back as it is."""
    if isinstance(target, property):
        return target.fget
    if isinstance(target, functools.cached_property):
        return target.func
    return target.__func__ if isinstance(target, staticmethod | classmethod) else target


@functools.lru_cache(maxsize=64)
def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    except OSError as error:
        raise FingerprintError(f"{path} cannot be read: {error.strerror}") from error


def _bindings(scope: ast.AST) -> Iterator[ast.stmt]:
    """Statements of a module or class body, looking into `if`, `try` and `with` but into no other scope."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.ExceptHandler):
            yield from _bindings(child)
        elif isinstance(child, ast.stmt):
            yield child
            if not isinstance(child, Definition):
                yield from _bindings(child)


def _names(node: ast.stmt) -> set[str]:
    """Names that one statement binds by definition or by assignment."""
    if isinstance(node, Definition):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _is_accessory(node: Definition) -> bool:
    """True for `@x.setter`, `@x.deleter` and `@overload`: same name, not the definition that is called."""
    words = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return bool(words & {"setter", "deleter", "overload"})


def _is_ours(node: ast.AST) -> bool:
    """True for the decorator that a patched tree carries: the function below it is stock's."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == MARK


def _of_node(node: ast.AST) -> Fingerprint:
    params: tuple[str, ...] = ()
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        args = node.args
        params = (
            *(arg.arg for arg in (*args.posonlyargs, *args.args)),
            *(f"*{arg.arg}" for arg in (args.vararg,) if arg),
            *(arg.arg for arg in args.kwonlyargs),
            *(f"**{arg.arg}" for arg in (args.kwarg,) if arg),
        )
    return params, hashlib.sha256(_dump(node).encode()).hexdigest()[:16]


def _dump(node: Any) -> str:
    """`ast.dump` without docstrings, marks and empty fields, where 3.11, 3.12 and 3.13 would print different
    text."""
    if isinstance(node, list):
        return "[" + ",".join(map(_dump, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Constant):
        return f"Constant({node.value!r})"
    fields = [(name, value) for name, value in ast.iter_fields(node) if value is not None]
    if isinstance(node, Definition) and ast.get_docstring(node, clean=False) is not None:
        fields = [(name, value[1:] if name == "body" else value) for name, value in fields]
    if isinstance(node, Definition):
        fields = [
            (name, [v for v in value if not _is_ours(v)] if name == "decorator_list" else value)
            for name, value in fields
        ]
    return type(node).__name__ + "(" + ",".join(f"{k}={_dump(v)}" for k, v in fields if v != []) + ")"


def main(argv: list[str] | None = None) -> int:
    """Print `params` and `body` of every target; 1 when one of them cannot be found."""
    parser = argparse.ArgumentParser(prog="python -m sglang_hisparse.seams.fingerprint", description=__doc__)
    parser.add_argument("targets", nargs="+", metavar="package.module:Qual.name")
    parser.add_argument("--root", help="folder that holds the package (default: the installed one)")
    options = parser.parse_args(argv)
    failures = 0
    for target in options.targets:
        print(f"# {target}")
        try:
            params, body = fingerprint_target(target, options.root)
        except FingerprintError as error:
            failures += 1
            print(f"#   {error}")
        else:
            listed = ", ".join(f'"{name}"' for name in params)
            print(f'params=({listed}{"," if len(params) == 1 else ""}),\nbody="{body}",')
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
