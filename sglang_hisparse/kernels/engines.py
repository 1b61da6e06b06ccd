"""Page copies by the copy engines; CUDA only, not for graphs.

`Strided` copies rows straight between planes and host rows, without any SM. `Staged` keeps a small copy of the host
pool's layout in HBM: a short kernel moves pages between planes and staging, and the engines move whole host pages, a
run of 64 * host_row_bytes a page and group. Pieces of the staging take turns, so that kernel and engines overlap:

    spill     kernels   pack 0 | pack 1 | pack 2 | wait for copy 0 | pack 0 ...   | wait for all copies
              copies             | copy 0 | copy 1 | copy 2 | copy 0 ...
    restore   copies    copy 0 | copy 1 | copy 2 | wait for unpack 0 | copy 0 ...
              kernels            | unpack 0 | unpack 1 | unpack 2 ...
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from sglang_hisparse.kernels import build, copy_plan
from sglang_hisparse.tier.layout import PAGE, RowLayout

STAGING_BYTES, PIECE_BYTES = 16 << 20, 4 << 20
"""HBM for all pieces together, where two pages are not more, and of one piece."""

STAGING_BLOCKS, STAGING_THREADS = 132, 1024
"""Of the kernel between planes and staging: all SMs, as briefly as can be. Kernels that need all shared memory of an
SM cannot start where a block of ours is, so few threads, which take longer, cost a decode more (docs/kernels.md)."""


@dataclass(frozen=True, slots=True)
class Staging:
    """A staging and the kernel that fills or empties it.

    total     bytes of all pieces; two pages (all groups) where that is more
    piece     bytes that one kernel and one batch of copies move, about: whole pages, or some groups of one page
    blocks    thread blocks of the kernel, of `threads` threads
    priority  of a stream of the kernel's own, as CUDA counts (negative is before others); None: the caller's stream
    """

    total: int = STAGING_BYTES
    piece: int = PIECE_BYTES
    blocks: int = STAGING_BLOCKS
    threads: int = STAGING_THREADS
    priority: int | None = None

    def ring(self, page_bytes: int) -> copy_plan.Ring:
        """How pages of `page_bytes`, all groups, go through it; at least two at a time."""
        pages = max(1, min(self.piece, self.total // 2) // page_bytes)
        parts = max(1, round(page_bytes / self.piece)) if pages == 1 else 1
        return copy_plan.Ring(pages, parts, turns=max(2, self.total // (pages * page_bytes)))

    def bytes(self, page_bytes: int) -> int:
        """HBM that it takes."""
        return self.ring(page_bytes).slots * page_bytes


STAGING = Staging()


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
    """Owns the staging buffers, `buffers[g]`: uint8 [slots * 64, host_row_bytes] on the KV device, and its streams.

    Calls follow each other: one starts its copies when the last is done, whatever streams they were made on.
    """

    def __init__(self, layout: RowLayout, staging: Staging = STAGING) -> None:
        self._layout, self._device, self._shape = layout, layout.device, staging
        self._addresses = copy_plan.Addresses(layout)
        self.ring = staging.ring(int(self._addresses.page_bytes.sum()))
        self.buffers = [
            torch.empty(
                (self.ring.slots * PAGE, group.host_row_bytes), dtype=torch.uint8, device=self._device
            )
            for group in layout.groups
        ]
        self._staging = torch.tensor([buffer.data_ptr() for buffer in self.buffers])
        group_table = layout.group_table.clone()
        group_table[:, 0] = self._staging.to(self._device)
        edges = copy_plan.part_edges(len(layout.groups), self.ring.parts)
        self._group_tables = [group_table[a:b] for a, b in itertools.pairwise(edges)]
        torch.cuda.current_stream(self._device).synchronize()
        self._batch_copy, _ = prepare_copies()
        self._kernel = build.kernel("copy_pages", "copy_pages")
        self._copies = torch.cuda.Stream(self._device)
        own = staging.priority is not None
        self._kernels = torch.cuda.Stream(self._device, priority=staging.priority) if own else None
        # One a turn and part. Of a piece: the engines are done with it; the kernel is.
        self._moved, self._kernel_done = (
            [[torch.cuda.Event() for _ in self._group_tables] for _ in range(self.ring.turns)]
            for _ in range(2)
        )
        self._done = torch.cuda.Event()

    def copy(self, pairs: torch.Tensor, to_host: bool) -> bool:
        """Issue the copies of `pairs` (int [n, 2] on the CPU) from the current stream; see PageCopies.

        What follows on the current stream follows the copies. Returns whether the driver took them as batches.
        """
        pairs = copy_plan.in_order(pairs)
        if not len(pairs):
            return True
        plan = self._addresses.staged(pairs, self._staging, self.ring)
        current = torch.cuda.current_stream(self._device)
        current.wait_event(self._done)
        on_device = plan.pairs.pin_memory().to(self._device, non_blocking=True)
        self._copies.wait_stream(current)
        if self._kernels is None:
            batched = self._pieces(plan, on_device, to_host, current)
        else:
            self._kernels.wait_stream(current)
            with torch.cuda.stream(self._kernels):
                batched = self._pieces(plan, on_device, to_host, self._kernels)
            current.wait_stream(self._kernels)
        current.wait_stream(self._copies)
        self._done.record(current)
        return batched

    def _pieces(
        self, plan: copy_plan.StagedPlan, on_device: torch.Tensor, to_host: bool, kernels: torch.cuda.Stream
    ) -> bool:
        """Every piece through its turn; `kernels` is the current stream."""
        copies, handle, batched = self._copies, self._copies.cuda_stream, True
        reused = self.ring.turns * len(self._group_tables)
        for number, piece in enumerate(plan.pieces()):
            moved = self._moved[piece.turn][piece.part]
            kernel_done = self._kernel_done[piece.turn][piece.part]
            pairs, groups = on_device[piece.first : piece.last], self._group_tables[piece.part]
            if to_host:
                if number >= reused:
                    kernels.wait_event(moved)
                self._run_kernel(groups, pairs, to_host)
                kernel_done.record(kernels)
                copies.wait_event(kernel_done)
                batched &= self._batch_copy(plan.copies, piece.begin, piece.end, to_host, handle)
                moved.record(copies)
            else:
                if number >= reused:
                    copies.wait_event(kernel_done)
                batched &= self._batch_copy(plan.copies, piece.begin, piece.end, to_host, handle)
                moved.record(copies)
                kernels.wait_event(moved)
                self._run_kernel(groups, pairs, to_host)
                kernel_done.record(kernels)
        return bool(batched)

    def _run_kernel(self, groups: torch.Tensor, pairs: torch.Tensor, to_staging: bool) -> None:
        """Pages (device page, slot) between planes and staging, which the kernel takes for a host pool."""
        shape = self._shape
        self._kernel(self._layout.plane_table, groups, pairs, to_staging, shape.blocks, shape.threads)
