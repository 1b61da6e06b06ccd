"""Where a seam's call goes in the text of an SGLang file. Lines go in, none is changed or taken out."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from sglang_hisparse.patching.modules import PLACE
from sglang_hisparse.patching.release import PREFIX, PatchError, lines_of
from sglang_hisparse.seams.fingerprint import MARK
from sglang_hisparse.seams.seam import REGISTER, Seam

IMPORT_FROM = f"{PLACE}.seams.patched"
IMPORT = f"from {IMPORT_FROM} import {MARK}\n"
_DESCRIPTORS = ("property", "staticmethod", "classmethod", "cached_property")
_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Insertion:
    """`lines` go in before line `at` (counted from 0) of the file."""

    at: int
    lines: tuple[str, ...]


def file_of(seam: Seam, exists: set[str] | None = None) -> str:
    """Repository path of the file that defines the seam's target; a package's is `__init__.py`."""
    base = PREFIX + seam.module.replace(".", "/")
    package = f"{base}/__init__.py"
    return package if exists is not None and package in exists else f"{base}.py"


def call_of(seam: Seam) -> str:
    """The call without its indentation, by which an edit is found again."""
    return f'{MARK}("{seam.id}")'


def insertions(seam: Seam, text: str, name: str) -> list[Insertion]:
    """What the seam adds to the file `name`: its call, and the import where the file has none yet.

    PatchError where the target is missing or defined twice, and where its kind cannot be told from the text.
    """
    tree = ast.parse(text)
    target = _target(seam, tree, name)
    lines = lines_of(text)
    if isinstance(target, ast.FunctionDef):
        if seam.kind is REGISTER:
            raise PatchError(f"seam {seam.id}: {name} defines a function; REGISTER is for registries")
        outer = [d for d in target.decorator_list if ast.unparse(d).rpartition(".")[2] in _DESCRIPTORS]
        inner = [d for d in target.decorator_list if d not in outer]
        if inner and outer and inner[0].lineno < outer[-1].lineno:
            raise PatchError(f"seam {seam.id}: {name} has a decorator outside {ast.unparse(outer[-1])}")
        at = (inner[0].lineno if inner else target.lineno) - 1
        call = Insertion(at, (f"{' ' * target.col_offset}@{call_of(seam)}\n",))
    elif isinstance(target, ast.Assign | ast.AnnAssign) and seam.kind is REGISTER:
        held = seam.qualname
        call = Insertion(target.end_lineno or target.lineno, (f"{call_of(seam)}({held})\n",))
    else:
        raise PatchError(
            f"seam {seam.id}: {name} line {target.lineno} is neither a plain function nor a registry"
        )
    if IMPORT in lines:
        return [call]
    return [Insertion(_import_at(tree), (IMPORT,)), call]


def _target(seam: Seam, tree: ast.Module, name: str) -> ast.stmt:
    scope: ast.AST = tree
    parts = seam.qualname.split(".")
    for depth, part in enumerate(parts):
        bound = [
            node for node in ast.iter_child_nodes(scope) if isinstance(node, ast.stmt) and _binds(node, part)
        ]
        found = [node for node in bound if isinstance(node, _SCOPES)] or bound
        dotted = ".".join(parts[: depth + 1])
        if not found:
            raise PatchError(f"seam {seam.id}: the anchor {dotted} is missing from {name}")
        if len(found) > 1:
            at = ", ".join(str(node.lineno) for node in found)
            raise PatchError(
                f"seam {seam.id}: the anchor {dotted} is there {len(found)} times in {name}, lines {at}"
            )
        scope = found[0]
    assert isinstance(scope, ast.stmt)
    return scope


def _binds(node: ast.stmt, name: str) -> bool:
    if isinstance(node, _SCOPES):
        return node.name == name
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name


def _import_at(tree: ast.Module) -> int:
    """Where an import sorter would put ours: among the file's first `from sglang...` lines."""
    own = [
        node
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "sglang"
    ]
    for node in own:
        if (node.module or "") > IMPORT_FROM:
            return node.lineno - 1
        following = [other for other in tree.body if other.lineno > (node.end_lineno or node.lineno)]
        if node is own[-1] or following[:1] != own[own.index(node) + 1 : own.index(node) + 2]:
            return node.end_lineno or node.lineno
    imports = [
        node
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__"
    ]
    if imports:
        return imports[-1].end_lineno or imports[-1].lineno
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    first = next((node for node in tree.body if node not in future and not isinstance(node, ast.Expr)), None)
    return (first.lineno - 1) if first else len(ast.unparse(tree).splitlines())
