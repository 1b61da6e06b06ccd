"""Groups, planes and pairs of pages for the page-copy benchmarks, and whether the bytes arrive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from sglang_hisparse.kernels.pages import copy_pages
from sglang_hisparse.tier.layout import PAGE, Group, RowLayout, plan_planes

from .bench import Bench
from .pool import expected_bytes

GROUPS = 8


@dataclass
class Copies:
    """A layout of `groups` groups, each in its share of the host buffer, and `pages` random pairs of pages."""

    bench: Bench
    layers: int
    row_bytes: int
    pages: int
    groups: int = GROUPS
    layout: RowLayout = field(init=False)
    pairs: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        bench = self.bench
        share = len(bench.pool.buffer) // self.groups // 16 * 16
        groups = []
        for index in range(self.groups):
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
        return self.pages * PAGE * self.groups * self.layers * self.row_bytes

    def copy(self, to_host: bool, blocks: int) -> None:
        copy_pages(self.layout, self.pairs, to_host, blocks)

    def wrong(self, copy: Callable[[bool], object]) -> int:
        """Rows that `copy` puts down wrongly: a restore, then a spill of other bytes. The host gets its bytes back."""
        device_rows, host_rows = (
            (self.pairs[:, side].unsqueeze(1) * PAGE + torch.arange(PAGE, device=self.pairs.device)).flatten()
            for side in (0, 1)
        )
        for group in self.layout.groups:
            for plane in group.planes:
                plane.rows.zero_()
        copy(False)
        wrong = 0
        for group in self.layout.groups:
            for plane in group.planes:
                wanted = expected_bytes(
                    group.host, host_rows, self.bench.pool, plane.host_offset, plane.row_bytes
                )
                wrong += int((plane.rows[device_rows] != wanted).any(dim=1).sum())
                plane.rows.bitwise_not_()
        copy(True)
        if self.bench.device.type == "cuda":
            torch.cuda.synchronize()
        for group in self.layout.groups:
            written = group.host[host_rows.cpu()].to(self.pairs.device)
            for plane in group.planes:
                columns = written[:, plane.host_offset : plane.host_offset + plane.row_bytes]
                wrong += int((plane.rows[device_rows] != columns).any(dim=1).sum())
                plane.rows.bitwise_not_()
        copy(True)
        return wrong
