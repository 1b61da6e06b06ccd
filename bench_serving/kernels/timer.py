"""GPU time of one launch, in a graph, with cold L2."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

Launch = Callable[[], object]

FLUSH_BYTES = 128 << 20
"""Written before each timed launch: more than twice the 50 MB of an H200's L2."""

BUDGET_US, FEWEST = 60_000, 5
"""Long launches are replayed less often: up to this much time in all, but so often at least."""


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds of the timed replays, and how often `launch` ran for them (the warm-up too)."""

    us: tuple[float, ...]
    launches: int

    @property
    def median(self) -> float:
        return statistics.median(self.us)

    def as_dict(self) -> dict[str, float]:
        ordered = sorted(self.us)
        p90 = ordered[min(len(ordered) - 1, round(0.9 * (len(ordered) - 1)))]
        return {"us_min": round(ordered[0], 2), "us": round(self.median, 2), "us_p90": round(p90, 2)}


class Timer:
    """Captures and replays. `inside`: events are nodes of the graph, so that no launch latency is in the time.

    On the CPU the launches run as they are, and the times mean nothing.
    """

    def __init__(self, device: torch.device, replays: int = 20, warm: int = 3) -> None:
        self.device, self.replays, self.warm, self.inside = device, replays, warm, True
        if device.type == "cuda":
            self._flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=device)
            self._stream = torch.cuda.Stream(device)
            self._start, self._end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
            self.inside = self._events_work_inside()

    def _events_work_inside(self) -> bool:
        """Whether events that are nodes of a graph give the time of something known to take 20 us at least."""
        self._flush.zero_()
        try:
            return min(self.measure(self._flush.zero_, replays=3).us) > 10
        except RuntimeError as error:
            print(f"events stay outside the graphs: {error}")
            return False

    def measure(self, launch: Launch, before: Launch | None = None, *, replays: int | None = None) -> Times:
        """Time `launch`, which must have run once already (builds, first-use work). `before` is not timed.

        Neither may allocate what it keeps or synchronise. Everything runs on a stream of the timer, behind what is
        on the current one; the call returns when all replays are done.
        """
        replays = self.replays if replays is None else replays
        if self.device.type != "cuda":
            return self._measure_cpu(launch, before, replays)
        torch.cuda.synchronize(self.device)
        with torch.cuda.stream(self._stream):
            if self.inside:
                whole = self._capture(before, self._flush.zero_, self._start.record, launch, self._end.record)
                replay = partial(self._replay_inside, whole)
            else:
                first, timed = self._capture(before, self._flush.zero_), self._capture(launch)
                replay = partial(self._replay_outside, first, timed)
            longest = max(replay() for _ in range(self.warm))
            replays = max(min(replays, int(BUDGET_US / max(longest, 1.0))), min(replays, FEWEST))
            times = tuple(replay() for _ in range(replays))
        return Times(times, self.warm + replays)

    def _capture(self, *steps: Launch | None) -> torch.cuda.CUDAGraph:
        # Not torch.cuda.graph: it collects garbage and empties the allocator's cache each time.
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for step in steps:
                if step is not None:
                    step()
        finally:
            graph.capture_end()
        return graph

    def _replay_inside(self, graph: torch.cuda.CUDAGraph) -> float:
        graph.replay()
        self._stream.synchronize()
        return self._start.elapsed_time(self._end) * 1e3

    def _replay_outside(self, first: torch.cuda.CUDAGraph, timed: torch.cuda.CUDAGraph) -> float:
        first.replay()
        self._start.record()
        timed.replay()
        self._end.record()
        self._stream.synchronize()
        return self._start.elapsed_time(self._end) * 1e3

    def _measure_cpu(self, launch: Launch, before: Launch | None, replays: int) -> Times:
        times = []
        for _ in range(replays):
            if before is not None:
                before()
            start = time.perf_counter()
            launch()
            times.append((time.perf_counter() - start) * 1e6)
        return Times(tuple(times), replays)
