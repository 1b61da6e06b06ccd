"""The link measurement runs its whole path on the CPU, with a small load; the numbers themselves need a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch

from sglang_hisparse.tier import link_speed
from sglang_hisparse.tier.link_speed import Load, measure

SMALL = Load(copy_bytes=1 << 16, host_bytes=1 << 24, requests=2, top_k=128, seconds=0.02)


def test_every_selection_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise hot rows would be measured: nearly all of 256 random slots of 6,336 are new in every step."""
    missed = []
    stock = link_speed.resolve

    def counted(tables, group, selection, request, q, out, stats):  # type: ignore[no-untyped-def]
        before = stats.clone()
        stock(tables, group, selection, request, q, out, stats)
        missed.append((stats - before).tolist())
        assert (out >= 64).all(), "a selected row was not fetched"

    monkeypatch.setattr(link_speed, "resolve", counted)
    found = measure(torch.device("cpu"), SMALL)
    assert found.to_device > 0 and found.to_host > 0 and not found.error
    assert found.gather is not None and found.gather > 0 and found.gather_row_bytes == 656
    assert len(missed) > 4
    for resident, hot, misses, overflow in missed:
        assert resident == overflow == 0 and misses > 0.9 * (hot + misses)


def test_a_kernel_that_does_not_run_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("nvcc: not found")

    monkeypatch.setattr(link_speed, "resolve", broken)
    found = asdict(measure(torch.device("cpu"), SMALL))
    assert found["gather"] is None and found["error"] == "RuntimeError: nvcc: not found"
    assert found["to_device"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures for real where there is a GPU")
def test_without_a_gpu_the_list_is_empty() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sglang_hisparse.tier.link_speed"],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == []
