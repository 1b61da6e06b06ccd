"""Tests: every KV row that attention reads is the row that was written for its slot.

Unlike a comparison of outputs this holds under any schedule: batches may form differently, and rounding with them.
On with SGLANG_HISPARSE_TEST_READS=1, for DSA. Memory: 8 bytes a slot and layer.
"""

from __future__ import annotations

import os

import torch

from sglang_hisparse.tier.layout import Plane, RowLayout

ENABLED = os.environ.get("SGLANG_HISPARSE_TEST_READS") == "1"

EXTEND_STRIDE = 64
"""Of an extend only every 64th query's selection is compared: all of them would take tens of GiB."""


class ReadCheck:
    """A fingerprint of every written row, int64 [layers, slots], compared where rows are read. CUDA-graph safe.

    counts   int64 [2] on the KV device: rows compared, rows that differed
    """

    def __init__(self, layout: RowLayout, slots: int) -> None:
        self._planes: dict[int, Plane] = {plane.layer: plane for plane in layout.planes}
        self._written = torch.zeros(len(self._planes), slots, dtype=torch.int64, device=layout.device)
        words = next(iter(self._planes.values())).row_bytes // 4
        generator = torch.Generator().manual_seed(1)
        # Odd weights: a change of any one word changes the sum.
        weights = torch.randint(-(2**61), 2**61, (words,), generator=generator) * 2 + 1
        self._weights = weights.to(layout.device)
        self.counts = torch.zeros(2, dtype=torch.int64, device=layout.device)

    def _fingerprints(self, layer: int, rows: torch.Tensor) -> torch.Tensor:
        words = self._planes[layer].rows.view(torch.int32)[rows.long()]
        return (words.to(torch.int64) * self._weights).sum(dim=-1)

    def written(self, layer: int, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """`slots` [n] were just written to device `rows` [n]."""
        self._written[layer].index_copy_(0, slots.long(), self._fingerprints(layer, rows))

    def read(self, layer: int, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Attention of `layer` is about to read `rows` for `slots`, both [n, k]; negative slots select nothing."""
        asked = slots >= 0
        same = self._fingerprints(layer, rows.clamp(min=0)) == self._written[layer][slots.clamp(min=0).long()]
        wrong = asked & ~(same & (rows >= 0))
        self.counts += torch.stack((asked.sum(), wrong.sum()))
