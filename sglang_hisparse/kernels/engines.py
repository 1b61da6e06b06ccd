"""Page copies by the copy engines, which leave all SMs to the forward; CUDA only, not for graphs.

`Strided` copies rows straight between planes and host rows. `Staged` keeps a small copy of the host pool's layout in
HBM: a short kernel on all SMs moves pages between planes and staging, and the engines move whole host pages, a
piece of 64 * host_row_bytes a page and group. Two halves take turns, so that kernel and engines overlap:

    spill     current stream   pack 0 | pack 1 | wait | pack 0 ...            | wait for all copies
              copy stream             | copy 0      | copy 1 | copy 0 ...
    restore   copy stream      copy 0 | copy 1 | wait | copy 0 ...
              current stream          | unpack 0      | unpack 1 ...
"""

from __future__ import annotations

from typing import Any

import torch

from sglang_hisparse.kernels import build, copy_plan
from sglang_hisparse.tier.layout import PAGE, RowLayout

STAGING_BYTES = 48 << 20
"""HBM for both halves together, where two pages are not more."""

STAGING_BLOCKS, STAGING_THREADS = 264, 256
"""Of the kernel between planes and staging: all SMs, briefly; blocks small enough to fit beside others."""


def staging_slots(page_bytes: int, limit: int = STAGING_BYTES) -> int:
    """Pages that the staging holds, an even number; `page_bytes`: one page, all groups."""
    return 2 * max(1, limit // (2 * page_bytes))


def prepare_copies() -> tuple[Any, Any]:
    """Build or load csrc/batch_copy.cuh: (batch_copy, batch_rects)."""
    return build.kernel("batch_copy", "batch_copy"), build.kernel("batch_copy", "batch_rects")


class Strided:
    """Rows of the planes of one layout to host rows and back, 64 rows at a time."""

    def __init__(self, layout: RowLayout) -> None:
        self._device = layout.device
        self._addresses = copy_plan.Addresses(layout)
        _, self._rects = prepare_copies()

    def copy(self, pairs: torch.Tensor, to_host: bool) -> bool:
        """Issue the copies of `pairs` (int [n, 2] on the CPU) on the current stream; see PageCopies.

        Returns whether the driver took them as batches.
        """
        pairs = copy_plan.in_order(pairs)
        if not len(pairs):
            return True
        stream = torch.cuda.current_stream(self._device)
        return bool(self._rects(self._addresses.rects(pairs, to_host), stream.cuda_stream))


class Staged:
    """Owns the staging buffers, `buffers[g]`: uint8 [slots * 64, host_row_bytes] on the KV device, and a copy stream.

    Calls follow each other: one starts its copies when the last is done, whatever streams they were made on.
    """

    def __init__(self, layout: RowLayout, limit: int = STAGING_BYTES) -> None:
        self._layout, self._device = layout, layout.device
        self._addresses = copy_plan.Addresses(layout)
        self.slots = staging_slots(int(self._addresses.page_bytes.sum()), limit)
        self.buffers = [
            torch.empty((self.slots * PAGE, group.host_row_bytes), dtype=torch.uint8, device=self._device)
            for group in layout.groups
        ]
        self._staging = torch.tensor([buffer.data_ptr() for buffer in self.buffers])
        self._group_table = layout.group_table.clone()
        self._group_table[:, 0] = self._staging.to(self._device)
        torch.cuda.current_stream(self._device).synchronize()
        self._batch_copy, _ = prepare_copies()
        self._kernel = build.kernel("copy_pages", "copy_pages")
        self._copies = torch.cuda.Stream(self._device)
        self._moved = (torch.cuda.Event(), torch.cuda.Event())
        """Of each half: the engines are done with it."""
        self._kernel_done = (torch.cuda.Event(), torch.cuda.Event())
        self._done = torch.cuda.Event()

    def copy(self, pairs: torch.Tensor, to_host: bool) -> bool:
        """Issue the copies of `pairs` (int [n, 2] on the CPU) from the current stream; see PageCopies.

        What follows on the current stream follows the copies. Returns whether the driver took them as batches.
        """
        pairs = copy_plan.in_order(pairs)
        if not len(pairs):
            return True
        plan = self._addresses.staged(pairs, self._staging, self.slots)
        current, copies = torch.cuda.current_stream(self._device), self._copies
        current.wait_event(self._done)
        on_device = plan.pairs.pin_memory().to(self._device, non_blocking=True)
        copies.wait_stream(current)
        batched = True
        for number, chunk in enumerate(plan.chunks):
            half, again = number % 2, number >= 2
            moved, kernel_done = self._moved[half], self._kernel_done[half]
            host, staging = plan.host[chunk.copies], plan.staging[chunk.copies]
            sizes = plan.sizes[chunk.copies]
            if to_host:
                if again:
                    current.wait_event(moved)
                self._run_kernel(on_device[chunk.pairs], to_host)
                kernel_done.record(current)
                copies.wait_event(kernel_done)
                batched &= self._batch_copy(host, staging, sizes, copies.cuda_stream)
                moved.record(copies)
            else:
                if again:
                    copies.wait_event(kernel_done)
                batched &= self._batch_copy(staging, host, sizes, copies.cuda_stream)
                moved.record(copies)
                current.wait_event(moved)
                self._run_kernel(on_device[chunk.pairs], to_host)
                kernel_done.record(current)
        current.wait_stream(copies)
        self._done.record(current)
        return bool(batched)

    def _run_kernel(self, pairs: torch.Tensor, to_staging: bool) -> None:
        """Pages (device page, slot) between planes and staging, which the kernel takes for a host pool."""
        self._kernel(
            self._layout.plane_table, self._group_table, pairs, to_staging, STAGING_BLOCKS, STAGING_THREADS
        )
