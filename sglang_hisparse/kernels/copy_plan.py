"""Which bytes the copy engines move for a list of pages: addresses and sizes, computed on the CPU.

A page is one piece of every plane in both tiers. Pages are taken in order of their host page, and neighbours on both
sides become one copy (a *run*). Nothing here touches the memory that it names; kernels/pages.py issues the copies.
"""

from __future__ import annotations

import numpy as np
import torch

from sglang_hisparse.tier.layout import PAGE, RowLayout


def in_order(pairs: torch.Tensor) -> torch.Tensor:
    """Pairs int [n, 2] of (device page, host page) on the CPU -> int64 [m, 2] by host page, negative ones left out."""
    pairs = pairs.to(torch.int64)
    if (pairs < 0).any():
        pairs = pairs[(pairs >= 0).all(dim=1)]
    return pairs[torch.argsort(pairs[:, 1], stable=True)]


def runs(pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First row and number of rows of every run of `pages` int64 [n, columns], as int64 [runs] each.

    In a run every column counts up by one from row to row.
    """
    rows = pages.numpy()  # small arrays: half the time of torch, and copies wait for it
    begins = np.arange(len(rows)) == 0
    for column in rows.T:
        begins[1:] |= np.diff(column) != 1
    first = np.flatnonzero(begins)
    return torch.from_numpy(first), torch.from_numpy(np.diff(first, append=len(rows)))


class Addresses:
    """Where the planes of a layout are, on the CPU. ValueError where a page of one is several pieces on the host."""

    def __init__(self, layout: RowLayout) -> None:
        for plane in layout.planes:
            if plane.host_pitch != plane.row_bytes:
                raise ValueError(
                    f"layer {plane.layer} plane {plane.name!r}: host rows of {plane.row_bytes} B are "
                    f"{plane.host_pitch} B apart, so a page is no single piece for the copy engines"
                )
        table = torch.cat([group.plane_table for group in layout.groups])
        self._device, self._host, self._page_bytes = table[:, 0], table[:, 1], PAGE * table[:, 2]

    def copies(self, pairs: torch.Tensor) -> torch.Tensor:
        """Copies int64 [3, runs * planes] for `pairs` (see `in_order`): address on the host, in HBM, size."""
        first, length = runs(pairs)
        host, device = (
            base + pairs[first, side].unsqueeze(1) * self._page_bytes
            for base, side in ((self._host, 1), (self._device, 0))
        )
        return torch.stack([host, device, length.unsqueeze(1) * self._page_bytes]).view(3, -1)
