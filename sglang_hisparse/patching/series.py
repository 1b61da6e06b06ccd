"""`patches/`: made from the seam table and the package, written, and compared with what is there."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

from sglang_hisparse import pin
from sglang_hisparse.patching.diffs import Hunk, created, edited, hunks
from sglang_hisparse.patching.edits import IMPORT, call_of, file_of, insertions
from sglang_hisparse.patching.modules import FOLDER, PACKAGE, own_modules
from sglang_hisparse.patching.release import PREFIX, PatchError, blob_id, lines_of, read
from sglang_hisparse.seams.seam import RELY, Seam
from sglang_hisparse.seams.table import SEAMS

MODULES = "modules"
SERIES = "series"
SHORT = 50


@dataclass(frozen=True)
class Patch:
    """One file of the series. `seam` is None for the package's own modules, which come first.

    `texts` are the files that it makes new; `name`, `hunks` and `call` describe the edit of a seam.
    """

    id: str
    text: str
    seam: Seam | None = None
    name: str = FOLDER
    hunks: tuple[Hunk, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()

    @property
    def file(self) -> str:
        """Its name in `patches/`."""
        return f"{self.id}.patch"

    @property
    def call(self) -> str:
        """The call that the edit puts in; "" for the modules."""
        return call_of(self.seam) if self.seam else ""


@dataclass(frozen=True)
class Series:
    """All patches in order. `preimages` has the blob id of every touched file in the release, `after` their texts with
    all patches, where the series was made and not read back."""

    patches: tuple[Patch, ...]
    rely: tuple[Seam, ...]
    preimages: dict[str, str]
    after: dict[str, str]

    def files(self) -> dict[str, str]:
        """Name -> text of every file in `patches/`."""
        rely = "".join(f"#   {seam.id}: {seam.target}\n" for seam in self.rely)
        head = (
            f"# Made by `make patches` for SGLang {pin.SGLANG}, in the order in which they apply; quilt reads it too.\n"
            f"# Nothing is changed here, but has to be as in {pin.SGLANG}:\n{rely}"
        )
        listed = "".join(f"{patch.file}\n" for patch in self.patches)
        return {SERIES: head + listed, **{patch.file: patch.text for patch in self.patches}}


def folder() -> Path:
    """Where the patches are: beside the checkout's package, or inside an installed one."""
    installed = PACKAGE / "_patches"
    return installed if installed.is_dir() else PACKAGE.parent / "patches"


def make(root: Path, seams: tuple[Seam, ...] = SEAMS, modules: dict[str, str] | None = None) -> Series:
    """The series for the SGLang whose `sglang/` is in `root`. PatchError where an anchor is missing or there twice."""
    changed = [seam for seam in seams if seam.kind is not RELY]
    exists = {
        f"{PREFIX}{path.relative_to(root).as_posix()}"
        for seam in changed
        for path in (root.joinpath(*seam.module.split("."), "__init__.py"),)
        if path.is_file()
    }
    before = read(root, sorted({file_of(seam, exists) for seam in changed}))
    texts = own_modules() if modules is None else modules
    patches = [_modules(texts)]
    after = dict(before)
    carries: dict[str, str] = {}
    for seam in changed:
        name = file_of(seam, exists)
        found = hunks(lines_of(after[name]), insertions(seam, after[name], name), name)
        diff, new = edited(name, after[name], found)
        needs = [carries[name]] if name in carries else []
        if any(IMPORT in hunk.lines for hunk in found):
            carries[name] = f"{seam.id}.patch"
        text = _header(seam, needs) + diff
        patches.append(Patch(seam.id, text, seam, name, tuple(found)))
        after[name] = new
    rely = tuple(seam for seam in seams if seam.kind is RELY)
    preimages = {name: blob_id(text.encode()) for name, text in before.items()}
    return Series(tuple(patches), rely, preimages, after)


def write(series: Series, where: Path) -> list[str]:
    """Make `where` hold the series and nothing else; names of the files that changed."""
    stale = differences(series, where)
    where.mkdir(parents=True, exist_ok=True)
    files = series.files()
    for name in stale:
        if name in files:
            where.joinpath(name).write_bytes(files[name].encode())
        else:
            where.joinpath(name).unlink()
    return stale


def differences(series: Series, where: Path) -> list[str]:
    """Names of files in `where` that are not as the series makes them."""
    files = series.files()
    there = {path.name: path.read_bytes() for path in where.iterdir()} if where.is_dir() else {}
    return sorted(n for n in files.keys() | there if n not in files or there.get(n) != files[n].encode())


def _modules(texts: dict[str, str]) -> Patch:
    why = "What the calls in SGLang's files lead to. Inert unless --hisparse-config asks for a host tier."
    head = _head(f"{MODULES}: the package sglang_hisparse {pin.PACKAGE}", why, [
        ("Seam", "none; new files only"),
        ("Base", f"SGLang {pin.SGLANG}"),
        ("Drop when", "SGLang has a host tier under its KV pool, or the package is installed instead."),
    ])  # fmt: skip
    diff = "".join(created(name, text) for name, text in texts.items())
    return Patch(MODULES, head + diff, texts=tuple(texts.items()))


def _header(seam: Seam, needs: list[str]) -> str:
    short = textwrap.shorten(seam.qualname, SHORT, placeholder="...")
    rows = [
        ("Seam", f"{seam.id} ({seam.kind.name.lower()} {seam.target})"),
        ("Base", f"SGLang {pin.SGLANG}"),
        ("Drop when", seam.retire_when),
        ("Needs", ", ".join((f"{MODULES}.patch", *(f"{need} (the import)" for need in needs)))),
    ]
    return _head(f"{seam.id}: {seam.kind.name.lower()} {short}", seam.why, rows)


def _head(subject: str, why: str, rows: list[tuple[str, str]]) -> str:
    if "\n" in why:
        raise PatchError(f"{subject}: `why` has more than one line")
    listed = "".join(f"{key}: {value}\n" for key, value in rows)
    return f"Subject: [PATCH] hisparse: {subject}\n\n{textwrap.fill(why, 100)}\n\n{listed}---\n"
