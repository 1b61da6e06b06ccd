"""One index group of four layers, all four layers' bytes: in one launch, and the leader's first, then the followers'.

Stock's counterpart has no group: its leader's swap-in records a plan, and three copies replay it, layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from sglang_hisparse.kernels import resolve
from sglang_hisparse.tier.layout import PAGE

from .bench import Bench, main
from .ours import Ours
from .resolve import both, missed_rows, time_gather, time_ours
from .selections import place, select
from .stock import Stock

LAYERS, ROW_BYTES = 4, 656
PERCENT = (13.4, 30.0, 100.0)


class Split:
    """Ours in several launches: the leader's rows with the list of misses, then the followers' from the list, layer by
    layer. `swept`: the leader's from the list as well."""

    def __init__(self, ours: Ours, swept: bool = False) -> None:
        self.ours, self.batch, self.swept, self.misses = ours, len(ours.request), swept, ours.misses

    def leader(self) -> None:
        self.ours.launch(read_rows=not self.swept, misses=self.misses)
        if self.swept:
            resolve.fetch_listed(self.ours.group, self.misses, self.batch, follows_resolve=True)

    def followers(self) -> None:
        for group in self.ours.groups[1:]:
            resolve.fetch_listed(group, self.misses, self.batch)

    def both(self) -> None:
        self.leader()
        self.followers()

    def before_followers(self) -> None:
        self.ours.reset()
        self.leader()


def time_split(
    bench: Bench,
    ours: Ours,
    misses: int,
    swept: bool = False,
    evict: Callable[[], object] | None = None,
    **fields: object,
) -> None:
    """`evict` runs before everything that is timed."""
    split = Split(ours, swept)
    ours.poison()
    split.both()
    wrong, counted = ours.wrong_rows(), split.misses.count.tolist()
    exact = counted == [misses] * split.batch
    for part, launch, before, planes in (
        ("leader, then followers", split.both, ours.reset, LAYERS),
        ("leader", split.leader, ours.reset, 1),
        ("followers", split.followers, split.before_followers, LAYERS - 1),
    ):
        times = bench.timer.measure(launch, before if evict is None else partial(both, evict, before))
        moved = split.batch * misses * planes * ROW_BYTES
        name = f"{part}, swept" if swept else part
        bench.timed(times, moved, system="ours", part=name, misses=misses, wrong=wrong, exact=exact, **fields)
    if wrong or not exact:
        raise RuntimeError(f"{wrong} wrong rows; misses a request {counted}, wanted {misses}")


def time_stock(bench: Bench, stock: Stock, misses: int, **fields: object) -> None:
    def leader() -> None:
        stock.launch(record_plan=True)

    def everything() -> None:
        leader()
        stock.launch_shared()

    stock.poison()
    everything()
    batch = stock.placement.batch
    wrong, missed = stock.wrong_rows(), stock.missed()
    exact = missed == batch * misses
    for part, launch, planes in (("leader, then followers", everything, LAYERS), ("leader", leader, 1)):
        times = bench.timer.measure(launch, stock.reset)
        moved = batch * misses * planes * ROW_BYTES
        bench.timed(
            times, moved, system="stock", part=part, misses=misses, wrong=wrong, exact=exact, **fields
        )
    if wrong or not exact:
        raise RuntimeError(f"stock: {wrong} wrong rows; {missed} misses, wanted {batch * misses}")


def stock_hosts(bench: Bench, rows: int) -> list[torch.Tensor]:
    """Stock's layout: the rows of one layer after those of another, in the same bytes."""
    size = rows * ROW_BYTES
    return [bench.pool.rows(size, ROW_BYTES, first=layer * size) for layer in range(LAYERS)]


def one_batch(bench: Bench, pool: float, batch: int) -> None:
    sizes, generator = bench.sizes, bench.generator(batch)
    host = bench.pool.rows(sizes.pools[pool], LAYERS * ROW_BYTES)
    placement = place(batch, sizes.k, sizes.hot, sizes.pages, len(host) // PAGE, generator)
    ours = Ours(placement, bench.pool, host, ROW_BYTES, LAYERS)
    stored = Ours(placement, bench.pool, host, ROW_BYTES, LAYERS, stored=True)
    stock = Stock(placement, bench.pool, stock_hosts(bench, len(host)))
    for percent in PERCENT:
        misses = sizes.misses(percent)
        tokens = select(placement, misses, generator)
        ours.choose(tokens)
        stored.choose(tokens)
        stock.choose(tokens)
        where = {"pool_gib": pool, "row_bytes": LAYERS * ROW_BYTES, "batch": batch, "percent": percent}
        name = f"group, {pool} GiB, batch {batch}, {percent} %"
        bench.attempt(
            f"one launch: {name}", time_ours, bench, ours, misses, "resolve alone", part="one launch", **where
        )
        bench.attempt(f"split: {name}", time_split, bench, stored, misses, **where)
        bench.attempt(f"stock: {name}", time_stock, bench, stock, misses, **where)
        rows = missed_rows(placement, misses)
        bench.attempt(f"gather: {name}", time_gather, bench, host, rows, **where)
    bench.say(f"group of {LAYERS} layers, {pool} GiB, batch {batch}")


def run(bench: Bench) -> None:
    pool = max(bench.sizes.pools)
    for batch in (*bench.sizes.batches, bench.sizes.batches[-1] * 2):
        bench.attempt(f"group, batch {batch}", one_batch, bench, pool, batch)


if __name__ == "__main__":
    raise SystemExit(main("groups", "One index group of four layers.", {"groups": run}))
