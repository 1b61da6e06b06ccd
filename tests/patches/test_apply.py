"""The series on checkouts in every state: applied as a whole, or refused by name with the tree as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_hisparse import pin
from sglang_hisparse.patching import apply as applier
from sglang_hisparse.patching.apply import apply, unapply
from sglang_hisparse.patching.modules import FOLDER
from sglang_hisparse.patching.release import PatchError
from sglang_hisparse.patching.series import Series
from tests.patches.conftest import MODULES, OTHER_PY, POOL, POOL_PY, commit, digest, edit, git

Act = Callable[[Path, Series], list[str]]


def refusal(tree: Path, series: Series, act: Act = apply) -> str:
    """The message; nothing in the tree may change."""
    before, status = digest(tree), git(tree, "status", "--porcelain")
    with pytest.raises(PatchError) as caught:
        act(tree, series)
    assert digest(tree) == before and git(tree, "status", "--porcelain") == status
    return str(caught.value)


def test_there_and_back(tree: Path, series: Series) -> None:
    before = digest(tree)
    said = apply(tree, series)
    assert (
        len(said) == 1 + len(series.patches) and said[0] == f"all 1 touched files are those of {pin.SGLANG}"
    )
    text = tree.joinpath(POOL_PY).read_text()
    assert '    @staticmethod\n    @hisparse_seam("of")\n    def of(tokens):\n' in text
    assert 'REGISTRY = {}\nhisparse_seam("registry")(REGISTRY)\n' in text
    assert text.count("import hisparse_seam\n") == 1 and text == series.after[POOL_PY]
    for name, content in MODULES.items():
        assert tree.joinpath(name).read_text() == content
    assert git(tree, "diff", "--cached") == "", "the index is the user's"
    (tree / FOLDER / "seams" / "__pycache__").mkdir()
    (tree / FOLDER / "seams" / "__pycache__" / "patched.pyc").write_bytes(b"left by a run")
    assert len(unapply(tree, series)) == len(series.patches)
    assert digest(tree) == before and git(tree, "status", "--porcelain") == ""
    assert not tree.joinpath(FOLDER).exists()


def test_plain_git_takes_them_too(tree: Path, series: Series, tmp_path: Path) -> None:
    """One after the other, as `quilt push` or a loop over `series` does."""
    for patch in series.patches:
        (tmp_path / patch.file).write_text(patch.text)
        git(tree, "apply", "--index", str(tmp_path / patch.file))
    assert tree.joinpath(POOL_PY).read_text() == series.after[POOL_PY]
    commit(tree, "patched")
    assert "already applied" in apply(tree, series)[0]


def test_twice_says_so_and_changes_nothing(tree: Path, series: Series) -> None:
    apply(tree, series)
    before = digest(tree)
    [said] = apply(tree, series)
    assert said.startswith("already applied") and str(tree) in said
    assert digest(tree) == before
    unapply(tree, series)
    [said] = unapply(tree, series)
    assert said.startswith("nothing to take back")


@pytest.mark.parametrize("act", [apply, unapply])
@pytest.mark.parametrize("lost", ["modules", "free"])
def test_half_applied(tree: Path, series: Series, tmp_path: Path, act: Act, lost: str) -> None:
    apply(tree, series)
    [patch] = [patch for patch in series.patches if patch.id == lost]
    (tmp_path / "one.patch").write_text(patch.text)
    git(tree, "apply", "-R", str(tmp_path / "one.patch"))
    message = refusal(tree, series, act)
    assert f"Not applied: {lost}." in message and "Applied: " in message and "in part" in message


def test_applied_and_edited_since(tree: Path, series: Series) -> None:
    apply(tree, series)
    (tree / FOLDER / "seams" / "patched.py").write_text("mine = 1\n")
    for act in (apply, unapply):
        message = refusal(tree, series, act)
        assert "were edited since" in message and "patched.py" in message


def test_edits_beside_the_seams_outlive_both(tree: Path, series: Series) -> None:
    apply(tree, series)
    edit(tree, POOL_PY, "self.count = count", "self.count = count + 1")
    edit(tree, OTHER_PY, "64", "128")
    unapply(tree, series)
    assert tree.joinpath(POOL_PY).read_text() == POOL.replace("self.count = count", "self.count = count + 1")
    assert git(tree, "diff", "--stat").count("|") == 2


def test_local_edits_in_touched_files(tree: Path, series: Series) -> None:
    edit(tree, POOL_PY, "LIMIT = 3\n", "LIMIT = 4\n")
    message = refusal(tree, series)
    assert "local edits, in files that the patches touch: srt/pool.py. Commit or stash" in message


def test_local_edits_elsewhere(tree: Path, series: Series) -> None:
    edit(tree, "README.md", "SGLang", "Mine")
    git(tree, "add", "README.md")
    assert "local edits, in others: README.md" in refusal(tree, series)


def test_untracked_files_are_no_edits(tree: Path, series: Series) -> None:
    (tree / "notes.txt").write_text("mine\n")
    apply(tree, series)
    unapply(tree, series)
    assert git(tree, "status", "--porcelain") == "?? notes.txt\n"


def test_somebody_elses_folder_in_our_place(tree: Path, series: Series) -> None:
    (tree / FOLDER).mkdir(parents=True)
    (tree / FOLDER / "mine.py").write_text("")
    assert "is there already, from somebody else" in refusal(tree, series)


def test_anchor_missing(tree: Path, series: Series) -> None:
    edit(tree, POOL_PY, "def size(tokens):", "def size_of(tokens):")
    commit(tree, "fork")
    message = refusal(tree, series)
    assert f"size: the anchor 'def size(tokens):' is missing from {POOL_PY}" in message


def test_anchor_twice(tree: Path, series: Series) -> None:
    text = tree.joinpath(POOL_PY).read_text()
    tree.joinpath(POOL_PY).write_text(text + "\n\ndef size(tokens):\n    return 0\n")
    commit(tree, "fork")
    assert "size: the anchor 'def size(tokens):' is there 2 times in" in refusal(tree, series)


@pytest.mark.parametrize(("name", "old", "new"), [(POOL_PY, "+ envs.SPARE", "- 1"), (OTHER_PY, "-(-", "(")])
def test_a_function_that_was_not_tested(tree: Path, series: Series, name: str, old: str, new: str) -> None:
    """Its anchor is there, or it has none; its body is another one."""
    edit(tree, name, old, new)
    commit(tree, "fork")
    message = refusal(tree, series)
    assert (
        "[drift]" in message
        and "body" in message
        and f"is SGLang {pin.SGLANG}; the patches are for" in message
    )


@pytest.mark.parametrize("tag", ["", f"v{pin.SGLANG}-ours"])
def test_a_fork_with_changes_elsewhere_in_the_file(tree: Path, series: Series, tag: str) -> None:
    """Its own tag, and a build that counts commits after the release's, do not make another release of it."""
    if tag:
        git(tree, "tag", "-d", f"v{pin.SGLANG}")
        git(tree, "tag", tag)
    (tree / "python" / "sglang" / "_version.py").write_text("__version__ = version = '0.5.24.dev3+g1'\n")
    edit(tree, POOL_PY, "self.count = count\n", "self.count = count\n        self.more = 5\n")
    commit(tree, "fork")
    before = digest(tree)
    assert apply(tree, series)[0] == f"1 of 1 touched files differ from {pin.SGLANG}, none where seams are"
    unapply(tree, series)
    assert digest(tree) == before


