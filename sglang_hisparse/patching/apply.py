"""Puts the series into a user's checkout and takes it out again: all of it, or the tree stays as it was."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sglang_hisparse.patching import checkout as trees
from sglang_hisparse.patching.checkout import Checkout, git
from sglang_hisparse.patching.modules import FOLDER
from sglang_hisparse.patching.release import PREFIX, PatchError
from sglang_hisparse.patching.series import Series


def apply(where: str | Path, series: Series) -> list[str]:
    """Apply every patch to the work tree of a clean checkout of the pinned release; the index and HEAD stay.

    Returns one line a patch, or one that says that they are applied already. PatchError where anything does not fit;
    the tree is as it was then.
    """
    tree = trees.open_checkout(where, series)
    if trees.check_partly(tree, series):
        _check(tree, series, back=True)
        return [f"already applied: {tree.root} carries all {len(series.patches)} patches"]
    trees.check_clean(tree, series)
    fits = trees.check_fits(tree, series)
    trees.check_writable(tree, [*series.preimages, f"{FOLDER}/__init__.py"])
    _check(tree, series)
    _change(tree, series)
    trees.compiles(tree, [*series.preimages, *(n for n in _own(series) if n.endswith(".py"))])
    return [fits, *(f"applied {patch.id:<20} {_shown(patch.name)}" for patch in series.patches)]


def unapply(where: str | Path, series: Series) -> list[str]:
    """Take every patch back, last one first. Edits elsewhere stay; byte code of our own modules goes with them.

    Returns one line a patch. PatchError where a patch does not come off, with the tree as it was.
    """
    tree = trees.open_checkout(where, series)
    if not trees.check_partly(tree, series):
        return [f"nothing to take back: {tree.root} carries none of the patches"]
    trees.check_writable(tree, [*series.preimages, *_own(series)])
    _check(tree, series, back=True)
    _change(tree, series, back=True)
    folder = tree.root / FOLDER
    for cache in sorted(folder.rglob("__pycache__")) if folder.is_dir() else ():
        shutil.rmtree(cache)
    for path in sorted(folder.rglob("*"), reverse=True) if folder.is_dir() else ():
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    return [f"taken back {patch.id:<20} {_shown(patch.name)}" for patch in reversed(series.patches)]


def _check(tree: Checkout, series: Series, back: bool = False) -> None:
    """Let git say whether all patches would apply, one after the other, changing nothing."""
    try:
        _git_apply(tree, series, back, "--check")
    except PatchError as error:
        edited = "the patched lines or files were edited since, or come from another version of the patches"
        why = edited if back else "git does not take the patches"
        raise PatchError(f"{tree.root}: {why}; nothing was changed.\n{error}") from error


def _change(tree: Checkout, series: Series, back: bool = False) -> None:
    """Let git apply all patches; put every file back where it fails half-way (a full disk, a locked file)."""
    kept = {name: _read(tree.root / name) for name in (*series.preimages, *_own(series))}
    try:
        _git_apply(tree, series, back)
    except BaseException:
        for name, content in kept.items():
            path = tree.root / name
            if content is None:
                path.unlink(missing_ok=True)
            elif _read(path) != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        raise


def _git_apply(tree: Checkout, series: Series, back: bool, *options: str) -> None:
    order: Sequence[str] = [patch.file for patch in series.patches]
    with tempfile.TemporaryDirectory(prefix="hisparse-patches-") as folder:
        for patch in series.patches:
            Path(folder, patch.file).write_bytes(patch.text.encode())
        files = [str(Path(folder, name)) for name in (reversed(order) if back else order)]
        reverse = ["-R"] if back else []
        git(tree.root, "apply", "--whitespace=nowarn", *options, *reverse, *files)


def _own(series: Series) -> list[str]:
    return [name for patch in series.patches for name, _ in patch.texts]


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _shown(name: str) -> str:
    return name.removeprefix(PREFIX)
