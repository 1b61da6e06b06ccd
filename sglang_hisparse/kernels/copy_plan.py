"""Which bytes the copy engines move for a list of pages: addresses and sizes, computed on the CPU.

Pages are taken in order of their host page, so that neighbours become one copy (a *run*). Nothing here touches the
memory that it names; kernels/engines.py issues the copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from sglang_hisparse.tier.layout import PAGE, RowLayout

RECT = ("target", "source", "target pitch", "source pitch", "width", "height")
"""Columns of a rectangle: `height` rows of `width` bytes, `pitch` bytes from one to the next."""


def in_order(pairs: torch.Tensor) -> torch.Tensor:
    """Pairs int [n, 2] of (device page, host page) on the CPU -> int64 [m, 2] by host page, negative ones left out."""
    pairs = pairs.to(torch.int64)
    if (pairs < 0).any():
        pairs = pairs[(pairs >= 0).all(dim=1)]
    return pairs[torch.argsort(pairs[:, 1], stable=True)]


def runs(pages: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """First row and number of rows of every run of `pages` int64 [n, columns], as int64 [runs] each.

    In a run every column counts up by one from row to row; a run does not cross a multiple of `most` rows.
    """
    if most == 1:
        return torch.arange(len(pages)), torch.ones(len(pages), dtype=torch.int64)
    rows = pages.numpy()  # small arrays: half the time of torch, and copies wait for it
    begins = np.arange(len(rows)) % most == 0
    for column in rows.T:
        begins[1:] |= np.diff(column) != 1
    first = np.flatnonzero(begins)
    return torch.from_numpy(first), torch.from_numpy(np.diff(first, append=len(rows)))


@dataclass(frozen=True, slots=True)
class Ring:
    """How a staging is cut: chunks of `pages` pages take `turns`; a chunk moves in `parts`, each a range of groups.

    A piece is one part of one chunk: what one kernel and one batch of copies move. Only chunks of one page have
    several parts.
    """

    pages: int
    parts: int
    turns: int

    @property
    def slots(self) -> int:
        """Pages that the staging holds."""
        return self.pages * self.turns


class Piece(NamedTuple):
    """Pairs first .. last - 1 of the groups of part `part`, in turn `turn`; its copies are `copies[:, begin:end]`."""

    first: int
    last: int
    begin: int
    end: int
    part: int
    turn: int


@dataclass(frozen=True, slots=True)
class StagedPlan:
    """Copies between host pages and staging slots; slot of pair i = i modulo the number of slots.

    pairs    int64 [n, 2] (device page, staging slot): what the kernel copies
    copies   int64 [3, c]: address in the host pool, address in the staging, size
    chunks   copies before every chunk, and all
    edges    see `part_edges`
    """

    pairs: torch.Tensor
    copies: torch.Tensor
    ring: Ring
    chunks: list[int]
    edges: list[int]

    def pieces(self) -> Iterator[Piece]:
        """In order; made one by one, so that the first need not wait for the last."""
        pages, turns, total = self.ring.pages, self.ring.turns, len(self.pairs)
        groups, parts = self.edges[-1], list(itertools.pairwise(self.edges))
        for chunk, (begin, end) in enumerate(itertools.pairwise(self.chunks)):
            first = chunk * pages
            last = min(first + pages, total)
            for part, (low, high) in enumerate(parts):
                yield Piece(first, last, begin + low, end - groups + high, part, chunk % turns)


def part_edges(groups: int, parts: int) -> list[int]:
    """First group of every part, and `groups`: at most `parts` parts, none empty."""
    parts = min(parts, groups)
    return [part * groups // parts for part in range(parts + 1)]


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

    def staged(self, pairs: torch.Tensor, staging: torch.Tensor, ring: Ring) -> StagedPlan:
        """Plan for `pairs` (see `in_order`, not empty) through a staging cut as `ring` says.

        `staging` int64 [groups]: address of slot 0 of each group's buffer.
        """
        total, groups = len(pairs), len(self.host)
        slot = torch.arange(total) % ring.slots
        first, length = runs(pairs[:, 1:], ring.pages)
        base = torch.stack([self.host, staging]).unsqueeze(1)
        there = torch.stack([pairs[first, 1], slot[first]]).unsqueeze(2)
        sizes = length.unsqueeze(1) * self.page_bytes
        copies = torch.cat([base + there * self.page_bytes, sizes.unsqueeze(0)]).view(3, -1)

        starts = torch.searchsorted(first, torch.arange(0, total, ring.pages))
        return StagedPlan(
            pairs=torch.stack([pairs[:, 0], slot], dim=1),
            copies=copies,
            ring=ring,
            chunks=[*(starts * groups).tolist(), copies.shape[1]],
            edges=part_edges(groups, ring.parts),
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
