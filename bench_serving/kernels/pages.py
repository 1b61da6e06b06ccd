"""Page copies: speed against the copy ceiling by blocks, pages and groups, and what a decode step beside them loses."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import partial

import torch

from sglang_hisparse.kernels.pages import copy_pages
from sglang_hisparse.tier.layout import PAGE, Group, RowLayout, plan_planes

from .bench import Bench, main
from .ceilings import copy_speed
from .decode_load import DecodeLoad
from .pool import expected_bytes

GROUPS = 8
BLOCKS = (4, 8, 16)
SHAPES = ((1, 656), (1, 1152), (4, 656), (4, 1152))
"""(layers of a group, bytes of a row of one layer)"""


@dataclass
class Copies:
    """A layout of `GROUPS` groups, each in its share of the host buffer, and `pages` random pairs of pages."""

    bench: Bench
    layers: int
    row_bytes: int
    pages: int
    layout: RowLayout = field(init=False)
    pairs: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        bench = self.bench
        share = len(bench.pool.buffer) // GROUPS // 16 * 16
        groups = []
        for index in range(GROUPS):
            layers = tuple(range(index * self.layers, (index + 1) * self.layers))
            rows = [
                torch.empty((1 + self.pages) * PAGE, self.row_bytes, dtype=torch.uint8, device=bench.device)
                for _ in layers
            ]
            planes, width = plan_planes((layer, "latent", r) for layer, r in zip(layers, rows, strict=True))
            groups.append(Group(index, layers, planes, bench.pool.rows(share, width, first=index * share)))
        self.layout = RowLayout.of(groups)
        generator = bench.generator(self.pages)
        host_pages = len(groups[0].host) // PAGE
        device = 1 + torch.randperm(self.pages, generator=generator, device=bench.device)
        host = torch.randperm(host_pages, generator=generator, device=bench.device)[: self.pages]
        self.pairs = torch.stack([device, host], dim=1)

    @property
    def bytes(self) -> int:
        return self.pages * PAGE * GROUPS * self.layers * self.row_bytes

    def copy(self, to_host: bool, blocks: int) -> None:
        copy_pages(self.layout, self.pairs, to_host, blocks)

    def wrong(self, blocks: int) -> int:
        """Rows that a restore, then a spill of other bytes, put down wrongly. The host gets its bytes back."""
        device_rows, host_rows = (
            (self.pairs[:, side].unsqueeze(1) * PAGE + torch.arange(PAGE, device=self.pairs.device)).flatten()
            for side in (0, 1)
        )
        for group in self.layout.groups:
            for plane in group.planes:
                plane.rows.zero_()
        self.copy(False, blocks)
        wrong = 0
        for group in self.layout.groups:
            for plane in group.planes:
                wanted = expected_bytes(
                    group.host, host_rows, self.bench.pool, plane.host_offset, plane.row_bytes
                )
                wrong += int((plane.rows[device_rows] != wanted).any(dim=1).sum())
                plane.rows.bitwise_not_()
        self.copy(True, blocks)
        if self.bench.device.type == "cuda":
            torch.cuda.synchronize()
        for group in self.layout.groups:
            written = group.host[host_rows.cpu()].to(self.pairs.device)
            for plane in group.planes:
                columns = written[:, plane.host_offset : plane.host_offset + plane.row_bytes]
                wrong += int((plane.rows[device_rows] != columns).any(dim=1).sum())
                plane.rows.bitwise_not_()
        self.copy(True, blocks)
        return wrong


def speeds(bench: Bench, ceilings: dict[bool, float], layers: int, row_bytes: int, pages: int) -> None:
    copies = Copies(bench, layers, row_bytes, pages)
    wrong = copies.wrong(8) if pages < 100 else None
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


def slow_down(bench: Bench, copies: Copies, priority: int, rounds: int = 3, steps: int = 50) -> None:
    """How much longer a step takes while copies run without a pause; steps with and without in turn."""
    load = DecodeLoad(bench.device, priority)
    copier = torch.cuda.Stream(bench.device, priority=0)
    load.enqueue(3)
    step_ms = load.step_ms(3)
    for to_host in (False, True):
        for blocks in BLOCKS[:2]:
            copies.copy(to_host, blocks)
            copy_ms = bench.timer.measure(partial(copies.copy, to_host, blocks), replays=2).median / 1e3
            alone, beside, covered = [], [], True
            for _ in range(rounds):
                load.enqueue(steps)
                alone.append(load.step_ms(steps))
                launches = int(1.5 * steps * step_ms / copy_ms) + 2
                with torch.cuda.stream(copier):
                    for _ in range(launches):
                        copies.copy(to_host, blocks)
                load.enqueue(steps)
                beside.append(load.step_ms(steps))
                covered &= not copier.query()
                copier.synchronize()
            slower = statistics.median(beside) / statistics.median(alone) - 1
            bench.line(
                kind="slow-down", to_host=to_host, blocks=blocks, priority=priority, covered=covered,
                alone_ms=[round(ms, 4) for ms in alone], beside_ms=[round(ms, 4) for ms in beside],
                slower_percent=round(100 * slower, 2),
            )  # fmt: skip
            direction = "spill" if to_host else "restore"
            bench.say(f"{direction} at {blocks} blocks beside a step: {100 * slower:.2f} % slower")


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
    if bench.device.type == "cuda":
        copies = Copies(bench, 4, 656, 512)
        for priority in (0, -1):
            bench.attempt(f"slow-down, priority {priority}", slow_down, bench, copies, priority)


if __name__ == "__main__":
    raise SystemExit(main("pages", "Page copies.", {"pages": run}))
