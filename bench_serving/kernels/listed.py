"""Fetches from the list of misses: requests whose host pages lie together, and what is left of a fetch beside compute.

In a server the host pages of a request lie close together, unlike in the sections `resolve` and `groups`, where pages
are anywhere in the pool; and between two steps of a group the other groups are read, so that no translation of a host
address is left. `Evict` reads the host pool at random before everything that is timed here.

Rows that are missed are read in one launch for all layers, from host rows that lie side by side; and apart, layer by
layer: the leader's first, or swept from the list, and then the followers'. Alone, and beside compute.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from sglang_hisparse.tier.layout import PAGE
from sglang_hisparse.tier.listed_fetch import SWEPT_REQUESTS, ListedFetch

from .bench import Bench, main
from .decode_load import DecodeLayers
from .gather import gather_rows
from .groups import LAYERS, ROW_BYTES, time_split
from .ours import Ours
from .resolve import both, time_ours
from .selections import place, select

PERCENT = (13.4, 30.0, 100.0)
CONTEXT_PAGES = 512  # of a request: 32K tokens

LONG_STEP_REQUESTS = 64
"""From so many requests on a layer of the stand-in runs twice: it takes 220 us, a layer of the benchmark model 260 us
with one request, 370 with 32 and 430 with 64."""


EVICTED_ROWS = 1 << 15
"""Rows, most of them in a 64 KiB of host memory of their own, that are read before a timed launch; a GPU's
translations of host addresses reach 1.5 GiB (docs/kernels.md)."""


class Evict:
    """Reads rows all over the host pool, with all SMs."""

    def __init__(self, bench: Bench) -> None:
        self._host = bench.pool.rows(len(bench.pool.buffer), ROW_BYTES)
        generator = bench.generator(5)
        count = min(EVICTED_ROWS, len(self._host))
        self._source = torch.randint(
            len(self._host), (count,), generator=generator, device=bench.device, dtype=torch.int32
        )
        self._target = torch.arange(count, dtype=torch.int32, device=bench.device)
        self._rows = torch.empty(count, ROW_BYTES, dtype=torch.uint8, device=bench.device)
        self._blocks = bench.sizes.blocks[-1]
        self()

    def __call__(self) -> None:
        gather_rows(self._host, self._rows, self._source, self._target, self._blocks)


class Step:
    """Four layers of a decode step: the group's fetch as a server has it, or all planes in resolve.

    `whole` has the host rows of all layers side by side, `stored` layer by layer.
    """

    def __init__(self, whole: Ours, stored: Ours, layers: DecodeLayers) -> None:
        self.whole, self.stored, self._layers = whole, stored, layers
        batch, k = whole.selection.shape
        self._repeats = 1 + (batch >= LONG_STEP_REQUESTS)
        self._fetch = ListedFetch(batch, k, whole.request.device, copy_rows=True)

    def _compute(self, layer: int) -> None:
        for _ in range(self._repeats):
            self._layers.run(layer)

    def alone(self) -> None:
        for layer in range(LAYERS):
            self._compute(layer)

    def one_launch(self) -> None:
        self.whole.launch()
        self.alone()

    def apart(self) -> None:
        ours, fetch = self.stored, self._fetch
        batch = len(ours.request)
        with fetch.beside():
            ours.launch(read_rows=not fetch.sweeps(batch), misses=fetch.misses)
            fetch.start(ours.groups, batch)
        for layer in range(LAYERS):
            fetch.wait(layer)
            self._compute(layer)


def beside_compute(bench: Bench, step: Step, evict: Evict, misses: int, **fields: object) -> None:
    """Microseconds of four layers without a fetch, and with every way of fetching."""
    ways: dict[str, tuple[Ours, Callable[[], None]]] = {
        "compute alone": (step.whole, step.alone), "one launch, compute": (step.whole, step.one_launch),
        "apart, compute": (step.stored, step.apart),
    }  # fmt: skip
    for name, (ours, launch) in ways.items():
        ours.poison()
        launch()
        torch.cuda.synchronize(bench.device)
        wrong = 0 if launch == step.alone else ours.wrong_rows()
        times = bench.timer.measure(launch, partial(both, evict, ours.reset), replays=10)
        bench.timed(times, 0, system="ours", part=name, misses=misses, wrong=wrong, **fields)
        if wrong:
            raise RuntimeError(f"{name}: {wrong} wrong rows")


def one_batch(bench: Bench, batch: int, layers: DecodeLayers | None, evict: Evict) -> None:
    sizes, generator, pool = bench.sizes, bench.generator(batch), max(bench.sizes.pools)
    pages = min(CONTEXT_PAGES, sizes.pages)
    room = bench.pool.rows(sizes.pools[pool], LAYERS * ROW_BYTES)
    host = room[: batch * pages * PAGE]
    placement = place(batch, sizes.k, sizes.hot, pages, len(host) // PAGE, generator, together=True)
    whole = Ours(placement, bench.pool, host, ROW_BYTES, LAYERS)
    stored = Ours(placement, bench.pool, host, ROW_BYTES, LAYERS, stored=True)
    for percent in PERCENT:
        misses = sizes.misses(percent)
        tokens = select(placement, misses, generator)
        whole.choose(tokens)
        stored.choose(tokens)
        where = {"host_gib": round(host.nbytes / 2**30, 2), "batch": batch, "percent": percent}
        name = f"batch {batch}, {percent} %"
        bench.attempt(
            f"one launch: {name}", time_ours, bench, whole, misses, "resolve alone", evict, part="one launch", **where
        )  # fmt: skip
        for swept in (False, True):
            bench.attempt(f"apart: {name}", time_split, bench, stored, misses, swept, evict, **where)
        if layers is not None:
            step = Step(whole, stored, layers)
            bench.attempt(f"compute: {name}", beside_compute, bench, step, evict, misses, **where)
    bench.say(f"listed, batch {batch}; the tier sweeps from {SWEPT_REQUESTS} requests on")


def run(bench: Bench) -> None:
    layers = DecodeLayers(bench.device, LAYERS) if bench.device.type == "cuda" else None
    evict, batches = Evict(bench), bench.sizes.batches
    for batch in (*batches[:-1], batches[-1] // 2, batches[-1], batches[-1] * 2):
        bench.attempt(f"listed, batch {batch}", one_batch, bench, batch, layers, evict)


if __name__ == "__main__":
    raise SystemExit(main("listed", "Fetches from the list of misses.", {"listed": run}))
