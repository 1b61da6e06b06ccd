"""Resolve beside stock's swap-in kernel: one layer, the same requests, tokens and host rows for both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from sglang_hisparse.tier.layout import PAGE

from .bench import Bench, main
from .gather import gather_rows
from .ours import Ours
from .selections import Placement, place, select
from .stock import Stock

PERCENT = (0.0, 5.0, 13.4, 30.0, 100.0)


def time_ours(
    bench: Bench,
    ours: Ours,
    misses: int,
    system: str = "ours",
    evict: Callable[[], object] | None = None,
    **fields: object,
) -> None:
    """Check once (unless the bytes are left out), then time; the counters must say `misses` at every replay.

    `evict` runs before everything that is timed. `system`: ours, as a server does it; oracle, without the bytes;
    resolve alone, which reads all rows itself.
    """
    oracle = system == "oracle"
    launches: dict[str, Callable[[], None]] = {
        "ours": ours.serve,
        "oracle": partial(ours.launch, read_rows=False),
        "resolve alone": ours.launch,
    }
    launch = launches[system]
    ours.poison()
    launch()
    wrong = 0 if oracle else ours.wrong_rows()
    ours.stats.zero_()
    before = ours.reset if evict is None else partial(both, evict, ours.reset)
    times = bench.timer.measure(launch, before)
    batch, k = ours.selection.shape
    wanted = [0, batch * (k - misses) * times.launches, batch * misses * times.launches, 0]
    counted = ours.stats.tolist()
    moved = 0 if oracle else batch * misses * ours.group.row_bytes
    bench.timed(times, moved, system=system, misses=misses, wrong=wrong, exact=counted == wanted, **fields)
    if wrong or counted != wanted:
        raise RuntimeError(f"{wrong} wrong rows; counted {counted}, wanted {wanted}")


def both(first: Callable[[], object], then: Callable[[], object]) -> None:
    """What is done before a timed launch, when it is two things."""
    first()
    then()


def time_stock(bench: Bench, stock: Stock, misses: int, **fields: object) -> None:
    stock.poison()
    stock.launch()
    batch = stock.placement.batch
    wrong, missed = stock.wrong_rows(), stock.missed()
    times = bench.timer.measure(stock.launch, stock.reset)
    moved = batch * misses * stock.row_bytes
    exact = missed == batch * misses
    bench.timed(times, moved, system="stock", misses=misses, wrong=wrong, exact=exact, **fields)
    if wrong or not exact:
        raise RuntimeError(f"stock: {wrong} wrong rows; {missed} misses, wanted {batch * misses}")


def time_gather(bench: Bench, host: torch.Tensor, rows: torch.Tensor, **fields: object) -> None:
    """The gather of exactly the rows that missed; the best of the block counts is the ceiling."""
    source = rows.flatten().to(torch.int32)
    target = torch.randperm(len(source), device=bench.device).to(torch.int32)
    device_rows = torch.empty(len(source), host.shape[1], dtype=torch.uint8, device=bench.device)
    for blocks in bench.sizes.blocks[1:]:
        launch = partial(gather_rows, host, device_rows, source, target, blocks)
        launch()
        times = bench.timer.measure(launch, replays=10)
        bench.timed(times, device_rows.nbytes, system="gather", blocks=blocks, **fields)


def missed_rows(placement: Placement, misses: int) -> torch.Tensor:
    return placement.host_rows(placement.fresh[:, :misses])


def one_batch(bench: Bench, pool: float, row_bytes: int, batch: int) -> None:
    """Both systems, the oracle and the ceiling at all miss rates."""
    sizes, generator = bench.sizes, bench.generator(batch)
    host = bench.pool.rows(sizes.pools[pool], row_bytes)
    placement = place(batch, sizes.k, sizes.hot, sizes.pages, len(host) // PAGE, generator)
    ours, stock = Ours(placement, bench.pool, host, row_bytes), Stock(placement, bench.pool, [host])
    for percent in PERCENT:
        misses = sizes.misses(percent)
        tokens = select(placement, misses, generator)
        ours.choose(tokens)
        stock.choose(tokens)
        where = {
            "pool_gib": pool,
            "row_bytes": row_bytes,
            "batch": batch,
            "percent": percent,
            "hot": sizes.hot,
        }
        name = f"{pool} GiB, {row_bytes} B, batch {batch}, {percent} %"
        for system in ("ours", "oracle", *(["resolve alone"] if ours.swept else [])):
            bench.attempt(f"{system}: {name}", time_ours, bench, ours, misses, system, **where)
        bench.attempt(f"stock: {name}", time_stock, bench, stock, misses, **where)
        if misses:
            rows = missed_rows(placement, misses)
            bench.attempt(f"gather: {name}", time_gather, bench, host, rows, **where)


def all_hits(bench: Bench, hot: int, batch: int) -> None:
    """Ours with other sizes of the hot table, nothing missing."""
    sizes, pool = bench.sizes, min(bench.sizes.pools)
    host = bench.pool.rows(sizes.pools[pool], 656)
    placement = place(batch, sizes.k, hot, sizes.pages, len(host) // PAGE, bench.generator(hot))
    ours = Ours(placement, bench.pool, host, 656)
    ours.choose(select(placement, 0, bench.generator(batch)))
    time_ours(
        bench, ours, 0, kind="all hits", pool_gib=pool, row_bytes=656, batch=batch, percent=0.0, hot=hot
    )


def all_resident(bench: Bench, batch: int) -> None:
    """Ours where every selected page is in HBM."""
    sizes, pool = bench.sizes, min(bench.sizes.pools)
    host = bench.pool.rows(sizes.pools[pool], 656)
    placement = place(batch, sizes.k, sizes.hot, sizes.pages, len(host) // PAGE, bench.generator(batch))
    ours = Ours(placement, bench.pool, host, 656)
    ours.choose(select(placement, 0, bench.generator(batch)))
    ours.make_resident()
    ours.reset()
    ours.launch()
    wrong = int((ours.out != ours.selection).sum())
    ours.stats.zero_()
    times = bench.timer.measure(ours.launch)
    exact = ours.stats.tolist() == [batch * sizes.k * times.launches, 0, 0, 0]
    bench.timed(
        times, 0, kind="all resident", system="ours", batch=batch, wrong=wrong, exact=exact, hot=sizes.hot
    )
    if wrong or not exact:
        raise RuntimeError(f"{wrong} wrong entries, counted {ours.stats.tolist()}")


def run(bench: Bench) -> None:
    sizes = bench.sizes
    for batch in sizes.batches:
        bench.attempt(f"all resident, batch {batch}", all_resident, bench, batch)
        for hot in (sizes.k, sizes.hot * 2, sizes.hot * 8):
            bench.attempt(f"{hot} hot rows, batch {batch}", all_hits, bench, hot, batch)
    for pool in sizes.pools:
        for row_bytes in (656, 1152):
            if (pool, row_bytes) == (24, 1152):
                continue
            for batch in sizes.batches:
                name = f"{pool} GiB, {row_bytes} B, batch {batch}"
                bench.attempt(name, one_batch, bench, pool, row_bytes, batch)
            bench.say(f"{pool} GiB, {row_bytes} B rows: batches {sizes.batches}")


if __name__ == "__main__":
    raise SystemExit(main("resolve", "Resolve beside stock's swap-in kernel.", {"resolve": run}))
