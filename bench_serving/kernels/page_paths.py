"""The three paths of a page copy: speed, CPU time of a call, and what a decode step beside it loses."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sglang_hisparse.kernels.pages import PATHS, RESTORE, SPILL, PageCopies, Path, Way

from .bench import Bench
from .beside import Beside
from .decode_load import DecodeLoad
from .pages_layout import Copies
from .timer import Times

LAYERS, GROUPS, ROW_BYTES, PAGES = 4, 16, (656, 1152), (64, 512)
LAYOUTS = ((LAYERS, ROW_BYTES[0]), (LAYERS, ROW_BYTES[1]), (1, ROW_BYTES[0]))
"""(layers of a row group, bytes of a row). A page of one layer is one piece on both sides, so that copy engines alone
need no rows."""


def described(way: Way) -> dict[str, Any]:
    """Fields of a line that tell one way from another."""
    if way.path == "kernel":
        return {"path": way.path, "blocks": way.blocks, "threads": way.threads}
    if way.path == "strided":
        return {"path": way.path}
    staging = way.staging
    return {
        "path": way.path, "blocks": staging.blocks, "threads": staging.threads,
        "piece_mib": staging.piece / (1 << 20), "staging_mib": staging.total / (1 << 20),
        "kernel_priority": staging.priority,
    }  # fmt: skip


@dataclass
class OnStream:
    """Copies of one layout; calls run on a stream of its own, as those of the mover do."""

    copies: Copies
    spill: Way
    restore: Way

    def __post_init__(self) -> None:
        self.device = self.copies.bench.device
        self._pages = PageCopies(self.copies.layout, self.spill, self.restore)
        on_cuda = self.device.type == "cuda"
        pairs = self.copies.pairs.cpu()
        self._pairs = pairs.pin_memory() if on_cuda else pairs
        self.stream = torch.cuda.Stream(self.device) if on_cuda else None

    @property
    def batched(self) -> bool:
        """Whether the driver takes the copies as batches (or a kernel makes them)."""
        with torch.cuda.stream(self.stream):
            return self._pages.copy(self._pairs[:1], False)

    def described(self, to_host: bool) -> dict[str, Any]:
        return described(self.spill if to_host else self.restore)

    def issue(self, to_host: bool) -> None:
        """On the own stream; the caller orders it."""
        with torch.cuda.stream(self.stream):
            self._pages.copy(self._pairs, to_host)

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

    def loss(self, load: DecodeLoad, to_host: bool, copy_ms: float, rounds: int) -> dict[str, Any]:
        """Fields of `beside.Loss`."""
        assert self.stream is not None
        beside = Beside(self.device, load, self.stream)
        return beside.loss(partial(self.issue, to_host), self.copies.bytes, copy_ms, rounds).fields()


def speed(bench: Bench, ceilings: dict[bool, float], here: OnStream, check: bool) -> dict[bool, float]:
    """Lines of both directions; returns ms of a call by direction."""
    copies, found = here.copies, {}
    wrong = copies.wrong(here.call) if check else None
    for to_host in (False, True):  # in this order the host keeps its bytes
        times, cpu_us = here.times(to_host)
        found[to_host] = times.median / 1e3
        bench.timed(
            times, copies.bytes, kind="page path", to_host=to_host, pages=copies.pages, layers=copies.layers,
            row_bytes=copies.row_bytes, groups=copies.groups, cpu_us=round(cpu_us, 1), wrong=wrong,
            of_ceiling=round(copies.bytes / times.median / 1e3 / ceilings[to_host], 4),
            batched=here.batched, **here.described(to_host),
        )  # fmt: skip
    if wrong:
        raise RuntimeError(f"{here.spill.path}: {wrong} wrong rows")
    return found


def slow_down(
    bench: Bench, load: DecodeLoad, priority: int, here: OnStream, copy_ms: dict[bool, float]
) -> None:
    """How much longer a step takes beside copies; steps with and without in turn."""
    copies = here.copies
    for to_host in (False, True):
        loss = here.loss(load, to_host, copy_ms[to_host], rounds=3)
        bench.line(
            kind="slow-down", to_host=to_host, pages=copies.pages, layers=copies.layers, row_bytes=copies.row_bytes,
            priority=priority, **here.described(to_host), **loss,
        )  # fmt: skip
        bench.say(
            f"{here.spill.path}, {'spill' if to_host else 'restore'} of {copies.pages} pages: a step is "
            f"{loss['slower_percent']:.2f} % slower, {loss['us_per_gib']:.0f} us for every GiB"
        )


def all_paths(bench: Bench, ceilings: dict[bool, float]) -> None:
    on_cuda = bench.device.type == "cuda"
    loads = {priority: DecodeLoad(bench.device, priority) for priority in ((0, -1) if on_cuda else ())}
    most = 2 if bench.small else max(PAGES)
    for layers, row_bytes in LAYOUTS:
        groups = (4 if bench.small else GROUPS) * LAYERS // layers
        for pages in (1, 2) if bench.small else PAGES:
            copies = Copies(bench, layers, row_bytes, pages, groups)
            for path in PATHS:
                name = f"path {path}, {pages} pages of {layers} x {row_bytes} B"
                short = (layers, row_bytes) == LAYOUTS[0]
                bench.attempt(name, _one_path, bench, ceilings, loads, copies, path, short, pages == most)
            bench.say(f"page paths, {pages} pages of {layers} x {row_bytes} B")


def _one_path(
    bench: Bench,
    ceilings: dict[bool, float],
    loads: dict[int, DecodeLoad],
    copies: Copies,
    path: Path,
    short_rows: bool,
    most_pages: bool,
) -> None:
    """With a server's sizes where it takes this path.

    Not every combination has a slow-down: few pages only with short rows, high priority only with many of them.
    """
    spill, restore = (way if way.path == path else Way(path) for way in (SPILL, RESTORE))
    here = OnStream(copies, spill, restore)
    copy_ms = speed(bench, ceilings, here, check=not most_pages)
    for priority, load in loads.items():
        if (short_rows or most_pages) and (priority == 0 or (short_rows and most_pages)):
            slow_down(bench, load, priority, here, copy_ms)
