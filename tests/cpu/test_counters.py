"""What is counted, and that reading it never waits: totals by index group, pages by state, time spent on copies."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch

from sglang_hisparse.policy import PlannerOptions
from sglang_hisparse.tier import counters
from sglang_hisparse.tier.counters import MOST_PENDING, SelectionCounters, StallClock
from tests.cpu.tier_server import MLA, TierServer, tier_of
from tests.unit.events import random_events
from tests.unit.fake_server import Sizes

OPTIONS = PlannerOptions(hot_min=2, hot_max=4, tables=8, low_watermark=0.5, high_watermark=0.8)
SMALL = Sizes(12, 24, OPTIONS, reads_host=True)


def test_missed_bytes_are_those_of_the_group_that_missed() -> None:
    """Rows of groups differ: 16 + 32 + 48 B for layers 0 to 2, 16 B for layer 3, 32 + 48 B for 4 and 5."""
    tier = tier_of(SMALL, MLA)
    for group, missed in enumerate((3, 5, 7)):
        tier.selected.rows[group].add_(torch.tensor([10, 20, missed, 0]))
    found = tier.counters(wait=False)
    assert (found["selected_resident"], found["selected_hot"], found["selected_missed"]) == (30, 60, 15)
    assert found["bytes_missed"] == 3 * 96 + 5 * 16 + 7 * 80 == found["bytes_to_device"]
    assert tier.counters() == found


@pytest.mark.parametrize("seed", range(4))
def test_pages_by_state_are_counted_right(seed: int) -> None:
    """Against a count over all pages, after every step of random events."""
    server = TierServer(SMALL, random.Random(seed), MLA)
    seen: set[str] = set()
    check = server.check

    def count() -> None:
        check()
        residency = server.tier.residency
        states = [residency.state(page).value for page in range(1, residency.logical_pages + 1)]
        found = server.tier.pages_by_state()
        assert {name: found[name] for name in ("resident", "clean", "spilled")} == {
            name: states.count(name) for name in ("resident", "clean", "spilled")
        }
        assert found["hot"] == sum(r.hot_pages() for r in residency.requests.values())
        assert found["free"] == len(residency.free_device)
        seen.update(name for name, number in found.items() if number)

    server.check = count  # type: ignore[method-assign]
    random_events(server, random.Random(seed), count=60)
    assert {"resident", "spilled", "free"} <= seen


def test_on_the_cpu_recent_is_exact() -> None:
    found = SelectionCounters(2, torch.device("cpu"))
    found.rows[1][2] += 4
    assert found.recent() == found.exact() == [[0] * 4, [0, 0, 4, 0]]


def test_copies_on_the_cpu_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((10.0, 10.25, 20.0, 20.5))
    monkeypatch.setattr(counters.time, "perf_counter", lambda: next(times))
    clock = StallClock()
    for _ in range(2):
        with clock.running():
            pass
    assert clock.seconds() == 0.75


@dataclass
class Stream:
    """A CUDA stream whose time is set by the test."""

    now: float = 0.0

    def wait_stream(self, other: Stream) -> None:
        self.now = max(self.now, other.now)


@dataclass
class Event:
    """A timing event: over once the test says how far the device has come."""

    enable_timing: bool
    at: float = 0.0
    device: list[float] = field(default_factory=lambda: REACHED)

    def record(self, stream: Stream) -> None:
        self.at = stream.now

    def query(self) -> bool:
        return self.device[0] >= self.at

    def elapsed_time(self, end: Event) -> float:
        assert end.query(), "read before it was over: that would raise"
        return (end.at - self.at) * 1e3


REACHED = [0.0]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """`device[0]`: the time up to which the device has worked."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    REACHED[0] = 0.0
    return REACHED


def test_a_wait_counts_once_it_is_over(device: list[float]) -> None:
    clock, forward, side = StallClock(), Stream(5.0), Stream(5.5)
    clock.wait(forward, side)  # type: ignore[arg-type]
    assert forward.now == 5.5 and clock.seconds() == 0
    device[0] = 5.4
    assert clock.seconds() == 0
    device[0] = 6.0
    assert clock.seconds() == pytest.approx(0.5)
    clock.wait(Stream(7.0), Stream(6.0))  # type: ignore[arg-type]
    device[0] = 8.0
    assert clock.seconds() == pytest.approx(0.5), "copies that were done already cost nothing"
    assert len(clock._spare) == 1, "events are used again"


def test_waits_that_are_never_read_are_bounded(device: list[float]) -> None:
    """A device that stands still: the CPU queues at most so many, and the waits themselves always happen."""
    clock = StallClock()
    for step in range(3 * MOST_PENDING):
        forward = Stream(1.0 + step)
        clock.wait(forward, Stream(1.5 + step))  # type: ignore[arg-type]
        assert forward.now == 1.5 + step
    device[0] = 1e9
    assert clock.seconds() == pytest.approx(0.5 * MOST_PENDING)
