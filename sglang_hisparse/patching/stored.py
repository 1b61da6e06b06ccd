"""Reads `patches/` back, so that they can be applied where the release that they were made from is not installed."""

from __future__ import annotations

import re
from pathlib import Path

from sglang_hisparse.patching.diffs import Hunk
from sglang_hisparse.patching.release import PatchError, lines_of
from sglang_hisparse.patching.series import MODULES, SERIES, Patch, Series
from sglang_hisparse.seams.seam import RELY, Seam
from sglang_hisparse.seams.table import SEAMS

_FILE = re.compile(r"^diff --git a/(?P<name>.+) b/(?P=name)\n", re.M)
_HUNK = re.compile(r"^@@ -(\d+),\d+ \+\d+,\d+ @@\n", re.M)
_INDEX = re.compile(r"^index ([0-9a-f]{40})\.\.", re.M)


def load(where: Path, seams: tuple[Seam, ...] = SEAMS) -> Series:
    """The series in the folder `where`. PatchError where it is not one of this version of the package."""
    if not where.joinpath(SERIES).is_file():
        raise PatchError(f"there are no patches in {where}: `make patches` makes them")
    rows = {seam.id: seam for seam in seams}
    listed = [line for line in where.joinpath(SERIES).read_text().splitlines() if line and line[0] != "#"]
    wanted = [f"{MODULES}.patch", *(f"{seam.id}.patch" for seam in seams if seam.kind is not RELY)]
    if listed != wanted or any(not where.joinpath(name).is_file() for name in listed):
        odd = sorted(set(listed) ^ set(wanted)) or ["their order"]
        raise PatchError(
            f"{where} and the seam table differ in {', '.join(odd)}: `make patches` makes it anew"
        )
    patches, preimages = [], dict[str, str]()
    for file in listed:
        text = where.joinpath(file).read_bytes().decode()
        name = file.removesuffix(".patch")
        if name == MODULES:
            patches.append(Patch(name, text, texts=tuple(_created(text))))
            continue
        parts = list(_files(text))
        if len(parts) != 1:
            raise PatchError(
                f"{where / file} edits {len(parts)} files, not one: `make patches` makes it anew"
            )
        [(edited, body)] = parts
        index = _INDEX.search(body)
        preimages.setdefault(edited, index[1] if index else "")
        patches.append(Patch(name, text, rows[name], edited, tuple(_hunks(body))))
    return Series(tuple(patches), tuple(seam for seam in seams if seam.kind is RELY), preimages, {})


def _files(text: str) -> list[tuple[str, str]]:
    found = list(_FILE.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return [(match["name"], text[match.end() : end]) for match, end in zip(found, ends, strict=True)]


def _created(text: str) -> list[tuple[str, str]]:
    made = []
    for name, body in _files(text):
        hunk = _HUNK.search(body)
        lines = lines_of(body[hunk.end() :]) if hunk else []
        made.append((name, "".join(line.removeprefix("+") for line in lines)))
    return made


def _hunks(body: str) -> list[Hunk]:
    found = list(_HUNK.finditer(body))
    ends = [match.start() for match in found[1:]] + [len(body)]
    hunks = []
    for match, end in zip(found, ends, strict=True):
        lines = lines_of(body[match.end() : end])
        added = [i for i, line in enumerate(lines) if line.startswith("+")]
        before, new, after = lines[: added[0]], lines[added[0] : added[-1] + 1], lines[added[-1] + 1 :]
        at = int(match[1]) - 1 + len(before)
        hunks.append(Hunk(at, *(tuple(line[1:] for line in part) for part in (before, new, after))))
    return hunks
