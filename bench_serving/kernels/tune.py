"""The choices our kernels leave open: blocks a request for resolve, blocks for fetches from the list."""

from __future__ import annotations

from functools import partial

from sglang_hisparse.kernels import resolve
from sglang_hisparse.tier.layout import PAGE

from .bench import Bench, main
from .groups import LAYERS, ROW_BYTES, Split
from .ours import Ours
from .selections import place, select

PERCENT = (0.0, 13.4, 100.0)
REQUEST_BLOCKS = (1, 2, 4, 8)
LISTED_BLOCKS = (4, 8, 16, 32, 64)


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


def follower_blocks(bench: Bench, batch: int) -> None:
    sizes, generator, pool = bench.sizes, bench.generator(batch), max(bench.sizes.pools)
    host = bench.pool.rows(sizes.pools[pool], LAYERS * ROW_BYTES)
    placement = place(batch, sizes.k, sizes.hot, sizes.pages, len(host) // PAGE, generator)
    ours = Ours(placement, bench.pool, host, ROW_BYTES, LAYERS)
    split = Split(ours)
    for percent in PERCENT[1:]:
        misses = sizes.misses(percent)
        ours.choose(select(placement, misses, generator))
        split.before_followers()
        for blocks in LISTED_BLOCKS:
            launch = partial(resolve.fetch_listed, ours.group, split.misses, batch, 1, LAYERS, blocks=blocks)
            launch()
            bench.timed(
                bench.timer.measure(launch, split.before_followers, replays=10),
                batch * misses * (LAYERS - 1) * ROW_BYTES,
                kind="blocks for followers", pool_gib=pool, batch=batch, percent=percent, blocks=blocks,
            )  # fmt: skip


def run(bench: Bench) -> None:
    batches = bench.sizes.batches
    for pool in (min(bench.sizes.pools), max(bench.sizes.pools)):
        for batch in batches:
            bench.attempt(f"blocks a request, batch {batch}", resolve_blocks, bench, pool, batch)
    for batch in (batches[0], batches[-2], batches[-1]):
        bench.attempt(f"blocks for followers, batch {batch}", follower_blocks, bench, batch)


if __name__ == "__main__":
    raise SystemExit(main("tune", "Blocks of our kernels.", {"tune": run}))
