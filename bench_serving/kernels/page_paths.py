"""The three paths of a page copy: speed, CPU time of a call, and what a decode step beside it loses."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from sglang_hisparse.kernels.pages import BLOCKS, PATHS, PageCopies, Path

from .bench import Bench
from .decode_load import DecodeLoad
from .pages_layout import Copies
from .timer import Times

LAYERS, GROUPS, ROW_BYTES, PAGES = 4, 16, (656, 1152), (64, 512)
GATE_CYCLES = 20_000_000
"""About 10 ms: copies and steps are queued behind it, so that both start at once."""


@dataclass
class OnStream:
    """One path of one layout; calls run on a stream of its own, as those of the mover do."""

    copies: Copies
    path: Path

    def __post_init__(self) -> None:
        self.device = self.copies.bench.device
        self._paths = PageCopies(self.copies.layout, self.path)
        on_cuda = self.device.type == "cuda"
        pairs = self.copies.pairs.cpu()
        self._pairs = pairs.pin_memory() if on_cuda else pairs
        self.stream = torch.cuda.Stream(self.device) if on_cuda else None

    @property
    def batched(self) -> bool:
        """Whether the driver takes the copies as batches (or a kernel makes them)."""
        engines = self._paths._engines
        if engines is None or self.stream is None:
            return True
        with torch.cuda.stream(self.stream):
            return engines.copy(self._pairs[:1], False)

    def issue(self, to_host: bool) -> None:
        """On the own stream; the caller orders it."""
        with torch.cuda.stream(self.stream):
            self._paths.copy(self._pairs, to_host)

    def call(self, to_host: bool) -> None:
        """In the place of the current stream."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
        self.issue(to_host)
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def times(self, to_host: bool, repeats: int = 4) -> tuple[Times, float]:
        """Microseconds of a call from its first command to the end of its copies, and median ones of the CPU."""
        whole, cpu = [], []
        for _ in range(1 + repeats):  # the first warms up
            begun, issued, us = self._once(to_host)
            whole.append(us)
            cpu.append((issued - begun) * 1e6)
        return Times(tuple(whole[1:]), len(whole)), statistics.median(cpu[1:])

    def _once(self, to_host: bool) -> tuple[float, float, float]:
        if self.stream is None:
            begun = time.perf_counter()
            self.issue(to_host)
            ended = time.perf_counter()
            return begun, ended, (ended - begun) * 1e6
        torch.cuda.synchronize(self.device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(self.stream)
        begun = time.perf_counter()
        self.issue(to_host)
        issued = time.perf_counter()
        end.record(self.stream)
        end.synchronize()
        return begun, issued, start.elapsed_time(end) * 1e3


def speed(bench: Bench, ceilings: dict[bool, float], here: OnStream, check: bool) -> dict[bool, float]:
    """Lines of both directions; returns ms of a call by direction."""
    copies, found = here.copies, {}
    wrong = copies.wrong(here.call) if check else None
    for to_host in (False, True):  # in this order the host keeps its bytes
        times, cpu_us = here.times(to_host)
        found[to_host] = times.median / 1e3
        bench.timed(
            times, copies.bytes, kind="page path", path=here.path, to_host=to_host, pages=copies.pages,
            layers=copies.layers, row_bytes=copies.row_bytes, groups=copies.groups, cpu_us=round(cpu_us, 1),
            of_ceiling=round(copies.bytes / times.median / 1e3 / ceilings[to_host], 4), wrong=wrong,
            batched=here.batched,
        )  # fmt: skip
    if wrong:
        raise RuntimeError(f"{here.path}: {wrong} wrong rows")
    return found


def slow_down(
    bench: Bench,
    load: DecodeLoad,
    priority: int,
    here: OnStream,
    copy_ms: dict[bool, float],
    rounds: int = 3,
    steps: int = 12,
) -> None:
    """How much longer a step takes while copies run without a pause; steps with and without in turn."""
    stream = here.stream
    assert stream is not None
    gate_stream, gate = torch.cuda.Stream(bench.device), torch.cuda.Event()

    def steps_beside(copy: Callable[[], None], launches: int) -> tuple[float, bool]:
        with torch.cuda.stream(gate_stream):
            torch.cuda._sleep(GATE_CYCLES)
            gate.record()
        stream.wait_event(gate)
        load.enqueue(steps, behind=gate)
        for _ in range(launches):
            copy()
        ended = torch.cuda.Event()
        ended.record(stream)
        step_ms = load.step_ms(steps)
        covered = not ended.query()
        torch.cuda.synchronize(bench.device)
        return step_ms, covered

    idle = partial(steps_beside, lambda: None, 0)
    step_ms, _ = idle()
    for to_host in (False, True):
        launches = int(2 * steps * step_ms / copy_ms[to_host]) + 2
        alone, beside, covered = [], [], True
        for _ in range(rounds):
            alone.append(idle()[0])
            slowed, all_along = steps_beside(partial(here.issue, to_host), launches)
            beside.append(slowed)
            covered &= all_along
        slower = statistics.median(beside) / statistics.median(alone) - 1
        copies = here.copies
        bench.line(
            kind="slow-down", path=here.path, to_host=to_host, pages=copies.pages, layers=copies.layers,
            row_bytes=copies.row_bytes, blocks=BLOCKS if here.path == "kernel" else None, priority=priority,
            covered=covered, alone_ms=[round(ms, 4) for ms in alone], beside_ms=[round(ms, 4) for ms in beside],
            slower_percent=round(100 * slower, 2),
        )  # fmt: skip
        direction = "spill" if to_host else "restore"
        bench.say(f"{here.path}, {direction} of {copies.pages} pages: a step is {100 * slower:.2f} % slower")


def all_paths(bench: Bench, ceilings: dict[bool, float]) -> None:
    on_cuda = bench.device.type == "cuda"
    loads = {priority: DecodeLoad(bench.device, priority) for priority in ((0, -1) if on_cuda else ())}
    most = 2 if bench.small else max(PAGES)
    for row_bytes in ROW_BYTES:
        for pages in (1, 2) if bench.small else PAGES:
            copies = Copies(bench, LAYERS, row_bytes, pages, 4 if bench.small else GROUPS)
            for path in PATHS:
                name = f"path {path}, {pages} pages of {LAYERS} x {row_bytes} B"
                bench.attempt(
                    name,
                    _one_path,
                    bench,
                    ceilings,
                    loads,
                    copies,
                    path,
                    row_bytes == ROW_BYTES[0],
                    pages == most,
                )
            bench.say(f"page paths, {pages} pages of {LAYERS} x {row_bytes} B")


def _one_path(
    bench: Bench,
    ceilings: dict[bool, float],
    loads: dict[int, DecodeLoad],
    copies: Copies,
    path: Path,
    short_rows: bool,
    most_pages: bool,
) -> None:
    """Not every combination has a slow-down: few pages only with short rows, high priority only with many of them."""
    here = OnStream(copies, path)
    copy_ms = speed(bench, ceilings, here, check=not most_pages)
    for priority, load in loads.items():
        if (short_rows or most_pages) and (priority == 0 or (short_rows and most_pages)):
            slow_down(bench, load, priority, here, copy_ms)
