"""Page copies: the kernel against the copy ceiling by blocks, pages and groups; then all paths (page_paths)."""

from __future__ import annotations

from functools import partial

from .bench import Bench, main
from .ceilings import copy_speed
from .page_paths import all_paths
from .pages_layout import Copies

BLOCKS = (4, 8, 16)
SHAPES = ((1, 656), (1, 1152), (4, 656), (4, 1152))
"""(layers of a group, bytes of a row of one layer)"""


def speeds(bench: Bench, ceilings: dict[bool, float], layers: int, row_bytes: int, pages: int) -> None:
    copies = Copies(bench, layers, row_bytes, pages)
    wrong = copies.wrong(partial(copies.copy, blocks=8)) if pages < 100 else None
    for to_host in (False, True):  # in this order the host keeps its bytes
        for blocks in BLOCKS:
            copies.copy(to_host, blocks)
            times = bench.timer.measure(partial(copies.copy, to_host, blocks), replays=6)
            bench.timed(
                times, copies.bytes, kind="copy pages", to_host=to_host, blocks=blocks, pages=pages, layers=layers,
                row_bytes=row_bytes, wrong=wrong,
                of_ceiling=round(copies.bytes / times.median / 1e3 / ceilings[to_host], 4),
            )  # fmt: skip
    if wrong:
        raise RuntimeError(f"{wrong} wrong rows")


def run(bench: Bench) -> None:
    ceilings = {to_host: copy_speed(bench, to_host) for to_host in (True, False)}
    bench.line(
        kind="copy ceiling", to_host_gb_s=round(ceilings[True], 2), to_device_gb_s=round(ceilings[False], 2)
    )
    for layers, row_bytes in SHAPES:
        for pages in (1, 2) if bench.small else (64, 512):
            name = f"{pages} pages, groups of {layers} x {row_bytes} B"
            bench.attempt(name, speeds, bench, ceilings, layers, row_bytes, pages)
        bench.say(f"page copies, groups of {layers} layers of {row_bytes} B rows")
    all_paths(bench, ceilings)


if __name__ == "__main__":
    raise SystemExit(main("pages", "Page copies.", {"pages": run}))
