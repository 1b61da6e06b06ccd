"""What a decode step beside page copies loses while they run, and all steps together for every byte moved."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .decode_load import DecodeLoad

GIB = 1 << 30
GATE_CYCLES = 20_000_000
"""About 10 ms: copies and steps are queued behind it, so that both start at once."""
LEAST_STEPS = 8
"""Copies are repeated until they cover about so many steps."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One comparison. A step counts as beside the copies if it ended before they did; `steps_beside` did, at least.

    us_per_gib: time that the steps lost in all, for the bytes moved meanwhile. A slow copy that disturbs for longer
    is no gain.
    """

    slower_percent: float
    us_per_gib: float
    steps_beside: int
    alone_ms: list[float]
    beside_ms: list[float]
    gb_s_beside: float

    def fields(self) -> dict[str, Any]:
        return asdict(self)


class Beside:
    """Copies on `stream`, steps of `load` on its own; both start behind one gate."""

    def __init__(self, device: torch.device, load: DecodeLoad, stream: torch.cuda.Stream) -> None:
        self._device, self._load, self._stream = device, load, stream
        self._gate_stream, self._gate = torch.cuda.Stream(device), torch.cuda.Event()
        self._copied = torch.cuda.Event(enable_timing=True)

    def _run(self, steps: int, copy: Callable[[], object], launches: int) -> tuple[list[float], float]:
        """Milliseconds of every step, and from the start to the end of the copies."""
        with torch.cuda.stream(self._gate_stream):
            torch.cuda._sleep(GATE_CYCLES)
            self._gate.record()
        self._stream.wait_event(self._gate)
        self._load.enqueue(steps, behind=self._gate)
        for _ in range(launches):
            copy()
        self._copied.record(self._stream)
        ms = self._load.steps_ms()
        torch.cuda.synchronize(self._device)
        return ms, self._load.ms_until(self._copied)

    def loss(self, copy: Callable[[], object], moved: int, copy_ms: float, rounds: int = 2) -> Loss:
        """`copy` issues copies of `moved` bytes on the stream, which take `copy_ms` when nothing runs beside them."""
        step_ms = statistics.mean(self._run(LEAST_STEPS, lambda: None, 0)[0])
        launches = max(1, math.ceil(LEAST_STEPS * step_ms / copy_ms))
        steps = math.ceil(1.3 * launches * copy_ms / step_ms) + 4
        alone, beside, lost, speeds, counts = [], [], [], [], []
        for _ in range(rounds):
            alone.append(statistics.mean(self._run(steps, lambda: None, 0)[0]))
            ms, copies_ms = self._run(steps, copy, launches)
            ends, ended = 0.0, 0
            while ended < steps and ends + ms[ended] <= copies_ms:
                ends += ms[ended]
                ended += 1
            counts.append(ended)
            beside.append(ends / ended if ended else ms[0])
            meanwhile = launches * moved * min(1.0, sum(ms) / copies_ms)
            lost.append((sum(ms) - steps * alone[-1]) * 1e3 / (meanwhile / GIB))
            speeds.append(launches * moved / copies_ms / 1e6)
        slower = statistics.median(beside) / statistics.median(alone) - 1
        return Loss(
            round(100 * slower, 2), round(statistics.median(lost), 1), min(counts),
            [round(ms, 4) for ms in alone], [round(ms, 4) for ms in beside], round(statistics.median(speeds), 2),
        )  # fmt: skip
