"""Applies a journal: page copies on a side stream, table changes on the forward stream.

Order on a CUDA device, for the journal taken before forward t+1:

    forward stream   forward t | ............ wait (fence) | map, tables | forward t+1
    side stream                  wait for t | copies ------+

The copy engines do the copies (kernels/pages.py). They start after forward t, which wrote the pages. Forward t+1 waits
for them only where the journal says so: a spilled page's device page may be written again, a restored page is read.
Cleaning ahead overlaps t+1. Tables change by launches that carry the new values themselves (kernels/set_tables.py).
On the CPU everything runs in program order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from sglang_hisparse.kernels import set_tables
from sglang_hisparse.kernels.pages import PageCopies
from sglang_hisparse.policy.journal import CopyBatch, Journal
from sglang_hisparse.tier.audit import Audit
from sglang_hisparse.tier.counters import StallClock
from sglang_hisparse.tier.layout import PAGE, HotTables, RowLayout


class Mover:
    """Owns the side stream. `apply` runs on the stream of the forward that it prepares, never inside a graph."""

    def __init__(self, layout: RowLayout, tables: HotTables, audit: Audit | None) -> None:
        self.layout, self.tables, self.audit = layout, tables, audit
        self.device = layout.device
        self.page_bytes = sum(group.row_bytes for group in layout.groups) * PAGE
        self.bytes_to_host = self.bytes_to_device = 0
        self.stall = StallClock()
        self._side = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._copying = False
        self._copies: PageCopies | None = None

    def prepare(self) -> None:
        """Build what copies need, now rather than in front of the first forward that copies."""
        if self._copies is None:
            self._copies = PageCopies(self.layout)

    def apply(self, journal: Journal, leased_pages: Mapping[int, Sequence[int]]) -> None:
        """Bring device state to what `journal` says. `leased_pages`: hot table -> its device pages now."""
        self._copy(journal)
        if journal.page_values or journal.row_tables:
            set_tables.set_entries(self.tables, journal.page_values, journal.row_tables)
        for table, first in journal.hot_reset.items():
            set_tables.set_lease(self.tables, table, first * PAGE, leased_pages.get(table, ()))

    def _copy(self, journal: Journal) -> None:
        batches = [batch for batch in journal.batches if batch.to_host or batch.to_device]
        if self._side is None:
            for batch in batches:
                with self.stall.running():
                    self._copy_batch(batch)
            return
        forward = torch.cuda.current_stream(self.device)
        if batches:
            self._side.wait_stream(forward)
            with torch.cuda.stream(self._side):
                for batch in batches:
                    self._copy_batch(batch)
            self._copying = True
        if journal.fence and self._copying:
            self.stall.wait(forward, self._side)
            self._copying = False

    def _copy_batch(self, batch: CopyBatch) -> None:
        self.prepare()
        assert self._copies is not None
        if batch.to_host:
            if self.audit is not None:
                self.audit.written(batch.to_host)
            self._copies.copy(torch.tensor(batch.to_host), to_host=True)
            self.bytes_to_host += len(batch.to_host) * self.page_bytes
        if batch.to_device:
            self._copies.copy(torch.tensor(batch.to_device), to_host=False)
            self.bytes_to_device += len(batch.to_device) * self.page_bytes

    def synchronize(self) -> None:
        """Wait until every copy issued so far is done (audit, shutdown)."""
        if self._side is not None:
            self._side.synchronize()
