"""The whole life of the series against the pinned release: made, compared, applied, compiled, taken back."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sglang_hisparse import pin
from sglang_hisparse.patching.apply import apply, unapply
from sglang_hisparse.patching.checkout import git
from sglang_hisparse.patching.edits import file_of
from sglang_hisparse.patching.release import PREFIX, PatchError, blob_id, version_of
from sglang_hisparse.patching.series import Series, differences
from sglang_hisparse.patching.stored import load
from sglang_hisparse.seams.drift import check_source
from sglang_hisparse.seams.seam import Seam
from sglang_hisparse.seams.table import SEAMS

SAID = (
    "-c user.name=sglang_hisparse -c user.email=none@localhost -c commit.gpgsign=false -c core.autocrlf=false"
)


def stale(series: Series, patches: Path) -> None:
    """PatchError where `patches` is not what the table and the package make today."""
    different = differences(series, patches)
    if different:
        raise PatchError(
            f"{patches} is stale: {', '.join(different)} {'is' if len(different) == 1 else 'are'} not what the seam "
            "table and the package make. Run `make patches` and commit the result"
        )


def check(root: Path, series: Series, patches: Path) -> Iterator[str]:
    """One line a step. `root` holds the pinned release's `sglang/`; PatchError at the first thing that is wrong."""
    version = version_of(root)
    if version and version != pin.SGLANG:
        raise PatchError(f"{root} holds SGLang {version}; the patches are for {pin.SGLANG}")
    stale(series, patches)
    stored = load(patches)
    if stored.preimages != series.preimages or stored.patches != series.patches:
        raise PatchError(f"{patches} reads back as something else than what was written")
    yield f"{patches} holds what the table and the package make: {len(series.patches)} patches"
    _blobs(series, root)
    yield f"preimages: {len(series.preimages)} files of SGLang {pin.SGLANG} have the blob ids that the patches name"
    with tempfile.TemporaryDirectory(prefix="hisparse-check-") as folder:
        tree = Path(folder, "sglang checkout")
        names = {*series.preimages, *(_file(root, seam) for seam in SEAMS)}
        make_tree(root, tree, only=names)
        before = _digest(tree)
        yield from (f"  {line}" for line in apply(tree, series)[1:])
        [again] = apply(tree, series)
        yield again.partition(":")[0]
        for name, text in series.after.items():
            if tree.joinpath(name).read_bytes() != text.encode():
                raise PatchError(f"{name}: git made another file of it than `make patches`")
        drifted = [str(problem) for problem in check_source(SEAMS, tree / "python").values() if problem]
        if drifted:
            raise PatchError(
                "a patched function is no longer the one that was tested:\n" + "\n".join(drifted)
            )
        yield f"the patched tree compiles, and all {len(SEAMS)} functions of the table are those that were tested"
        unapply(tree, series)
        if _digest(tree) != before or git(tree, "status", "--porcelain"):
            raise PatchError(
                f"taking the patches back left a difference: {git(tree, 'status', '--porcelain')}"
            )
        yield "taken back: the tree is the same, byte by byte"


def make_tree(root: Path, tree: Path, only: Iterable[str] | None = None) -> None:
    """A checkout at `tree` whose `python/sglang` is the one in `root`: all of it, or the files `only`. What patches
    touch is committed, so that git can tell an edit."""
    if tree.exists() and any(tree.iterdir()):
        raise PatchError(f"{tree} is not empty: name a folder that is, or a new one")
    if only is None:
        shutil.copytree(root / "sglang", tree / "python" / "sglang", copy_function=_linker())
        tracked = sorted({_file(root, seam) for seam in SEAMS})
    else:
        tracked = sorted(only)
        for name in tracked:
            tree.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name.removeprefix(PREFIX), tree / name)
        version = root / "sglang" / "_version.py"
        if version.is_file():
            shutil.copyfile(version, tree / "python" / "sglang" / "_version.py")
    git(tree, "init", "-q")
    tree.joinpath(".git", "info", "exclude").write_text(
        "__pycache__/\n_version.py\n" + ("*\n" if only is None else "")
    )
    git(tree, "add", "-f", *tracked)
    git(tree, *SAID.split(), "commit", "-q", "-m", f"SGLang {pin.SGLANG}, the files that seams touch")


def _blobs(series: Series, root: Path) -> None:
    """The first patch of each file has to name the blob that the release has."""
    seen: set[str] = set()
    for patch in series.patches:
        if patch.seam is None or patch.name in seen:
            continue
        seen.add(patch.name)
        found = blob_id(root.joinpath(patch.name.removeprefix(PREFIX)).read_bytes())
        if f"index {found}.." not in patch.text:
            raise PatchError(f"{patch.file} is not made from the release's {patch.name} ({found})")


def _file(root: Path, seam: Seam) -> str:
    package = root.joinpath(*seam.module.split("."), "__init__.py")
    exists = {f"{PREFIX}{package.relative_to(root).as_posix()}"} if package.is_file() else set()
    return file_of(seam, exists)


def _digest(tree: Path) -> dict[str, tuple[int, str]]:
    """Mode and blob id of every file outside .git."""
    return {
        path.relative_to(tree).as_posix(): (path.stat().st_mode, blob_id(path.read_bytes()))
        for path in sorted(tree.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(tree).parts
    }


def _linker() -> Callable[[str, str], None]:
    """Copy by a hard link where that can be: git and Python replace files and never write into them."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    return link
