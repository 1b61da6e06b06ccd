"""Which bytes the copy engines move for a list of pages: addresses and sizes, computed on the CPU.

Pages are taken in order of their host page, so that neighbours become one copy (a *run*). Nothing here touches the
memory that it names; kernels/engines.py issues the copies.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from sglang_hisparse.tier.layout import PAGE, RowLayout

RECT = ("target", "source", "target pitch", "source pitch", "width", "height")
"""Columns of a rectangle: `height` rows of `width` bytes, `pitch` bytes from one to the next."""


def in_order(pairs: torch.Tensor) -> torch.Tensor:
    """Pairs int [n, 2] of (device page, host page) on the CPU -> int64 [m, 2] by host page, negative ones left out."""
    pairs = pairs.to(torch.int64)
    pairs = pairs[(pairs >= 0).all(dim=1)]
    return pairs[torch.argsort(pairs[:, 1], stable=True)]


def runs(pages: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """First row and number of rows of every run of `pages` int64 [n, columns], as int64 [runs] each.

    In a run every column counts up by one from row to row; a run does not cross a multiple of `most` rows.
    """
    begins = torch.arange(len(pages)) % most == 0
    begins[1:] |= (pages[1:] != pages[:-1] + 1).any(dim=1)
    first = begins.nonzero().flatten()
    return first, torch.diff(first, append=torch.tensor([len(pages)]))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of a copy that goes through one half of the staging at once: ranges of pairs and of copies."""

    pairs: slice
    copies: slice


@dataclass(frozen=True, slots=True)
class StagedPlan:
    """Copies between host pages and staging slots; slot of pair i = i modulo the number of slots.

    pairs    int64 [n, 2] (device page, staging slot): what the kernel copies
    host     int64 [c] addresses in the host pool; staging: those in the staging, of the same `sizes`
    chunks   in order; chunk i uses half i % 2
    """

    pairs: torch.Tensor
    host: torch.Tensor
    staging: torch.Tensor
    sizes: torch.Tensor
    chunks: list[Chunk]


class Addresses:
    """Addresses and sizes of the planes and host rows of a layout, on the CPU."""

    def __init__(self, layout: RowLayout) -> None:
        groups = layout.groups
        self.host = torch.tensor([group.host.data_ptr() for group in groups])
        self.page_bytes = torch.tensor([PAGE * group.host_row_bytes for group in groups])
        table = torch.cat([group.plane_table for group in groups])
        counts = torch.tensor([len(group.planes) for group in groups])
        self._plane, self._row_bytes = table[:, 0], table[:, 1]
        self._plane_host = self.host.repeat_interleave(counts) + table[:, 2]
        self._pitch = (self.page_bytes // PAGE).repeat_interleave(counts)

    def staged(self, pairs: torch.Tensor, staging: torch.Tensor, slots: int) -> StagedPlan:
        """Plan for `pairs` (see `in_order`) through `slots` staging slots, an even number: two halves.

        `staging` int64 [groups]: address of slot 0 of each group's buffer.
        """
        half = slots // 2
        first, length = runs(pairs[:, 1:], half)
        slot = torch.arange(len(pairs)) % slots

        def at(base: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
            return (base + pages[first].unsqueeze(1) * self.page_bytes).flatten()

        groups, total = len(self.host), len(pairs)
        edges = torch.searchsorted(first, torch.arange(0, total + half, half).clamp_(max=total)).tolist()
        chunks = [
            Chunk(slice(i * half, min((i + 1) * half, total)), slice(begin * groups, end * groups))
            for i, (begin, end) in enumerate(itertools.pairwise(edges))
        ]
        return StagedPlan(
            pairs=torch.stack([pairs[:, 0], slot], dim=1),
            host=at(self.host, pairs[:, 1]),
            staging=at(staging, slot),
            sizes=(length.unsqueeze(1) * self.page_bytes).flatten(),
            chunks=chunks,
        )

    def rects(self, pairs: torch.Tensor, to_host: bool) -> torch.Tensor:
        """Rectangles int64 [runs * planes, 6] (columns of `RECT`) straight between planes and host rows.

        Rows that follow each other without a gap on both sides become one long row.
        """
        first, length = runs(pairs, max(1, len(pairs)))
        device = self._plane + (pairs[first, :1] * PAGE) * self._row_bytes
        host = self._plane_host + (pairs[first, 1:] * PAGE) * self._pitch
        height = (length * PAGE).unsqueeze(1).expand_as(device)
        width, pitch = self._row_bytes.expand_as(device), self._pitch.expand_as(device)
        flat = width == pitch
        width, height = torch.where(flat, width * height, width), torch.where(flat, 1, height)
        device_pitch = torch.where(flat, width, self._row_bytes)
        host_pitch = torch.where(flat, width, pitch)
        sides = (
            (host, device, host_pitch, device_pitch) if to_host else (device, host, device_pitch, host_pitch)
        )
        return torch.stack([*sides, width, height], dim=-1).view(-1, len(RECT))
