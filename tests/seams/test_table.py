"""The real table against the SGLang that is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_hisparse import pin
from sglang_hisparse.seams.drift import check_source
from sglang_hisparse.seams.seam import REGISTER, RELY, Seam
from sglang_hisparse.seams.table import SEAMS

ROOT = Path(__file__).resolve().parents[2]
needs_sglang = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None,
    reason=f"SGLang is not installed: pip install {pin.requirement()}",
)


@pytest.fixture(scope="module")
def live() -> dict[str, Any]:
    """What live_table.py reports, from a process of its own: SGLang's import leaves much behind."""
    environment = {**os.environ, "SGLANG_HISPARSE_ALLOW_DRIFT": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.seams.live_table"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_ids_and_changed_targets_are_unique() -> None:
    assert len({seam.id for seam in SEAMS}) == len(SEAMS)
    changed = [seam.target for seam in SEAMS if seam.kind not in (RELY, REGISTER)]
    assert len(set(changed)) == len(changed)


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.id)
def test_row_is_complete(seam: Seam) -> None:
    assert seam.target.startswith("sglang.srt.")
    for text in (seam.why, seam.retire_when):
        assert len(text.split()) >= 3 and text.endswith("."), text
    if seam.kind is not REGISTER:
        assert len(seam.body) == 16, "python -m sglang_hisparse.seams.fingerprint prints params and body"


@pytest.mark.parametrize("seam", [seam for seam in SEAMS if seam.hook], ids=lambda seam: seam.id)
def test_hook_stands_in_the_file_it_names(seam: Seam) -> None:
    module, _, name = seam.hook.partition(":")
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    assert path.parent == ROOT / "sglang_hisparse" / "seams"
    assert f"def {name}(" in path.read_text()


@needs_sglang
def test_installed_sglang_is_the_pinned_one() -> None:
    assert importlib.metadata.version("sglang") == pin.SGLANG


@needs_sglang
@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.id)
def test_row_matches_the_installed_source(seam: Seam) -> None:
    problem = check_source([seam])[seam.id]
    assert problem is None, str(problem)


@needs_sglang
def test_live_objects_match_and_every_row_applies(live: dict[str, Any]) -> None:
    assert [row["id"] for row in live["installed"]] == [seam.id for seam in SEAMS]
    assert not any(row["drifted"] for row in live["installed"])
    assert live["places"].keys() == {seam.id for seam in SEAMS if seam.kind not in (RELY, REGISTER)}


@needs_sglang
def test_nothing_can_call_past_a_hook(live: dict[str, Any]) -> None:
    assert {name: found for name, found in live["held"].items() if found} == {}
    assert {name: found for name, found in live["overridden"].items() if found} == {}


@needs_sglang
def test_undo_restores_stock(live: dict[str, Any]) -> None:
    assert live["restored"]
