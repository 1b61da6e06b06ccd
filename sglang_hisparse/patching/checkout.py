"""A user's SGLang checkout: what state it is in, and whether the series fits. Reads only; nothing here writes."""

from __future__ import annotations

import ast
import os
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_hisparse import pin
from sglang_hisparse.patching.modules import FOLDER
from sglang_hisparse.patching.release import PREFIX, PatchError, blob_id, lines_of, version_of
from sglang_hisparse.patching.series import Patch, Series
from sglang_hisparse.seams.drift import check_source

MOST_NAMED = 8


@dataclass(frozen=True)
class Checkout:
    """`root` is the top folder of a git checkout of SGLang; `texts` are its versions of the files that seams touch."""

    root: Path
    texts: Mapping[str, str]

    def applied(self, series: Series) -> list[Patch]:
        """The patches whose lines, or files, are there."""
        return [patch for patch in series.patches if self._carries(patch)]

    def _carries(self, patch: Patch) -> bool:
        if patch.seam is None:
            return any(self.root.joinpath(name).is_file() for name, _ in patch.texts)
        return patch.call in self.texts[patch.name]


def open_checkout(where: str | Path, series: Series) -> Checkout:
    """PatchError where `where` is not the top of a git checkout of SGLang with the touched files in it, or where these
    have CRLF line ends."""
    root = Path(where)
    if not root.joinpath("python", "sglang", "srt").is_dir():
        raise PatchError(f"{root} is no checkout of SGLang: it has no python/sglang/srt")
    top = git(root, "rev-parse", "--show-toplevel", allow=True)
    if not top or Path(top).resolve() != root.resolve():
        raise PatchError(
            f"{root} is not the top of a git checkout ({top or 'no repository'} is): name that folder"
        )
    missing = [name for name in series.preimages if not root.joinpath(name).is_file()]
    if missing:
        raise PatchError(f"{_release(root)}: these files of {pin.SGLANG} are missing: {named(missing)}")
    data = {name: root.joinpath(name).read_bytes() for name in series.preimages}
    crlf = [name for name, content in data.items() if b"\r\n" in content]
    if crlf:
        raise PatchError(
            f"files have CRLF line ends, the patches LF: {named(crlf)}. Check out with LF: "
            "`git config core.autocrlf false`, then check these files out again"
        )
    return Checkout(root, {name: content.decode() for name, content in data.items()})


def check_partly(checkout: Checkout, series: Series) -> bool:
    """True where all patches are applied, False where none is. PatchError names both sorts of a half-applied tree."""
    applied = checkout.applied(series)
    if len(applied) not in (0, len(series.patches)):
        others = [patch.id for patch in series.patches if patch not in applied]
        raise PatchError(
            f"{checkout.root} carries the series in part. Applied: {named([patch.id for patch in applied])}. "
            f"Not applied: {named(others)}. Take the others back by `git apply -R` of their patches, last one first, "
            "or check the files out again; nothing was changed"
        )
    return bool(applied)


def check_clean(checkout: Checkout, series: Series) -> None:
    """PatchError names what is edited, in the files of the series and elsewhere."""
    rows = [row for row in git(checkout.root, "status", "--porcelain", "-z", "-uno").split("\0") if row]
    edited = [row[3:] for row in rows if re.match(r"[ MADRCUT]{2} ", row)]
    ours = [name for name in edited if name in series.preimages]
    others = [name for name in edited if name not in series.preimages]
    if edited:
        where = [f"in files that the patches touch: {named(ours)}"] if ours else []
        where += [f"in others: {named(others)}"] if others else []
        raise PatchError(
            f"{checkout.root} has local edits, {'; '.join(where)}. Commit or stash them first; nothing was changed"
        )
    if checkout.root.joinpath(FOLDER).exists():
        raise PatchError(f"{checkout.root / FOLDER} is there already, from somebody else: move it away first")


