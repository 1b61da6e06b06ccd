"""Fetches from the list of misses: requests whose host pages lie together, and what is left of a fetch beside compute.

In a server the host pages of a request lie close together, unlike in the sections `resolve` and `groups`, where pages
are anywhere in the pool. Rows that are missed are read in one launch for all layers; apart, the leader's first and
the followers' in parts; and apart with the leader's rows swept, request after request. The leader's rows alone are read
from host rows of the group, and from host rows of their own, which span a quarter of the memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sglang_hisparse.tier import listed_fetch
from sglang_hisparse.tier.layout import PAGE
from sglang_hisparse.tier.listed_fetch import ListedFetch

from .bench import Bench, main
from .decode_load import DecodeLayers
from .groups import LAYERS, ROW_BYTES, Split, time_split
from .ours import Ours
from .resolve import time_gather, time_ours
from .selections import place, select

PERCENT = (13.4, 30.0, 100.0)
CONTEXT_PAGES = 512  # of a request: 32K tokens

LONG_STEP_REQUESTS = 64
"""From so many requests on a layer of the stand-in runs twice: it takes 220 us, a layer of the benchmark model 260 us
with one request, 370 with 32 and 430 with 64."""


class Step:
    """Four layers of a decode step: the group's fetch as a server has it, or all planes in resolve."""

    def __init__(self, ours: Ours, layers: DecodeLayers) -> None:
        self._ours, self._layers = ours, layers
        self._repeats = 1 + (len(ours.request) >= LONG_STEP_REQUESTS)
        batch, k = ours.selection.shape
        self._fetch = ListedFetch(batch, k, ours.request.device, copy_rows=True)

    def _compute(self, layer: int) -> None:
        for _ in range(self._repeats):
            self._layers.run(layer)

    def alone(self) -> None:
        for layer in range(LAYERS):
            self._compute(layer)

    def one_launch(self) -> None:
        self._ours.launch()
        self.alone()

    def apart(self) -> None:
        ours, fetch = self._ours, self._fetch
        batch = len(ours.request)
        ours.launch(planes=fetch.planes(ours.group, batch), misses=fetch.misses)
        fetch.start(ours.group, batch)
        for layer in range(LAYERS):
            if layer:
                fetch.wait(layer)
            self._compute(layer)


def beside_compute(bench: Bench, ours: Ours, layers: DecodeLayers, misses: int, **fields: object) -> None:
    """Microseconds of four layers without a fetch, and with both ways of fetching."""
    step = Step(ours, layers)
    ways: dict[str, Callable[[], None]] = {
        "compute alone": step.alone, "one launch, compute": step.one_launch, "apart, compute": step.apart,
    }  # fmt: skip
    for name, launch in ways.items():
        ours.poison()
        launch()
        torch.cuda.synchronize(bench.device)
        wrong = 0 if launch == step.alone else ours.wrong_rows()
        times = bench.timer.measure(launch, ours.reset, replays=10)
        bench.timed(times, 0, system="ours", part=name, misses=misses, wrong=wrong, **fields)
        if wrong:
            raise RuntimeError(f"{name}: {wrong} wrong rows")


def own_rows(bench: Bench, batch: int) -> None:
    """The leader's rows where a host row holds nothing else, in a pool of just these requests."""
    sizes, generator = bench.sizes, bench.generator(batch)
    pages = min(CONTEXT_PAGES, sizes.pages)
    size = batch * pages * PAGE * ROW_BYTES
    host = bench.pool.rows(size, ROW_BYTES)
    placement = place(batch, sizes.k, sizes.hot, pages, len(host) // PAGE, generator, together=True)
    ours = Ours(placement, bench.pool, host, ROW_BYTES)
    for percent in PERCENT:
        misses = sizes.misses(percent)
        ours.choose(select(placement, misses, generator))
        for swept in (False, True):
            split = Split(ours, swept)
            ours.poison()
            split.leader()
            wrong = ours.wrong_rows()
            bench.timed(
                bench.timer.measure(split.leader, ours.reset), batch * misses * ROW_BYTES, system="ours",
                part="leader, own host rows" + ", swept" * swept, pool_gib=round(size / 2**30, 2), batch=batch,
                percent=percent, misses=misses, wrong=wrong,
            )  # fmt: skip
            if wrong:
                raise RuntimeError(f"{wrong} wrong rows")


def one_batch(bench: Bench, batch: int, layers: DecodeLayers | None) -> None:
    sizes, generator, pool = bench.sizes, bench.generator(batch), max(bench.sizes.pools)
    host = bench.pool.rows(sizes.pools[pool], LAYERS * ROW_BYTES)
    pages = min(CONTEXT_PAGES, sizes.pages)
    placement = place(batch, sizes.k, sizes.hot, pages, len(host) // PAGE, generator, together=True)
    ours = Ours(placement, bench.pool, host, ROW_BYTES, LAYERS)
    for percent in PERCENT:
        misses = sizes.misses(percent)
        ours.choose(select(placement, misses, generator))
        where = {"pool_gib": pool, "batch": batch, "percent": percent}
        name = f"batch {batch}, {percent} %"
        bench.attempt(
            f"one launch: {name}", time_ours, bench, ours, misses, "resolve alone", part="one launch", **where
        )
        for swept in (False, True):
            bench.attempt(f"apart: {name}", time_split, bench, ours, misses, swept, **where)
        rows = placement.host_rows(placement.fresh[:, :misses])
        bench.attempt(f"gather: {name}", time_gather, bench, host, rows, part="", **where)
        if layers is not None:
            bench.attempt(f"compute: {name}", beside_compute, bench, ours, layers, misses, **where)
    bench.attempt(f"own host rows, batch {batch}", own_rows, bench, batch)
    bench.say(f"listed, batch {batch}; the tier sweeps from {listed_fetch.SWEPT_REQUESTS} requests on")


def run(bench: Bench) -> None:
    layers = DecodeLayers(bench.device, LAYERS) if bench.device.type == "cuda" else None
    batches = bench.sizes.batches
    for batch in (*batches[:-1], batches[-1] // 2, batches[-1], batches[-1] * 2):
        bench.attempt(f"listed, batch {batch}", one_batch, bench, batch, layers)


if __name__ == "__main__":
    raise SystemExit(main("listed", "Fetches from the list of misses.", {"listed": run}))
