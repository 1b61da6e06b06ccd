"""The table of a recorded decode step: time a kernel, time in which anything ran, names people can read."""

from __future__ import annotations

from typing import Any

import pytest

from bench_serving.step_profile import Recording, running, short_name


def event(ts: float, dur: float, name: str, cat: str = "kernel") -> dict[str, Any]:
    return {"ts": ts, "dur": dur, "name": name, "cat": cat}


def test_busy_time_counts_overlapping_work_once() -> None:
    events = [
        event(100, 10, "a"),
        event(105, 10, "b"),  # beside a
        event(106, 2, "a"),  # inside both
        event(130, 20, "copy", "gpu_memcpy"),
        event(0, 500, "python", "cpu_op"),
        {"name": "no category", "ts": 0},
    ]
    found = Recording.of(events, steps=2)
    assert (found.step_us, found.busy_us) == (25.0, 17.5)
    assert found.kernels == {"a": (1.0, 6.0), "b": (0.5, 5.0), "copy": (0.5, 10.0)}
    lines = found.table().splitlines()
    assert "25.0 us a step, GPU busy 17.5; 2 steps" in lines[0]
    assert [line.split()[-1] for line in lines[1:]] == ["copy", "a", "b"]
    assert len(found.table(count=1).splitlines()) == 2


def test_a_trace_without_gpu_work_is_refused() -> None:
    with pytest.raises(ValueError, match="no GPU work"):
        Recording.of([event(0, 5, "x", "cpu_op")], steps=1)


def test_short_names() -> None:
    assert short_name("void f<int>(int const*, float)") == "f<int>"
    assert short_name("void (anonymous namespace)::g(int)").startswith("(anonymous namespace)::g")
    long = short_name("k" * 60 + "<" + "x" * 100 + ">::tail")
    assert len(long) < 111 and long.endswith("tail") and " ... " in long


def test_running_requests_come_from_the_last_decode_line() -> None:
    log = (
        "Decode batch, #running-req: 1, x\nPrefill batch, #running-req: 9\nDecode batch, #running-req: 8, y\n"
    )
    assert running(log) == 8 and running("") == 0
