"""A made-up release of SGLang, a series for it, and git checkouts of it in every state that a user's may be in."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_hisparse import pin
from sglang_hisparse.patching.check import SAID
from sglang_hisparse.patching.modules import FOLDER
from sglang_hisparse.patching.release import blob_id
from sglang_hisparse.patching.series import Series, make
from sglang_hisparse.seams.fingerprint import fingerprint_target
from sglang_hisparse.seams.seam import AFTER, AROUND, REGISTER, RELY, Seam

POOL = '''"""Pools."""

from __future__ import annotations

import functools

from sglang.srt.environ import envs
from sglang.srt.utils import pages

REGISTRY = {}
LIMIT = 3


def size(tokens):
    return pages(tokens) + envs.SPARE


class Pool:
    def __init__(self, count):
        self.count = count

    @staticmethod
    def of(tokens):
        return Pool(size(tokens))

    def free(self, count):
        self.count += count


class Other:
    def free(self, count):
        return count
'''
OTHER = "def pages(tokens):\n    return -(-tokens // 64)\n"
MODULES = {
    f"{FOLDER}/__init__.py": "",
    f"{FOLDER}/seams/patched.py": "def hisparse_seam(name):\n    return lambda target: target\n",
    f"{FOLDER}/_csrc/resolve.cuh": "#pragma once\n",
}
POOL_PY, OTHER_PY = "python/sglang/srt/pool.py", "python/sglang/srt/utils.py"

Digest = dict[str, tuple[int, str]]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder that holds `sglang/`, as a wheel does."""
    root = tmp_path / "release"
    for name, text in ((POOL_PY, POOL), (OTHER_PY, OTHER)):
        path = root / name.removeprefix("python/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def rows(release: Path) -> tuple[Seam, ...]:
    """Seams of every sort on it."""

    def row(id: str, kind, target: str) -> Seam:
        params, body = fingerprint_target(target, release)
        hook = "" if kind is RELY else f"sglang_hisparse.seams.fake:{id}"
        return Seam(id, target, kind, hook, "A test needs it.", "Tests are over.", params, body, "args")

    return (
        row("size", AROUND, "sglang.srt.pool:size"),
        row("free", AFTER, "sglang.srt.pool:Pool.free"),
        row("of", AROUND, "sglang.srt.pool:Pool.of"),
        row("registry", REGISTER, "sglang.srt.pool:REGISTRY"),
        row("pages", RELY, "sglang.srt.utils:pages"),
    )


@pytest.fixture
def series(release: Path, rows: tuple[Seam, ...]) -> Series:
    """Its patches."""
    return make(release, rows, MODULES)


Git = Callable[..., str]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A clean git checkout of the release, in a folder with a space in its name."""
    root = tmp_path / "my sglang"
    for name, text in ((POOL_PY, POOL), (OTHER_PY, OTHER), ("README.md", "SGLang\n")):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(root, "init", "-q")
    git(root, "add", ".")
    commit(root, f"v{pin.SGLANG}")
    git(root, "tag", f"v{pin.SGLANG}")
    return root


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout


def commit(root: Path, message: str) -> None:
    git(root, *SAID.split(), "commit", "-q", "--allow-empty", "-a", "-m", message)


def edit(root: Path, name: str, old: str, new: str) -> None:
    """Replace the only `old` in a file."""
    text = root.joinpath(name).read_text()
    assert text.count(old) == 1
    root.joinpath(name).write_text(text.replace(old, new))


def digest(root: Path) -> Digest:
    """Mode and content of every file, git's index and HEAD too."""
    return {
        path.relative_to(root).as_posix(): (path.stat().st_mode, blob_id(path.read_bytes()))
        for path in sorted(root.rglob("*"))
        if path.is_file() and (".git" not in path.relative_to(root).parts or path.name == "HEAD")
    }


def without(series: Series, id: str) -> Series:
    """The series with one patch less."""
    return replace(series, patches=tuple(patch for patch in series.patches if patch.id != id))