def test_another_release_is_refused_by_both_names(tree: Path, series: Series) -> None:
    edit(tree, POOL_PY, "LIMIT = 3\n", "LIMIT = 4\n")
    git(tree, "tag", "-d", f"v{pin.SGLANG}")
    (tree / "python" / "sglang" / "_version.py").write_text("__version__ = version = '0.5.9'\n")
    commit(tree, "another")
    message = refusal(tree, series)
    assert f"is SGLang 0.5.9; the patches are for {pin.SGLANG}, and 1 of 1 touched files differ" in message


def test_another_release_by_its_tag(tree: Path, series: Series) -> None:
    edit(tree, POOL_PY, "LIMIT = 3\n", "LIMIT = 4\n")
    commit(tree, "another")
    git(tree, "tag", "v0.6.0")
    assert f"is SGLang 0.6.0; the patches are for {pin.SGLANG}" in refusal(tree, series)


def test_a_release_without_a_touched_file(tree: Path, series: Series) -> None:
    git(tree, "rm", "-q", POOL_PY)
    commit(tree, "another")
    assert "files of 0.5.23 are missing: srt/pool.py" in refusal(tree, series).replace(pin.SGLANG, "0.5.23")


def test_crlf_checkout(tree: Path, series: Series) -> None:
    git(tree, "config", "core.autocrlf", "true")
    tree.joinpath(POOL_PY).unlink()
    git(tree, "checkout", "--", POOL_PY)
    assert b"\r\n" in tree.joinpath(POOL_PY).read_bytes()
    for act in (apply, unapply):
        message = refusal(tree, series, act)
        assert "CRLF line ends" in message and "srt/pool.py" in message and "core.autocrlf false" in message


@pytest.mark.parametrize("locked", [POOL_PY, "python/sglang/srt"])
def test_read_only(tree: Path, series: Series, locked: str) -> None:
    mode = tree.joinpath(locked).stat().st_mode
    tree.joinpath(locked).chmod(mode & ~0o222)
    message = refusal(tree, series)
    assert (
        "read-only" in message and locked.removeprefix("python/sglang/") in message and "chmod u+w" in message
    )
    tree.joinpath(locked).chmod(mode)
    apply(tree, series)
    tree.joinpath(locked).chmod(mode & ~0o222)
    assert "read-only" in refusal(tree, series, unapply)
    tree.joinpath(locked).chmod(mode)


@pytest.mark.parametrize("act", [apply, unapply])
def test_git_that_fails_half_way(
    tree: Path, series: Series, monkeypatch: pytest.MonkeyPatch, act: Act
) -> None:
    """A full disk: some files are written, one is not."""
    if act is unapply:
        apply(tree, series)
    real = applier._git_apply

    def failing(tree, series, back, *options):
        if options:
            return real(tree, series, back, *options)
        tree.root.joinpath(POOL_PY).write_text("half of it\n")
        (tree.root / FOLDER / "seams").mkdir(parents=True, exist_ok=True)
        (tree.root / FOLDER / "seams" / "patched.py").write_text("half of it\n")
        raise PatchError("no space left on device")

    monkeypatch.setattr(applier, "_git_apply", failing)
    assert "no space left" in refusal(tree, series, act)


def test_what_is_no_checkout(tree: Path, series: Series, tmp_path: Path) -> None:
    with pytest.raises(PatchError, match="is no checkout of SGLang"):
        apply(tmp_path, series)
    inner = tree / "third_party"
    (inner / "python" / "sglang" / "srt").mkdir(parents=True)
    with pytest.raises(PatchError, match="is not the top of a git checkout"):
        apply(inner, series)


def test_git_settings_of_the_caller_do_not_matter(
    tree: Path, series: Series, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    apply(tree, series)


def test_the_command_refuses_in_one_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sglang_hisparse.patching", "apply", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("apply: ") and "is no checkout of SGLang" in done.stderr
