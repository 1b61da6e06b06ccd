"""The choices our kernels leave open: blocks a request for resolve, blocks for fetches from the list."""

from __future__ import annotations

from functools import partial

from sglang_hisparse.kernels import resolve
from sglang_hisparse.tier.layout import PAGE

from .bench import Bench, main
from .groups import LAYERS, ROW_BYTES
from .listed import CONTEXT_PAGES, Evict
from .ours import Ours
from .selections import place, select

PERCENT = (0.0, 13.4, 100.0)
REQUEST_BLOCKS = (1, 2, 4, 8)
SHAPES = tuple(
    resolve.FetchShape(*shape)
    for shape in (
        (2, 1024, True), (4, 1024, False), (4, 1024, True), (8, 1024, True), (16, 512, False), (32, 512, False),
        (132, 64, False), (132, 128, False),
    )
)  # fmt: skip
"""Of fetches from the list"""


def resolve_blocks(bench: Bench, pool: float, batch: int) -> None:
    sizes, generator = bench.sizes, bench.generator(batch)
    host = bench.pool.rows(sizes.pools[pool], 656)
    placement = place(batch, sizes.k, sizes.hot, sizes.pages, len(host) // PAGE, generator)
    ours = Ours(placement, bench.pool, host, 656)
    for percent in PERCENT:
        misses = sizes.misses(percent)
        ours.choose(select(placement, misses, generator))
        for blocks in REQUEST_BLOCKS:
            ours.reset()
            ours.launch(blocks=blocks)
            times = bench.timer.measure(partial(ours.launch, blocks=blocks), ours.reset, replays=10)
            bench.timed(
                times, batch * misses * 656, kind="blocks a request", pool_gib=pool, batch=batch, percent=percent,
                blocks=blocks, chosen=blocks == resolve.blocks_for(batch),
            )  # fmt: skip


def listed_shapes(bench: Bench, batch: int, evict: Evict) -> None:
    """The rows of one layer, as a server stores them."""
    sizes, generator, pool = bench.sizes, bench.generator(batch), max(bench.sizes.pools)
    pages = min(CONTEXT_PAGES, sizes.pages)
    host = bench.pool.rows(sizes.pools[pool], LAYERS * ROW_BYTES)[: batch * pages * PAGE]
    placement = place(batch, sizes.k, sizes.hot, pages, len(host) // PAGE, generator, together=True)
    ours = Ours(placement, bench.pool, host, ROW_BYTES, LAYERS, stored=True)
    plane = ours.group.planes[0]
    for percent in PERCENT[1:]:
        misses = sizes.misses(percent)
        ours.choose(select(placement, misses, generator))
        ours.reset()
        ours.launch(misses=ours.misses)
        for shape in SHAPES:
            launch = partial(resolve.fetch_listed, ours.group, ours.misses, batch, shape=shape)
            launch()
            bench.timed(
                bench.timer.measure(launch, evict, replays=10), batch * misses * plane.row_bytes,
                kind="listed rows of a layer, translations cold", batch=batch, percent=percent,
                pool_gib=round(plane.host.nbytes / 2**30, 2), chosen=shape == resolve.LISTED,
                blocks=f"{shape.blocks} x {shape.threads}{', pairs' * shape.paired}",
            )  # fmt: skip


def run(bench: Bench) -> None:
    batches = bench.sizes.batches
    for pool in (min(bench.sizes.pools), max(bench.sizes.pools)):
        for batch in batches:
            bench.attempt(f"blocks a request, batch {batch}", resolve_blocks, bench, pool, batch)
    evict = Evict(bench)
    for batch in (batches[0], batches[-1] // 2, batches[-1]):
        bench.attempt(f"listed rows, batch {batch}", listed_shapes, bench, batch, evict)


if __name__ == "__main__":
    raise SystemExit(main("tune", "Blocks of our kernels.", {"tune": run}))
