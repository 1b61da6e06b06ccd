"""`sglang-hisparse seams`: which functions of another SGLang are still those that the seams were tested against?

Reads source files and imports none. Prints Markdown: a table, then a diff of every function that is not the same.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sglang_hisparse import pin
from sglang_hisparse.patching.release import PREFIX, PatchError, opened, version_of
from sglang_hisparse.seams.drift import check_source
from sglang_hisparse.seams.fingerprint import FingerprintError, locate, module_source
from sglang_hisparse.seams.seam import Seam
from sglang_hisparse.seams.table import SEAMS

NAME = "seams"
HELP = "compare the functions that the package touches or relies on with those of another SGLang"
SAME, BODY, SIGNATURE, GONE = "same", "body changed", "signature changed", "gone"


@dataclass(frozen=True)
class Row:
    """How one seam's target is in the other version. `diff` is empty where it is the same or there is no text."""

    seam: Seam
    state: str
    detail: str = ""
    diff: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--against",
        metavar="SGLANG",
        help="a wheel, a checkout, or a folder with sglang/ in it (default: the installed SGLang)",
    )
    parser.add_argument(
        "--base",
        metavar="SGLANG",
        help=f"where SGLang {pin.SGLANG} is, for the diffs (default: the installed one)",
    )
    parser.add_argument(
        "--no-diffs", action="store_true", help="names and states only, without lines of SGLang's source"
    )


def run(options: argparse.Namespace) -> int:
    """Print the report; 1 when a function is not the same, 2 when there is no SGLang to compare."""
    try:
        with opened(options.against) as root:
            rows = compare(root, options.base)
            print(render(rows, version_of(root) or "of unknown version", diffs=not options.no_diffs), end="")
    except PatchError as error:
        print(f"seams: {error}", file=sys.stderr)
        return 2
    return int(any(row.state != SAME for row in rows))


def compare(root: Path, base: str | Path | None = None, seams: tuple[Seam, ...] = SEAMS) -> list[Row]:
    """A row a seam for the SGLang whose `sglang/` is in `root`; diffs are against the pinned one, found at `base`."""
    problems = check_source(seams, root)
    before: dict[str, str] = {}
    if any(problems.values()):
        try:
            with opened(base) as pinned:
                before = {seam.id: _text(seam, pinned) for seam in seams if problems[seam.id]}
        except PatchError as error:
            print(f"No diffs: {error}", file=sys.stderr)
    rows = []
    for seam in seams:
        problem = problems[seam.id]
        if problem is None:
            rows.append(Row(seam, SAME))
        elif problem.kind == "missing":
            rows.append(Row(seam, GONE, problem.detail.replace(f"{root}/", "") + _elsewhere(seam, root)))
        else:
            state = SIGNATURE if problem.detail.startswith("parameters") else BODY
            diff = _diff(before[seam.id], _text(seam, root)) if seam.id in before else ""
            rows.append(Row(seam, state, problem.detail, diff))
    return rows


def render(rows: list[Row], version: str, diffs: bool = True) -> str:
    """The report as Markdown, with a diff of every function that is not the same, or without."""
    counts = Counter(row.state for row in rows)
    shown = ", ".join(f"{counts[state]} {state}" for state in (SAME, BODY, SIGNATURE, GONE) if counts[state])
    lines = [
        f"# Seams in SGLang {version}",
        "",
        f"Compared with {pin.SGLANG}, which this package is made for: {shown}. Comments, docstrings and layout do not "
        "count." + (" In the diffs `-` is the pinned release." if diffs else ""),
        "",
        "| seam | kind | state | function |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row.seam.id} | {row.seam.kind.name.lower()} | {row.state} | `{row.seam.target}` |"
        for row in rows
    ]
    for row in rows:
        if row.state != SAME:
            lines += ["", f"## {row.seam.id}: {row.state}", "", f"`{row.seam.target}`: {row.detail}."]
            lines += [f"Why it matters: {row.seam.why}"]
            lines += ["", "```diff", row.diff.rstrip("\n"), "```"] if row.diff and diffs else []
    return "\n".join(lines) + "\n"


def _text(seam: Seam, root: Path) -> str:
    """The target's own lines, "" where it has none."""
    try:
        path = module_source(seam.module, root)
        node = locate(path, seam.qualname)
    except FingerprintError:
        return ""
    if node is None:
        return ""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "\n".join(path.read_text(encoding="utf-8").split("\n")[first - 1 : node.end_lineno])


def _diff(before: str, after: str) -> str:
    lines = list(difflib.unified_diff(before.split("\n"), after.split("\n"), n=2, lineterm=""))[2:]
    return "\n".join(line.rstrip() for line in lines)


def _elsewhere(seam: Seam, root: Path) -> str:
    """Where a function or class of that name is now: the first thing that whoever moves the pin looks for."""
    name = seam.qualname.rpartition(".")[2]
    wanted = re.compile(rf"^\s*(?:async )?(?:def|class) {re.escape(name)}\b", re.M)
    found = [
        path.relative_to(root).as_posix()
        for path in sorted(root.joinpath("sglang", "srt").rglob("*.py"))
        if wanted.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    if not found or name.startswith("__"):
        return ""
    return f"; {name} is defined in {', '.join(found[:3])}{' and others' if found[3:] else ''}".replace(
        PREFIX, ""
    )
