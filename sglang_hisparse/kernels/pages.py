"""Page copies between the tiers: CPU -> reference, CUDA -> the copy engines, without any SM.

A page is one piece of every plane in both tiers, so that nothing has to be transposed. Beside the engines a stand-in
for a decode was 2.1 % slower at most; beside eight thread blocks that write to the host, 322 % (docs/kernels.md).
"""

from __future__ import annotations

from typing import Any

import torch

from sglang_hisparse.kernels import build, reference
from sglang_hisparse.kernels.copy_plan import Addresses, in_order
from sglang_hisparse.tier.layout import RowLayout

MOST_COPIES = 1024
"""Of one call of the driver: the engines start on the first call while the CPU issues the next, 0.5 us a copy."""


class PageCopies:
    """Copies whole pages of one layout. On CUDA, constructing it builds the entry. Not for graphs."""

    def __init__(self, layout: RowLayout) -> None:
        self.layout = layout
        self._addresses = Addresses(layout)
        self._batch_copy = prepare() if layout.device.type == "cuda" else None

    def copy(self, pairs: torch.Tensor, to_host: bool) -> bool:
        """See `reference.copy_pages`; `pairs` int [n, 2] is on the CPU.

        Behind everything issued on the current stream so far, and ahead of everything issued there later. No host
        synchronisation. Bytes written to the host are visible to the CPU after an event behind the call. Returns
        whether the driver took the copies as batches, and not one by one, which costs the CPU more.
        """
        if self._batch_copy is None:
            reference.copy_pages(self.layout, pairs, to_host)
            return True
        pairs = in_order(pairs)
        if not len(pairs):
            return True
        copies, batched = self._addresses.copies(pairs), True
        stream = torch.cuda.current_stream(self.layout.device).cuda_stream
        for begin in range(0, copies.shape[1], MOST_COPIES):
            end = min(begin + MOST_COPIES, copies.shape[1])
            batched &= bool(self._batch_copy(copies, begin, end, to_host, stream))
        return batched


def prepare() -> Any:
    """Build csrc/batch_copy.cuh, or load it from SGLang's JIT cache, and return its entry."""
    return build.kernel("batch_copy", "batch_copy")
