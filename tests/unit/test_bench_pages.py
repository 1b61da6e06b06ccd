"""What page copies cost a decode step: the arithmetic on simulated streams, and which of many ways is the best."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench_serving.kernels import beside, page_table, page_tune, report  # noqa: E402
from sglang_hisparse.kernels.pages import Way  # noqa: E402

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


def line(share: float, slower: float, lost: float, **fields: Any) -> dict[str, Any]:
    return {
        "kind": "page tune", "to_host": True, "pages": 64, "priority": 0, "gb_s": 55 * share, "of_ceiling": share,
        "cpu_us": 9.0, "slower_percent": slower, "us_per_gib": lost, "gb_s_beside": 50.0, "steps_beside": 9,
        "path": "kernel", "blocks": 8, "threads": 1024,
    } | fields  # fmt: skip


def test_the_best_is_last() -> None:
    lines = [
        line(0.9, 2.9, 500.0, path="staged", piece_mib=4.0, staging_mib=16.0, kernel_priority=-1),
        line(0.9, 280.0, 9000.0),
        line(0.9, 2.0, 400.0, blocks=2),
        line(0.2, 0.1, 100.0, path="strided"),
        line(0.8, 3.1, 300.0, blocks=1, steps_beside=2),
        line(0.5, 1.0, 1.0, to_host=False),
    ]
    rows = page_table.tuned(lines)["spill"]
    assert [row[0] for row in rows] == [
        "kernel, 8 x 1024", "strided", "kernel, 1 x 1024", "staged, 4 of 16 MiB, 8 x 1024", "kernel, 2 x 1024",
    ]  # fmt: skip
    assert [row[6] for row in rows[-3:]] == ["3.1 % *", "2.9 %", "2.0 %"] and rows[-2][2] == "0, -1"
    assert page_table.shortfall(lines[0]) == 0 < page_table.shortfall(lines[3])
    text = "\n".join(report._page_tune(lines))
    assert text.index("Spill, best last") < text.index("Restore, best last")


def test_every_way_is_tried_once() -> None:
    ways = [*page_tune.kernels(), *page_tune.stagings()]
    assert len(set(ways)) == len(ways) < 64
    assert {way.path for way in ways} == {"kernel", "staged"}
    page_bytes = page_tune.GROUPS * page_tune.LAYERS * page_tune.ROW_BYTES[0] * 64
    rings = {way.staging.ring(page_bytes) for way in ways if way.path == "staged"}
    assert len({ring.pages / ring.parts for ring in rings}) == 5, "pieces that are cut alike are no choice"
    assert Way("staged").staging in {way.staging for way in ways}
