"""Page copies: speed against the copy ceiling, CPU time of a call, and what a decode step beside them loses."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sglang_hisparse.kernels.pages import PageCopies

from .bench import Bench, main
from .beside import Beside
from .ceilings import copy_speed
from .decode_load import DecodeLoad
from .pages_layout import Copies
from .timer import Times

LAYERS, ROW_BYTES, PAGES = 64, (656, 1152), (64, 512)


@dataclass
class OnStream:
    """Copies of one layout; calls run on a stream of its own, as those of the mover do."""

    copies: Copies

    def __post_init__(self) -> None:
        self.device = self.copies.bench.device
        self._pages = PageCopies(self.copies.layout)
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    @property
    def batched(self) -> bool:
        """Whether the driver takes the copies as batches."""
        with torch.cuda.stream(self.stream):
            return self._pages.copy(self.copies.pairs[:1], False)

    def issue(self, to_host: bool) -> None:
        """On the own stream; the caller orders it."""
        with torch.cuda.stream(self.stream):
            self._pages.copy(self.copies.pairs, to_host)

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


def one(
    bench: Bench, ceilings: dict[bool, float], loads: dict[int, DecodeLoad], copies: Copies, check: bool
) -> None:
    """Lines of both directions: speed, and with loads of each stream priority how much longer their steps take."""
    here = OnStream(copies)
    where = {
        "pages": copies.pages,
        "row_bytes": copies.row_bytes,
        "layers": copies.layers,
        "near": copies.near,
    }
    wrong = copies.wrong(here.call) if check else None
    copy_ms = {}
    for to_host in (False, True):  # in this order the host keeps its bytes
        times, cpu_us = here.times(to_host)
        copy_ms[to_host] = times.median / 1e3
        bench.timed(
            times, copies.bytes, kind="page copies", to_host=to_host, cpu_us=round(cpu_us, 1), wrong=wrong,
            of_ceiling=round(copies.bytes / times.median / 1e3 / ceilings[to_host], 4), batched=here.batched, **where,
        )  # fmt: skip
    if wrong:
        raise RuntimeError(f"{wrong} wrong rows")
    for priority, load in loads.items():
        for to_host in (False, True):
            loss = here.loss(load, to_host, copy_ms[to_host], rounds=3)
            bench.line(kind="slow-down", to_host=to_host, priority=priority, **where, **loss)


def run(bench: Bench) -> None:
    ceilings = {to_host: copy_speed(bench, to_host) for to_host in (True, False)}
    bench.line(
        kind="copy ceiling", to_host_gb_s=round(ceilings[True], 2), to_device_gb_s=round(ceilings[False], 2)
    )
    on_cuda = bench.device.type == "cuda"
    loads = {priority: DecodeLoad(bench.device, priority) for priority in ((0, -1) if on_cuda else ())}
    few, many = (1, 2) if bench.small else PAGES
    for row_bytes in ROW_BYTES:
        for near in (False, True):
            for pages in (few, many):
                copies = Copies(bench, 4 if bench.small else LAYERS, row_bytes, pages, near)
                name = f"{pages} pages of {row_bytes} B rows, {'neighbours' if near else 'scattered'}"
                beside = loads if pages == many else {}
                bench.attempt(name, one, bench, ceilings, beside, copies, check=pages == few)
        bench.say(f"page copies, rows of {row_bytes} B")


if __name__ == "__main__":
    raise SystemExit(main("pages", "Page copies.", {"pages": run}))
