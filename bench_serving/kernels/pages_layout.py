"""Planes and pairs of pages for the page-copy benchmark, and whether the bytes arrive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from sglang_hisparse.tier.layout import PAGE, Group, Plane, RowLayout

from .bench import Bench
from .pool import expected_bytes


@dataclass
class Copies:
    """A layout of `layers` planes, each in its share of the host buffer, and `pages` pairs of pages: at random on both
    sides, or `near`, one behind the other in both tiers."""

    bench: Bench
    layers: int
    row_bytes: int
    pages: int
    near: bool
    layout: RowLayout = field(init=False)
    pairs: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        bench = self.bench
        share = len(bench.pool.buffer) // self.layers // 16 * 16
        planes = [
            Plane(
                layer,
                "latent",
                torch.empty((1 + self.pages) * PAGE, self.row_bytes, dtype=torch.uint8, device=bench.device),
                bench.pool.rows(share, self.row_bytes, first=layer * share),
            )
            for layer in range(self.layers)
        ]
        self.layout = RowLayout.of(Group(plane.layer, (plane,)) for plane in planes)
        generator = torch.Generator().manual_seed(self.pages)
        device, host = torch.arange(self.pages), torch.arange(self.pages)
        if not self.near:
            device = torch.randperm(self.pages, generator=generator)
            host = torch.randperm(len(planes[0].host) // PAGE, generator=generator)[: self.pages]
        self.pairs = torch.stack([1 + device, host], dim=1)  # on the CPU, as the mover has them

    @property
    def bytes(self) -> int:
        return self.pages * PAGE * self.layers * self.row_bytes

    def wrong(self, copy: Callable[[bool], object]) -> int:
        """Rows that `copy` puts down wrongly: a restore, then a spill of other bytes. The host gets its bytes back."""
        rows_of = (self.pairs.unsqueeze(2) * PAGE + torch.arange(PAGE)).transpose(0, 1).flatten(1)
        host_rows = rows_of[1]
        device_rows = rows_of[0].to(self.bench.device)
        for plane in self.layout.planes:
            plane.rows.zero_()
        copy(False)
        wrong = 0
        for plane in self.layout.planes:
            wanted = expected_bytes(plane.host, host_rows.to(self.bench.device), self.bench.pool)
            wrong += int((plane.rows[device_rows] != wanted).any(dim=1).sum())
            plane.rows.bitwise_not_()
        copy(True)
        if self.bench.device.type == "cuda":
            torch.cuda.synchronize()
        for plane in self.layout.planes:
            written = plane.host[host_rows].to(self.bench.device)
            wrong += int((plane.rows[device_rows] != written).any(dim=1).sum())
            plane.rows.bitwise_not_()
        copy(True)
        return wrong
