"""The choices that page copies leave open: blocks of the kernel; pieces and kernel of the staging. For each, speed and
what a decode step beside it loses; then the best of them with few pages and with other priorities."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from sglang_hisparse.kernels.engines import STAGING, Staging
from sglang_hisparse.kernels.pages import Way

from .bench import Bench, main
from .ceilings import copy_speed
from .decode_load import DecodeLoad
from .page_paths import GROUPS, LAYERS, ROW_BYTES, OnStream, described
from .page_table import shortfall
from .pages_layout import Copies

MIB = 1 << 20
FEW, MANY = 64, 512
BUDGET_S = 60.0
FINALISTS = 3
"""Best stagings of each direction that go on."""

KERNELS = [(blocks, threads) for threads in (1024, 512, 256) for blocks in (1, 2, 3, 4, 6, 8)]
GRIDS = (
    (264, 256), (132, 512), (8, 1024), (132, 32), (4, 1024), (2, 1024), (264, 64), (32, 512), (16, 512), (132, 1024),
    (132, 256), (132, 128), (264, 512), (264, 128), (132, 64), (264, 32), (4, 512), (1, 1024),
)  # fmt: skip
"""(blocks, threads) of the kernel of a staging."""
PIECES = (1, 1.5, 8, 24)
"""MiB, beside 4 MiB, which is one page here; what is smaller is a third and half of one."""
RINGS = ((4, 8), (4, 24), (8, 16), (8, 48))
"""(MiB of a piece, MiB of all)"""


def staging(total: float, piece: float, blocks: int, threads: int) -> Way:
    return Way("staged", staging=Staging(int(total * MIB), int(piece * MIB), blocks, threads))


def kernels() -> Iterator[Way]:
    for blocks, threads in KERNELS:
        yield Way("kernel", blocks, threads)


def stagings() -> Iterator[Way]:
    """The more promising first: what the time does not suffice for is left out."""
    yield Way("staged", staging=STAGING)
    for grid in GRIDS:
        if grid != (STAGING.blocks, STAGING.threads):  # the first of all
            yield staging(16, 4, *grid)
    for piece in PIECES:
        for grid in GRIDS[:4]:
            yield staging(min(4 * piece, 48), piece, *grid)
    for piece, total in RINGS:
        yield staging(total, piece, 132, 512)


class Sweep:
    """Lines `page tune`; `found[to_host]` keeps (shortfall, way) of every staging with many pages."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.ceilings = {to_host: copy_speed(bench, to_host) for to_host in (True, False)}
        on_cuda = bench.device.type == "cuda"
        self.loads = {
            priority: DecodeLoad(bench.device, priority) for priority in ((0, -1) if on_cuda else ())
        }
        self.many, self.few = (
            Copies(bench, LAYERS, ROW_BYTES[0], 2 if bench.small else pages, 4 if bench.small else GROUPS)
            for pages in (MANY, FEW)
        )
        self.found: dict[bool, list[tuple[float, Way]]] = {True: [], False: []}
        self._ends = time.perf_counter() + BUDGET_S
        self.left_out = 0

    def one(self, way: Way, copies: Copies, priority: int = 0, check: bool = False) -> None:
        """Both directions, where there is time left."""
        if time.perf_counter() > self._ends:
            self.left_out += 1
            return
        what = f"{described(way)}, {copies.pages} pages"
        self.bench.attempt(what, self._measure, way, copies, priority, check)

    def _measure(self, way: Way, copies: Copies, priority: int, check: bool) -> None:
        here = OnStream(copies, way, way)
        wrong = copies.wrong(here.call) if check else None
        for to_host in (False, True):  # in this order the host keeps its bytes
            times, cpu_us = here.times(to_host, repeats=2)
            line = {
                "kind": "page tune", "to_host": to_host, "pages": copies.pages, "priority": priority,
                "cpu_us": round(cpu_us, 1), "wrong": wrong, **described(way),
                "of_ceiling": round(copies.bytes / times.median / 1e3 / self.ceilings[to_host], 4),
            }  # fmt: skip
            if self.loads:
                line |= here.loss(self.loads[priority], to_host, times.median / 1e3, rounds=2)
            self.bench.timed(times, copies.bytes, **line)
            if way.path == "staged" and copies is self.many and priority == 0:
                self.found[to_host].append((shortfall(line), way))
        if wrong:
            raise RuntimeError(f"{wrong} wrong rows")

    def finalists(self) -> list[Way]:
        """Of both directions, each once."""
        best = []
        for found in self.found.values():
            best += [way for _, way in sorted(found, key=lambda pair: pair[0])[:FINALISTS]]
        return list(dict.fromkeys(best))


def run(bench: Bench) -> None:
    sweep = Sweep(bench)
    ways, staged = list(kernels()), list(stagings())
    if bench.small:
        ways, staged = ways[:2], staged[:2]
    sweep.one(Way("strided"), sweep.few)
    for way in staged:
        sweep.one(way, sweep.many)
    bench.say(f"page tune: {len(staged)} stagings")
    for way in sweep.finalists():
        sweep.one(way, sweep.few, check=True)
        sweep.one(way, sweep.many, priority=-1)
        sooner = replace(way, staging=replace(way.staging, priority=-1))
        for priority in (0, -1):
            sweep.one(sooner, sweep.many, priority)
    bench.say(f"page tune: {len(sweep.finalists())} of them with few pages and with other priorities")
    for way in ways:
        sweep.one(way, sweep.few)
    bench.say(f"page tune: {len(ways)} kernels, {sweep.left_out} measurements left out for time")


if __name__ == "__main__":
    raise SystemExit(main("page_tune", "Page copies: blocks, pieces, priorities.", {"page_tune": run}))
