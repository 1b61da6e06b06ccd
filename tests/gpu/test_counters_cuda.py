"""Counters are read while the device works: nothing waits, what had arrived is right."""

from __future__ import annotations

import time

import pytest
import torch

from sglang_hisparse.tier.counters import SelectionCounters, StallClock

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
HALF_SECOND = 700_000_000
"""Cycles that take at least about that long on GPUs of up to 2 GHz."""


def test_recent_never_waits() -> None:
    found = SelectionCounters(2, torch.device("cuda"))
    found.rows[1].add_(torch.tensor([1, 2, 3, 0], device="cuda"))
    torch.cuda.synchronize()
    torch.cuda._sleep(HALF_SECOND)
    began = time.perf_counter()
    assert found.recent() == [[0] * 4, [0] * 4]
    while found.recent() != [[0] * 4, [1, 2, 3, 0]]:
        assert time.perf_counter() - began < 0.2, "the copy waits for the stream of the forward"
    assert not torch.cuda.current_stream().query(), "the forward was over: this shows nothing"
    torch.cuda.synchronize()


def test_totals_arrive() -> None:
    found = SelectionCounters(1, torch.device("cuda"))
    for _ in range(5):
        found.rows[0].add_(1)
        found.recent()
        torch.cuda.synchronize()
    found.recent()
    torch.cuda.synchronize()
    assert found.recent() == found.exact() == [[5] * 4]


def test_stall_is_the_time_the_forward_stream_stood_still() -> None:
    clock, side, forward = StallClock(), torch.cuda.Stream(), torch.cuda.current_stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(HALF_SECOND)
    began = time.perf_counter()
    clock.wait(forward, side)
    assert clock.seconds() == 0.0 and time.perf_counter() - began < 0.2
    torch.cuda.synchronize()
    took = clock.seconds()
    assert 0.1 < took < 5
    clock.wait(forward, side)
    torch.cuda.synchronize()
    assert clock.seconds() - took < 0.01, "copies that were done already cost nothing"
