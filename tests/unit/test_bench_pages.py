"""What page copies cost a decode step: the arithmetic on simulated streams, and the tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench_serving.kernels import beside, issue_table, report  # noqa: E402

STEP_MS, COPY_MS = 2.0, 10.0
MOVED = 1 << 29


class Simulated:
    """Steps that are `slower` times as long while copies run; copies take COPY_MS each."""

    def __init__(self, slower: float, copies_slower: float = 1.0) -> None:
        self.slower, self.copies_slower = slower, copies_slower
        self.copies = self.steps = 0
        self.runs: list[tuple[int, int]] = []

    def enqueue(self, steps: int, behind: object) -> None:
        self.steps, self.copies = steps, 0

    def copy(self) -> None:
        self.copies += 1

    def copies_ms(self) -> float:
        return self.copies * COPY_MS * self.copies_slower

    def steps_ms(self) -> list[float]:
        """The step that sees the end of the copies has its share of both."""
        self.runs.append((self.steps, self.copies))
        now, ms = 0.0, []
        for _ in range(self.steps):
            left = max(0.0, self.copies_ms() - now)
            slow = STEP_MS * (1 + self.slower)
            ms.append(slow if left >= slow else left + (1 - left / slow) * STEP_MS)
            now += ms[-1]
        return ms

    def ms_until(self, _event: object) -> float:
        return max(1e-3, self.copies_ms())


class Anything:
    def __init__(self, *_: object, **__: object) -> None: ...

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_: None


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[[Simulated], beside.Loss]:
    for name in ("Stream", "Event"):
        monkeypatch.setattr(torch.cuda, name, Anything)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    for name in ("_sleep", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda _: None)

    def run(load: Simulated) -> beside.Loss:
        between: Any = Anything()
        here = beside.Beside(torch.device("cpu"), load, between)  # type: ignore[arg-type]
        return here.loss(load.copy, MOVED, COPY_MS, rounds=2)

    return run


@pytest.mark.parametrize("slower", [0.0, 0.05, 0.5, 3.0])
def test_the_loss_is_what_was_put_in(slower: float, measure: Callable[[Simulated], beside.Loss]) -> None:
    load = Simulated(slower)
    loss = measure(load)
    assert loss.slower_percent == pytest.approx(100 * slower, abs=0.01)
    # Copies of half a GiB take 10 ms, in which steps get that much less done.
    lost = 2 * COPY_MS * 1e3 * slower / (1 + slower)
    assert loss.us_per_gib == pytest.approx(lost, rel=0.01, abs=0.1)
    assert loss.gb_s_beside == pytest.approx(MOVED / COPY_MS / 1e6, rel=0.01)
    assert loss.steps_beside == int(2 * COPY_MS / (STEP_MS * (1 + slower)) + 1e-9)
    assert [copies for _, copies in load.runs] == [0, 0, 2, 0, 2], "two copies cover 8 steps"


def test_copies_that_outlast_the_steps(measure: Callable[[Simulated], beside.Loss]) -> None:
    loss = measure(Simulated(0.1, copies_slower=4.0))
    assert loss.steps_beside > 8 and loss.slower_percent == pytest.approx(10, abs=0.01)
    assert loss.us_per_gib == pytest.approx(2 * 4 * COPY_MS * 1e3 * 0.1 / 1.1, rel=0.01)


def test_the_table_shows_every_copy_and_its_losses() -> None:
    where = {"pages": 512, "row_bytes": 656, "layers": 64, "near": False}
    speed = {"kind": "page copies", "gb_s": 45.0, "of_ceiling": 0.81, "cpu_us": 16384.0, "batched": True}
    loss = {"kind": "slow-down", "us_per_gib": 120.4}
    lines: list[dict[str, Any]] = [
        where | speed | {"to_host": True},
        where | speed | {"to_host": False, "batched": False},
        where | speed | {"to_host": True, "near": True, "of_ceiling": 0.99},
        where | loss | {"to_host": True, "priority": -1, "slower_percent": 3.25, "steps_beside": 2},
        where | loss | {"to_host": True, "priority": 0, "slower_percent": 0.5, "steps_beside": 9},
    ]
    title, table = report._pages(lines)
    assert title == "Page copies" and table.splitlines()[2:] == [
        "| 656 B | 512 | neighbours | spill | 45.0 | 99 % | 0.5 | - |",
        "| 656 B | 512 | scattered | restore | 45.0, one by one | 81 % | 0.5 | - |",
        "| 656 B | 512 | scattered | spill | 45.0 | 81 % | 0.5 | 0.5 %, 120 us a GiB; 3.25 % *, 120 us a GiB |",
    ]
    found = {row[0]: row[3:] for row in issue_table.rows(lines)}
    assert found["spill and restore"] == ["81.0 to 99.0 %", "no: 4.0 points at worst"]
    assert found["a step beside them"] == ["0.5 to 3.2 %", "no: 0.2 points at worst"]
