"""The package's own modules as they stand in a patched tree: those that the seams need, imports rewritten."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from sglang_hisparse.patching.release import PREFIX, PatchError, lines_of
from sglang_hisparse.seams.table import SEAMS

OURS = "sglang_hisparse"
PLACE = "sglang.srt.mem_cache.hisparse_tier"
"""Where the modules live in SGLang."""

FOLDER = PREFIX + PLACE.replace(".", "/")
PACKAGE = Path(__file__).resolve().parents[1]

RENAMED = {f"{OURS}.seams.apply": f"{PLACE}.seams.patched", f"{OURS}.seams.process": f"{PLACE}.seams.patched"}
"""What a patched tree does by itself instead: nothing is left to apply."""

_MODULE = re.compile(rf"{OURS}(\.\w+)*\.\w*(:\w+)?")


def own_modules() -> dict[str, str]:
    """Repository path -> text of every module and CUDA source that a patched tree needs."""
    names = {f"{OURS}.seams.patched", *(row.hook.partition(":")[0] for row in SEAMS if row.hook)}
    todo, done = sorted(names), set[str]()
    texts: dict[str, str] = {}
    while todo:
        name = todo.pop()
        if name in done or name in RENAMED:
            continue
        done.add(name)
        path = _file(name)
        if path is None:
            raise PatchError(f"module {name} is not in this package: {PACKAGE}")
        text = path.read_text(encoding="utf-8")
        texts[f"{FOLDER}/{path.relative_to(PACKAGE).as_posix()}"] = rewritten(text)
        parents = (name.rpartition(".")[0],) if "." in name else ()
        todo += [found for found in (*parents, *_needed(text)) if found not in done]
    sources = PACKAGE / "_csrc"
    sources = sources if sources.is_dir() else PACKAGE.parent / "csrc"
    for path in sorted(sources.rglob("*.cuh")):
        texts[f"{FOLDER}/_csrc/{path.relative_to(sources).as_posix()}"] = path.read_text(encoding="utf-8")
    return dict(sorted(texts.items()))


def rewritten(text: str) -> str:
    """`text` with imports of this package, and strings that name its modules, pointing into SGLang.

    Comments and docstrings keep the package's name: it is the product's.
    """
    tree = ast.parse(text)
    lines = [line.encode() for line in lines_of(text)]
    for number, column in sorted(_places(tree), reverse=True):
        line = lines[number - 1]
        lines[number - 1] = line[:column] + re.sub(
            rb"\bsglang_hisparse\b(\.\w+)*",
            lambda match: renamed(match[0].decode()).encode(),
            line[column:],
            count=1,
        )
    return b"".join(lines).decode()


def renamed(module: str) -> str:
    """The name of one of our modules in a patched tree."""
    return RENAMED.get(module, PLACE + module.removeprefix(OURS))


def _places(tree: ast.Module) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and _ours(node.module or ""):
            yield node.lineno, node.col_offset
        elif isinstance(node, ast.Import):
            yield from ((alias.lineno, alias.col_offset) for alias in node.names if _ours(alias.name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _MODULE.fullmatch(node.value):
            yield node.lineno, node.col_offset


def _needed(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and not node.level and _ours(node.module or ""):
            module = node.module or ""
            yield module
            yield from (inner for a in node.names if _file(inner := f"{module}.{a.name}") is not None)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _ours(alias.name))


def _ours(module: str) -> bool:
    return module.partition(".")[0] == OURS


def _file(module: str) -> Path | None:
    base = PACKAGE.joinpath(*module.split(".")[1:])
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.is_file():
            return path
    return None
