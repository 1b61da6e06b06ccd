"""`sglang-hisparse seams`: every sort of change is told apart, with a diff, and the exit code says if there was one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sglang_hisparse import pin
from sglang_hisparse.cli import main
from sglang_hisparse.commands import seams as command
from sglang_hisparse.patching.series import Series
from sglang_hisparse.seams.seam import Seam
from sglang_hisparse.seams.table import SEAMS
from tests.patches.conftest import POOL_PY, edit

IN_RELEASE = "sglang/srt/pool.py"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def other(release: Path) -> Path:
    """Another version of the made-up release, to be edited."""
    return Path(shutil.copytree(release, release.parent / "other"))


def states(rows: list[command.Row]) -> dict[str, str]:
    return {row.seam.id: row.state for row in rows}


def test_states_and_diffs(release: Path, other: Path, rows: tuple[Seam, ...]) -> None:
    edit(other, IN_RELEASE, "def size(tokens):", "def size(tokens, page=64):")
    edit(other, IN_RELEASE, "self.count += count", "self.count += 2 * count  # twice")
    edit(other, "sglang/srt/utils.py", "def pages(tokens):", "def page_count(tokens):")
    edit(other, IN_RELEASE, "class Other:", "def pages(tokens):\n    pass\n\n\nclass Other:")
    found = command.compare(other, release, rows)
    assert states(found) == {
        "size": "signature changed", "free": "body changed", "of": "same", "registry": "same", "pages": "gone",
    }  # fmt: skip
    text = command.render(found, "9.9")
    assert text.startswith("# Seams in SGLang 9.9\n\n") and f"Compared with {pin.SGLANG}" in text
    assert ": 2 same, 1 body changed, 1 signature changed, 1 gone." in text
    assert "-        self.count += count\n+        self.count += 2 * count  # twice\n" in text
    assert "-def size(tokens):\n+def size(tokens, page=64):\n" in text
    assert "parameters with page: now (tokens, page)" in text
    assert "pages is defined in sglang/srt/pool.py" in text
    assert "| of | around | same | `sglang.srt.pool:Pool.of` |" in text and "## of" not in text


def test_comments_docstrings_and_patches_are_no_change(
    release: Path, other: Path, rows: tuple[Seam, ...], series: Series
) -> None:
    (other / IN_RELEASE).write_text(series.after[POOL_PY])
    edit(
        other, IN_RELEASE, "    def __init__(self, count):", "    # of pages\n    def __init__(self, count):"
    )
    edit(other, "sglang/srt/utils.py", "(tokens):\n", '(tokens):\n    """Pages of 64."""\n')
    assert set(states(command.compare(other, release, rows)).values()) == {"same"}


def test_no_diffs_without_the_pinned_release(
    other: Path, rows: tuple[Seam, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(other, IN_RELEASE, "self.count += count", "self.count -= count")
    [row] = [row for row in command.compare(other, tmp_path / "gone.whl", rows) if row.state != "same"]
    assert (row.seam.id, row.diff) == ("free", "") and "body " in row.detail
    assert "No diffs: there is no wheel" in capsys.readouterr().err


def test_exit_codes(other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["seams", "--against", str(other), "--base", str(tmp_path / "none.whl")]) == 1, (
        "nothing is there"
    )
    assert f"{len(SEAMS)} gone." in capsys.readouterr().out
    assert main(["seams", "--against", str(tmp_path / "nowhere")]) == 2
    assert "is no SGLang: a wheel, a checkout" in capsys.readouterr().err


def test_the_installed_release_is_the_pinned_one(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sglang", reason=f"SGLang is not installed: pip install {pin.requirement()}")
    assert main(["seams"]) == 0
    assert f": {len(SEAMS)} same." in capsys.readouterr().out


@pytest.mark.parametrize("version", ["0.5.21", "0.5.22"])
def test_kept_reports_are_of_this_pin(version: str) -> None:
    text = (ROOT / "docs" / "drift" / f"{version}.md").read_text()
    assert text.startswith(f"# Seams in SGLang {version}\n\nCompared with {pin.SGLANG},")
