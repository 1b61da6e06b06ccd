"""This machine's ceilings: empty launches, copies of 1 GiB, and gathers of random host rows by row length and pool."""

from __future__ import annotations

import statistics
import time
from functools import partial

import torch

from sglang_hisparse.tier.host_memory import huge_bytes

from .bench import Bench, main
from .gather import empty, gather_rows
from .pool import GIB, HostBytes

ROWS = (656, 1152, 2624, 4608)


def floors(bench: Bench) -> None:
    """What an event pair costs with nothing and with an empty kernel in between, with both ways to place events."""
    nothing = empty(bench.device)
    nothing()
    given = bench.timer.inside
    for inside in (True, False):
        bench.timer.inside = inside
        where = "in the graph" if inside else "around the graph"
        try:
            for what, launch in (("nothing", lambda: None), ("empty kernel", nothing)):
                bench.timed(bench.timer.measure(launch), 0, kind="floor", what=what, events=where)
        finally:
            bench.timer.inside = given


def copy_speed(bench: Bench, to_host: bool, repeats: int = 6) -> float:
    """GB/s of cudaMemcpyAsync, median."""
    host = bench.pool.buffer[: bench.sizes.copy]
    device = host.to(bench.device)
    target, source = (host, device) if to_host else (device, host)
    speeds = []
    for _ in range(repeats):
        if bench.device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            target.copy_(source, non_blocking=True)
            end.record()
            end.synchronize()
            seconds = start.elapsed_time(end) / 1e3
        else:
            begun = time.perf_counter()
            target.copy_(source)
            seconds = time.perf_counter() - begun
        speeds.append(host.nbytes / seconds / 1e9)
    return statistics.median(speeds)


def gathers(bench: Bench, pool: float, row_bytes: int) -> None:
    host = bench.pool.rows(bench.sizes.pools[pool], row_bytes)
    k, some = bench.sizes.k, bench.sizes.misses(13.4)
    largest = k * 16
    device_rows = torch.empty(largest, row_bytes, dtype=torch.uint8, device=bench.device)
    generator = bench.generator(row_bytes)
    best_of_pool = 0.0
    for count in (some, some * 16, some * 64, k, largest):
        source = torch.randint(len(host), (count,), generator=generator, device=bench.device).to(torch.int32)
        target = torch.randperm(largest, generator=generator, device=bench.device)[:count].to(torch.int32)
        best = 0.0
        for blocks in bench.sizes.blocks:
            launch = partial(gather_rows, host, device_rows, source, target, blocks)
            launch()
            times = bench.timer.measure(launch, replays=10)
            moved = count * row_bytes
            bench.timed(
                times, moved, kind="gather", pool_gib=pool, row_bytes=row_bytes, rows=count, blocks=blocks
            )
            best = max(best, moved / times.median / 1e3)
        best_of_pool = max(best_of_pool, best)
    bench.say(f"gather of {row_bytes} B rows, {pool} GiB: {best_of_pool:.1f} GB/s at best")


def host_pages(bench: Bench, row_bytes: int = 656) -> None:
    """Random rows of a pool in small and in huge host pages: what address translation costs a gather."""
    size, counts = bench.sizes.pools[24] // 2, (bench.sizes.k * 2, bench.sizes.k * 8, bench.sizes.k * 16)
    device_rows = torch.empty(max(counts), row_bytes, dtype=torch.uint8, device=bench.device)
    for huge in (False, True):
        before = huge_bytes()
        pool = HostBytes(size, bench.device, huge)
        share, host = max(0, huge_bytes() - before) / size, pool.rows(size, row_bytes)
        generator = bench.generator(row_bytes)
        for count in counts:
            source = torch.randint(len(host), (count,), generator=generator, device=bench.device)
            target = torch.randperm(count, generator=generator, device=bench.device)
            rows = source.to(torch.int32), target.to(torch.int32)
            for blocks in bench.sizes.blocks:
                launch = partial(gather_rows, host, device_rows, *rows, blocks)
                launch()
                times = bench.timer.measure(launch, replays=10)
                bench.timed(
                    times, count * row_bytes, kind="host pages", huge=huge, in_huge_pages=round(share, 3),
                    pin_s=round(pool.pin_seconds, 1), pool_gib=round(size / GIB, 2), row_bytes=row_bytes, rows=count,
                    blocks=blocks,
                )  # fmt: skip
                bench.say(
                    f"{'huge' if huge else 'small'} pages asked ({share:.0%} huge): {count} rows, {blocks} blocks: "
                    f"{count / times.median:.1f} rows/us"
                )
        pool.close()


def run(bench: Bench) -> None:
    bench.attempt("floors", floors, bench)
    for to_host in (False, True):
        speed = copy_speed(bench, to_host)
        bench.line(kind="copy", to_host=to_host, bytes=bench.sizes.copy, gb_s=round(speed, 2))
        bench.say(f"copy {'to the host' if to_host else 'to the device'}: {speed:.1f} GB/s")
    for row_bytes in ROWS:
        for pool in bench.sizes.pools:
            bench.attempt(f"gather {pool} GiB {row_bytes} B", gathers, bench, pool, row_bytes)
    bench.attempt("host pages", host_pages, bench)


if __name__ == "__main__":
    raise SystemExit(main("ceilings", "This machine's ceilings.", {"ceilings": run}))
