"""The tier as the rest of the package sees it: policy, tables, host pool, mover and audit of one KV pool."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from sglang_hisparse.capacity import Capacity
from sglang_hisparse.config import HiSparseConfig
from sglang_hisparse.kernels import map_rows as map_kernel
from sglang_hisparse.kernels import resolve as resolve_kernel
from sglang_hisparse.policy import Planner, PlannerOptions, Request, Residency
from sglang_hisparse.selectors import Selector
from sglang_hisparse.tier.audit import Audit
from sglang_hisparse.tier.counters import OUTCOMES, SelectionCounters
from sglang_hisparse.tier.host_pool import HostPool
from sglang_hisparse.tier.layout import PAGE, Group, HotTables, Plane, RowLayout, byte_rows
from sglang_hisparse.tier.listed_fetch import ListedFetch
from sglang_hisparse.tier.mover import Mover
from sglang_hisparse.tier.page_heat import PageHeat

logger = logging.getLogger(__name__)

SAMPLED_PAGES = 4
"""Host pages that `audit: sampled` checks before every forward."""

MOST_UNCOUNTED = 512
"""Forwards without resolve whose selected rows are counted at once, or where somebody asks before."""

Buffers = dict[int, list[tuple[str, torch.Tensor]]]
"""layer -> its KV buffers [(name, [device rows, ...])]"""


class HostTier:
    """One per KV pool and rank. The CPU side (`planner`) decides; `begin_forward` makes it so on the device.

    Owner of page map, hot tables and host pool. Who writes: the mover (page map, leases, rows on restore) and the
    resolve kernel (hot slots, stamps, rows on a miss).
    """

    def __init__(
        self,
        config: HiSparseConfig,
        capacity: Capacity,
        selector: Selector,
        buffers: Buffers,
        request_rows: int,
        device: torch.device,
        copy_rows: bool = True,
        listed_batch: int | None = None,
    ) -> None:
        """`copy_rows` False: missed rows keep what they hold, a benchmark's no-IO oracle. `listed_batch`: requests that
        are resolved at once; a step of more is resolved in parts, outside graphs (None: there is no such step)."""
        self.config, self.capacity, self.selector, self.device = config, capacity, selector, device
        self.copy_rows = copy_rows
        has_host = capacity.host_pages > 0
        self.tables = HotTables.create(
            pages=capacity.logical_pages,
            requests=request_rows,
            groups=len(selector.groups),
            tables=max(1, capacity.hot_tables),
            hot_rows=capacity.hot_max_pages * PAGE if has_host else PAGE,
            device=device,
        )
        layers = [(index, layer) for index, same in enumerate(selector.groups) for layer in same]
        rows = {layer: [(name, byte_rows(buffer)) for name, buffer in buffers[layer]] for _, layer in layers}
        widths = [plane.shape[1] for _, layer in layers for _, plane in rows[layer]]
        self.host_pool = HostPool(capacity.host_pages, widths, device)
        host = iter(self.host_pool.buffers)
        self.layout = RowLayout.of(
            Group(index, tuple(Plane(layer, name, plane, next(host)) for name, plane in rows[layer]))
            for index, layer in layers
        )
        self.residency = Residency(capacity.logical_pages, capacity.device_pages, capacity.host_pages)
        self.planner = Planner(
            self.residency,
            PlannerOptions(
                hot_min=capacity.hot_min_pages,
                hot_max=capacity.hot_max_pages,
                tables=max(1, capacity.hot_tables),
                low_watermark=config.low_watermark if has_host else 1.0,
                high_watermark=config.high_watermark if has_host else 1.0,
                force_spill=config.force_spill if has_host else 0.0,
                spill_order=config.spill_order,
            ),
        )
        self.audit = Audit(self.layout, capacity.host_pages) if has_host and config.audit != "off" else None
        self.mover = Mover(self.layout, self.tables, self.audit)
        if has_host:
            self.mover.prepare()
        by_heat = has_host and config.spill_order == "heat"
        self.heat = PageHeat(capacity.logical_pages, device) if by_heat else None
        self.selected = SelectionCounters(len(selector.groups), device)
        self.listed = (
            ListedFetch(min(request_rows, listed_batch or request_rows), selector.top_k, device, copy_rows)
            if has_host
            else None
        )
        self._counted = False
        self._uncounted: list[torch.Tensor] = []
        self.resident_forwards = 0
        self.nothing_spilled = True
        """No request that the coming forward decodes has a spilled page"""
        if device.type == "cuda":
            map_kernel.prepare()  # not inside a capture
        self._every_step = self.heat is not None or self.audit is not None
        self.most_running = 0
        self.deferred: dict[str, int] = {}

    # -- before every forward --------------------------------------------------------------------------------

    def nothing_to_do(self) -> bool:
        """Whether `begin_forward` would do nothing: nearly every decode step while memory is free. What it asks is what
        a step costs, so it is one function."""
        residency = self.residency
        journal = residency.journal
        if (
            journal.page_values
            or journal.hot_reset
            or journal.row_tables
            or residency.pinned
            or residency.hot_pages
            or len(residency.free_host) + len(residency.clean_pages) < residency.host_pages
            or len(residency.free_device) < self.planner.free_at_high
            or (len(residency.free_device) < self.planner.free_at_low and self.planner.may_clean())
            or self.planner.forces
            or self._every_step
        ):
            return False
        self._counted, self.nothing_spilled = False, True
        return True

    def begin_forward(self, decode_rows: torch.Tensor | Sequence[int] | None) -> None:
        """Apply what the scheduler decided since the last forward. On the forward stream, outside graphs.

        `decode_rows`: request rows that this forward decodes, on the CPU (None: it does not decode). RuntimeError
        where one of them lacks hot rows: serving it would read wrong rows.
        """
        residency = self.residency
        if self.heat is not None and self.planner.heat is not None:
            counts = self.heat.poll()
            if counts is not None:
                self.planner.heat.add(counts)
        self.planner.step()
        self._counted = False
        self.nothing_spilled = residency.spilled_pages() == 0 or self._lease_hot_rows(decode_rows)
        self.most_running = max(self.most_running, len(residency.requests))
        if residency.pinned or not residency.journal.empty():
            self._apply()
        if self.audit is not None:
            self._verify()

    def _apply(self) -> None:
        journal = self.residency.forward_prepared()
        if not journal.empty():
            leased = (r.lease for r in self.residency.requests.values() if r.lease is not None)
            pages = {lease.table: lease.pages for lease in leased} if journal.hot_reset else {}
            self.mover.apply(journal, pages)

    def _lease_hot_rows(self, decode_rows: torch.Tensor | Sequence[int] | None) -> bool:
        """Lease what the coming forward needs to decode `decode_rows`. True where it needs nothing, and will not."""
        if decode_rows is None:
            return False
        planner, residency = self.planner, self.residency
        rows = decode_rows.tolist() if isinstance(decode_rows, torch.Tensor) else decode_rows
        while lacking := planner.lacking(residency.requests.get(row) for row in rows):
            for request in lacking:
                if not planner.prepare_decode(request):
                    raise RuntimeError(
                        f"HiSparse: request row {request.row} decodes with {request.spilled} spilled pages, but only "
                        f"{request.hot_pages()} hot pages could be leased. This is a bug in admission; please report it"
                    )
        # Making room for one may have spilled pages of another, so this comes last.
        requests = (residency.requests.get(row) for row in rows)
        return all(request is not None and request.spilled == 0 and not request.stale for request in requests)

    def _verify(self) -> None:
        assert self.audit is not None
        host = self.residency.host
        pages = [(page, host[page]) for page in range(1, len(host)) if host[page] >= 0]
        if self.config.audit == "sampled":
            pages = self.audit.sample(pages, SAMPLED_PAGES)
        self.mover.synchronize()
        self.audit.verify(pages)
        if self.config.audit == "full":
            self.residency.check()

    # -- device side -----------------------------------------------------------------------------------------

    def rows_of(self, slots: torch.Tensor) -> torch.Tensor:
        """Slots of resident pages, or such that are about to be written -> device rows, same shape and dtype; negative
        slots stay as they are.

        A slot of a page that is not resident gives -1 or less: callers know that there is none. Graph-safe.
        """
        return map_kernel.map_rows(self.tables.page_map, slots)

    def device_table_of(self, table: torch.Tensor) -> torch.Tensor:
        """Page table of logical pages, int32 [rows, pages] -> the same of device pages, for rows whose pages are all
        in HBM. Graph-safe on CUDA."""
        return map_kernel.map_pages(self.tables.page_map, table)

    def slots_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Device rows -> the slots that live there, same shape and dtype; -1 stays. For tests that need the selection
        behind rows; hot rows have no slot. Graph-safe."""
        pages = torch.arange(len(self.tables.page_map), device=rows.device)
        inverse = torch.zeros(self.capacity.device_pages + 1, dtype=torch.long, device=rows.device)
        inverse.scatter_(0, self.tables.page_map.long().clamp(min=0), pages)
        inverse[:1].zero_()  # device page 0 is logical page 0: whatever is not in HBM was scattered here too
        slots = (inverse[rows.clamp(min=0).long() >> 6] * PAGE + (rows & 63)).to(rows.dtype)
        return torch.where(rows < 0, rows, slots)

    def count_resident(self, lengths: torch.Tensor | None) -> None:
        """The coming forward decodes requests of these `lengths` (on the CPU, None: not known) without resolve: count
        what it selects as resident. A forward counts once."""
        if self._counted:
            return
        self._counted = True
        self.resident_forwards += 1
        if lengths is not None:
            self._uncounted.append(lengths)
            if len(self._uncounted) >= MOST_UNCOUNTED:
                self._count_aside()

    def _count_aside(self) -> None:
        if self._uncounted:
            lengths = torch.cat(self._uncounted).clamp_(max=self.selector.top_k)
            self.selected.resident_aside += int(lengths.sum())
            self._uncounted.clear()

    def resolve(self, layer: int, selection: torch.Tensor, request: torch.Tensor) -> torch.Tensor:
        """One step's selection of `layer`'s index group, int32 [rows, k] slots -> int32 device rows. Call it for the
        leader, as soon as the selection is known; every layer calls `wait_for_rows` before it reads what they say or
        where they point, and the selection stays as it is until the leader has. Graph-safe on CUDA for as many requests
        as the list of misses has room for."""
        groups = self.layout.index_groups[self.layout.of_layer(layer).index]
        at_once = self.listed.batch if self.listed else len(request)
        if len(request) <= at_once:
            return self._resolve(groups, selection, request)
        parts = []
        for first in range(0, len(request), at_once):
            part = slice(first, first + at_once)
            parts.append(self._resolve(groups, selection[part], request[part]))
            for group in groups:
                for layer in group.layers:
                    self.wait_for_rows(layer)  # the next part overwrites the list
        return torch.cat(parts)

    def _resolve(
        self, groups: Sequence[Group], selection: torch.Tensor, request: torch.Tensor
    ) -> torch.Tensor:
        leader, batch = groups[0], len(request)
        listed = self.listed if self.listed and self.listed.lists(groups, batch) else None
        reads = self.copy_rows and not (listed and listed.sweeps(batch))
        with self.listed.beside() if self.listed else nullcontext():
            rows = resolve_kernel.resolve(
                self.tables,
                leader,
                selection,
                request,
                1,
                stats=self.selected.rows[leader.index],
                read_rows=reads,
                heat=None if self.heat is None else self.heat.counts,
                misses=listed.misses if listed else None,
            )
            if self.listed:
                self.listed.start(groups, batch)
        return rows

    def wait_for_rows(self, layer: int) -> None:
        """Before `layer` reads the rows that its leader resolved. Graph-safe."""
        if self.listed is not None:
            self.listed.wait(layer)

    def read_rows(self, layer: int, slots: torch.Tensor) -> list[torch.Tensor]:
        """Rows of `layer` at `slots` int64 [n], resident or spilled: one uint8 [n, row_bytes] a plane, on the KV
        device. For prefill that reads the host itself. Not graph-safe."""
        mapped = self.tables.page_map[slots >> 6].long()
        offset = slots & 63
        spilled = (mapped < -1).nonzero().view(-1)
        host_rows = ((-2 - mapped[spilled]) * PAGE + offset[spilled]).cpu()
        result = []
        for plane in self.layout.of_layer(layer).planes:
            rows = plane.rows[mapped.clamp(min=0) * PAGE + offset]
            if len(spilled):
                rows[spilled] = plane.host[host_rows].to(self.device)
            result.append(rows)
        return result

    # -- what an operator sees -------------------------------------------------------------------------------

    def pages_by_state(self) -> dict[str, int]:
        """Pages of both tiers by state; free and hot are device pages. O(1)."""
        residency = self.residency
        free, clean = len(residency.free_device), len(residency.clean_pages)
        return {
            "resident": residency.device_pages - free - residency.hot_pages - clean,
            "clean": clean,
            "spilled": residency.spilled_pages(),
            "hot": residency.hot_pages,
            "free": free,
        }

    def counters(self, wait: bool = True) -> dict[str, int]:
        """Totals since start. With `wait` up to now, which synchronises with the device: not for the step path.
        Without, what had arrived (see `tier/counters.py`)."""
        self._count_aside()
        by_group = self.selected.exact() if wait else self.selected.recent()
        missed_bytes = self.copy_rows * sum(
            counts[OUTCOMES.index("missed")] * sum(group.row_bytes for group in groups)
            for counts, groups in zip(by_group, self.layout.index_groups, strict=True)
        )
        totals = (sum(column) for column in zip(*by_group, strict=True))
        residency = self.residency
        return {
            "pages_cleaned": residency.cleaned,
            "pages_spilled": residency.spilled,
            "pages_restored": residency.restored,
            **{f"selected_{name}": total for name, total in zip(OUTCOMES, totals, strict=True)},
            "bytes_to_host": self.mover.bytes_to_host,
            "bytes_to_device": self.mover.bytes_to_device + missed_bytes,
            "bytes_missed": missed_bytes,
            "copy_stall_us": int(self.mover.stall.seconds() * 1e6),
            "audited_pages": self.audit.checked if self.audit else 0,
            "resident_forwards": self.resident_forwards,
            "max_running_requests": self.most_running,
            "deferred_admissions": sum(self.deferred.values()),
            **{f"deferred_{reason}": count for reason, count in self.deferred.items()},
        }

    def request_of(self, row: int) -> Request | None:
        """The request that holds `row` of req_to_token."""
        return self.residency.requests.get(row)

    def close(self) -> None:
        """Unpin host memory. The pool must not be used afterwards."""
        self.mover.synchronize()
        self.host_pool.close()
