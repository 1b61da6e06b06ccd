"""What kernels and copy streams count on the device, as the CPU may read it without waiting for the device.

Logs and metrics read `recent()` and `seconds()`: numbers that have arrived by now, which trail the device by one
reading (a log interval). `exact()` waits; it is for /server_info and tests. None of this may decide anything: ranks
would decide differently (see docs/design.md, Order).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

OUTCOMES = ("resident", "hot", "missed", "overflow")
"""Columns of the selection counters, in the order in which resolve adds to them."""

MOST_PENDING = 64
"""Waits whose events are kept until they can be read; beyond it a wait is not timed."""


class SelectionCounters:
    """Selected rows by outcome, int64 [groups, 4] on the KV device.

    Written by resolve (row `g` by group g, `rows[g]`); read here. `rows` keep their addresses, so that captured
    CUDA graphs may add to them.
    """

    def __init__(self, groups: int, device: torch.device) -> None:
        self.values = torch.zeros((groups, len(OUTCOMES)), dtype=torch.int64, device=device)
        self.rows: Sequence[torch.Tensor] = self.values.unbind(0)
        self.resident_aside = 0
        """Rows a group that were selected without resolve, all of them resident. Written by the tier."""
        self._on_cuda = device.type == "cuda"
        self._arrived: list[list[int]] = self.values.tolist()
        self._pending = False
        if self._on_cuda:
            self._pinned = torch.zeros_like(self.values, device="cpu", pin_memory=True)
            self._stream = torch.cuda.Stream(device)
            self._event = torch.cuda.Event()

    def recent(self) -> list[list[int]]:
        """Totals since start, [groups][4]. On CUDA what the copy started by an earlier call brought; starts the next
        copy on a stream of its own, which waits for nothing and which nothing waits for. Never blocks."""
        if not self._on_cuda:
            return self.exact()
        if self._pending and self._event.query():
            self._arrived, self._pending = self._pinned.tolist(), False
        if not self._pending:
            with torch.cuda.stream(self._stream):
                self._pinned.copy_(self.values, non_blocking=True)
                self._event.record(self._stream)
            self._pending = True
        return self._with_aside(self._arrived)

    def exact(self) -> list[list[int]]:
        """Totals since start, [groups][4], behind everything launched on the current stream. Blocks on CUDA."""
        return self._with_aside(self.values.tolist())

    def _with_aside(self, found: list[list[int]]) -> list[list[int]]:
        return [[counts[0] + self.resident_aside, *counts[1:]] for counts in found]


class StallClock:
    """How long forwards waited for page copies, in seconds since start.

    On CUDA two timing events stand around the wait on the forward stream, and are read once both are over: the time
    between them is what the forward stream stood still. On the CPU copies run in program order, so their whole
    duration is measured. Rows that resolve gathers on a miss are part of its kernel and not counted here.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._spare: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block: copies that the CPU runs itself."""
        began = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - began

    def wait(self, forward: torch.cuda.Stream, side: torch.cuda.Stream) -> None:
        """Make `forward` wait for `side`. Does not block the CPU; not inside a graph."""
        self._collect()
        if len(self._pending) >= MOST_PENDING:
            forward.wait_stream(side)
            return
        if self._spare:
            began, ended = self._spare.pop()
        else:
            began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record(forward)
        forward.wait_stream(side)
        ended.record(forward)
        self._pending.append((began, ended))

    def seconds(self) -> float:
        """Total of the waits that are over. Never blocks."""
        self._collect()
        return self._seconds

    def _collect(self) -> None:
        while self._pending and self._pending[0][1].query():
            began, ended = pair = self._pending.popleft()
            self._seconds += began.elapsed_time(ended) / 1e3
            self._spare.append(pair)