def check_fits(checkout: Checkout, series: Series) -> str:
    """How the checkout compares with the pinned release, in a few words. PatchError where it is another one, where an
    anchor is missing or there twice, or where a function behind a seam is not the one that was tested."""
    changed = [n for n, text in checkout.texts.items() if blob_id(text.encode()) != series.preimages[n]]
    version = known_version(checkout.root)
    if (
        changed and version and re.split(r"[-+]", version)[0] != pin.SGLANG
    ):  # v0.5.23-ours is a fork of 0.5.23
        raise PatchError(
            f"{_release(checkout.root)}, and {len(changed)} of {len(series.preimages)} touched files differ: "
            f"{named(changed)}. Check out v{pin.SGLANG}, or make the patches anew from your release "
            "(docs/contributing-seams.md)"
        )
    problems = list(_anchors(checkout, series))
    if not problems:
        seams = [*(patch.seam for patch in series.patches if patch.seam), *series.rely]
        problems = [
            str(problem) for problem in check_source(seams, checkout.root / "python").values() if problem
        ]
    if problems:
        raise PatchError(
            f"{_release(checkout.root)}, and the patches do not fit:\n  - " + "\n  - ".join(problems)
        )
    if not changed:
        return f"all {len(series.preimages)} touched files are those of {pin.SGLANG}"
    return f"{len(changed)} of {len(series.preimages)} touched files differ from {pin.SGLANG}, none where seams are"


def check_writable(checkout: Checkout, names: Sequence[str]) -> None:
    """PatchError names files and folders that the user may not write. Git replaces files, so that without this a
    read-only file would be written all the same."""
    paths = [checkout.root / name for name in names]
    folders = {path.parent if path.parent.is_dir() else checkout.root / FOLDER / ".." for path in paths}
    locked = [path for path in (*paths, *sorted(folders)) if path.exists() and not _writable(path)]
    if locked:
        shown = named([os.path.relpath(path, checkout.root) for path in locked])
        raise PatchError(
            f"read-only in {checkout.root}: {shown}. `chmod u+w` them first; nothing was changed"
        )


def known_version(root: Path) -> str:
    """The release of a checkout: by its nearest tag, else by the file that its build wrote; "" where neither says.

    A build of some commits after 0.5.23 calls itself 0.5.24.dev: that does not tell what it was made from.
    """
    tag = git(root, "describe", "--tags", "--match", "v[0-9]*", "--abbrev=0", allow=True)
    built = version_of(root / "python")
    return tag.removeprefix("v") or ("" if ".dev" in built else built)


def compiles(checkout: Checkout, names: Sequence[str]) -> None:
    """PatchError where one of the files is no Python any more."""
    for name in names:
        try:
            ast.parse(checkout.root.joinpath(name).read_bytes(), name)
        except SyntaxError as error:
            raise PatchError(f"{checkout.root / name} does not compile: {error}") from error


def named(names: Sequence[str]) -> str:
    """Some of the names, and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(name.removeprefix(f"{PREFIX}sglang/") for name in names[:MOST_NAMED]) + more


def git(root: Path, *arguments: str, allow: bool = False) -> str:
    """Output of a git command in `root`. PatchError where it fails, or "" where that is allowed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-c", "core.quotePath=false", *arguments]
    try:
        done = subprocess.run(
            command, cwd=root, env={**environment, "LC_ALL": "C"}, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise PatchError(f"{error.filename or 'git'} is not there: install git") from error
    if done.returncode and not allow:
        raise PatchError(f"git {' '.join(arguments[:2])} in {root}: {done.stderr.strip()[:2000]}")
    return done.stdout.rstrip("\n") if not done.returncode else ""


def _anchors(checkout: Checkout, series: Series) -> Iterator[str]:
    """Where each hunk would go, patch after patch. A hunk that git could put in two places would end up in one of them
    by its line number."""
    texts = {name: lines_of(text) for name, text in checkout.texts.items()}
    for patch in series.patches:
        for hunk in patch.hunks if patch.seam else ():
            places = hunk.places(texts[patch.name])
            anchor = (hunk.after or hunk.before)[0].strip()
            if len(places) == 1:
                texts[patch.name][places[0] : places[0]] = hunk.lines
            elif places:
                at = ", ".join(str(place + 1) for place in places)
                yield f"{patch.id}: the anchor {anchor!r} is there {len(places)} times in {patch.name}, lines {at}"
            else:
                yield f"{patch.id}: the anchor {anchor!r} is missing from {patch.name}"


def _release(root: Path) -> str:
    version = known_version(root)
    found = f"is SGLang {version}" if version else "does not say which SGLang it is"
    return f"{root} {found}; the patches are for {pin.SGLANG}"


def _writable(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_IWUSR) and os.access(path, os.W_OK)
