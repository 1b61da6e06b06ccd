"""When pages are cleaned, spilled and restored, and how many device pages a request leases for hot rows.

Spilling pays only beyond the hot rows that it makes necessary: the first `hot_min` pages that leave a request
cost as many leased pages. So room is made in this order, and a request is touched only where that gains pages:

    1. hot rows beyond the least that a request needs          (gain 1 a page, no bytes)
    2. idle pages: owned by the radix tree, read by nobody     (gain 1 a page)
    3. pages that one request reads, oldest first, its first page (attention sink) last
    4. pages that several requests read

`gain()` answers how much that would be and changes nothing; `make_room()` does it. Both count the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sglang_hisparse.policy.requests import OPEN_PAGES, Lease, Request
from sglang_hisparse.policy.residency import Residency, State


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """Sizes in pages. `hot_min`: hot rows with which one step's selection always fits; `hot_max`: wanted."""

    hot_min: int
    hot_max: int
    tables: int
    low_watermark: float
    high_watermark: float
    force_spill: float = 0.0
    clean_per_step: int = 64
    restore_per_step: int = 32


class Planner:
    """Decisions over one `Residency`. Deterministic: depends on counts and order only."""

    def __init__(self, residency: Residency, options: PlannerOptions) -> None:
        self.residency, self.options = residency, options
        self.free_tables = list(range(options.tables - 1, -1, -1))

    # -- requests --------------------------------------------------------------------------------------------

    def open(self, request: Request, pages: Iterable[int]) -> None:
        """`request` holds its row from now on and reads `pages` (its prefix hit)."""
        if request.row in self.residency.requests:
            raise AssertionError(f"row {request.row} is taken")
        self.residency.requests[request.row] = request
        self.residency.attach(request, pages)

    def rename(self, request: Request, row: int) -> None:
        """`request` was opened before SGLang gave it a row: this is the row."""
        requests, journal = self.residency.requests, self.residency.journal
        if row in requests:
            raise AssertionError(f"row {row} is taken")
        del requests[request.row]
        if journal.row_tables.pop(request.row, None) is not None and request.lease is not None:
            journal.row_tables[row] = request.lease.table
        request.row = row
        requests[row] = request

    def reread(self, request: Request, pages: Iterable[int]) -> None:
        """The radix tree rewrote the request's row: these are its pages now."""
        self.residency.detach_all(request)
        self.residency.attach(request, pages)

    def close(self, row: int) -> None:
        """The request gave its row back. Its pages are already released or belong to the tree."""
        request = self.residency.requests.pop(row, None)
        if request is None:
            return
        self.residency.detach_all(request)
        self._resize_lease(request, 0)

    def clear(self) -> None:
        """SGLang flushed its allocator."""
        self.residency.clear()
        self.free_tables = list(range(self.options.tables - 1, -1, -1))

    # -- hot leases ------------------------------------------------------------------------------------------

    def least_hot(self, spilled: int) -> int:
        """Leased pages with which no step can run short: a step selects at most `hot_min` pages of rows."""
        return min(self.options.hot_min, spilled)

    def _resize_lease(self, request: Request, pages: int) -> None:
        """Lease or give back hot pages of `request` until it has `pages`. Shrinking forgets the tail."""
        residency, journal = self.residency, self.residency.journal
        if request.lease is None:
            if pages == 0:
                return
            request.lease = Lease(self.free_tables.pop())
            journal.row_tables[request.row] = request.lease.table
            journal.reset_hot(request.lease.table, 0)
        lease, before = request.lease, len(request.lease.pages)
        while len(lease.pages) < pages:
            lease.pages.append(residency.free_device.pop())
        while len(lease.pages) > pages:
            residency.free_device.append(lease.pages.pop())
        residency.hot_pages += pages - before
        if pages != before:
            journal.reset_hot(lease.table, min(pages, before))
        if pages == 0:
            journal.row_tables[request.row] = -1
            self.free_tables.append(lease.table)
            request.lease = None

    def _excess_hot(self, request: Request) -> int:
        return max(0, request.hot_pages() - self.least_hot(request.spilled))

    # -- what can be gained ----------------------------------------------------------------------------------

    def _hot_cost(self, request: Request, more: int) -> int:
        return self.least_hot(request.spilled + more) - self.least_hot(request.spilled)

    def _gain_order(self) -> list[Request]:
        """Requests by what spilling all they can would gain, best first; ties by row."""
        requests = self.residency.requests.values()
        return sorted(requests, key=lambda r: (self._hot_cost(r, r.movable()) - r.movable(), r.row))

    def gain(self) -> int:
        """Device pages that `make_room` could free now, beyond the free ones. Changes nothing. O(requests)."""
        residency = self.residency
        room = residency.host_room()
        gained = sum(map(self._excess_hot, residency.requests.values()))
        idle = len(residency.idle) - residency.idle_spilled - sum(p in residency.idle for p in residency.fresh)
        moved = min(idle, room)
        gained, room = gained + moved, room - moved
        for request in self._gain_order():
            count = min(request.movable(), room)
            net = count - self._hot_cost(request, count)
            if net > 0:
                gained, room = gained + net, room - count
        return gained

    # -- making room -----------------------------------------------------------------------------------------

    def _movable_pages(self, request: Request) -> Iterator[int]:
        """Pages of `request` that only it reads and that may leave, coldest first: oldest, then the sink."""
        residency = self.residency
        last = len(request.pages) - OPEN_PAGES
        for index in (*range(1, last), *range(min(1, last))):
            page = request.pages[index]
            if self._may_leave(page) and len(residency.readers[page]) == 1:
                yield page

    def _may_leave(self, page: int) -> bool:
        residency = self.residency
        return residency.device[page] >= 0 and page not in residency.fresh and page not in residency.pinned

    def _settle(self, request: Request) -> None:
        least = self.least_hot(request.spilled)
        if request.hot_pages() < least:
            self._resize_lease(request, least)

    def make_room(self, pages: int) -> bool:
        """Free device pages until `pages` are free. False where that many cannot be had; then what was gained
        stays gained."""
        residency = self.residency

        def missing() -> int:
            return pages - len(residency.free_device)

        if missing() <= 0:
            return True
        for request in residency.requests.values():
            if missing() > 0 and (excess := self._excess_hot(request)):
                self._resize_lease(request, request.hot_pages() - min(excess, missing()))
        if missing() > 0:
            self._spill_idle(missing())
        for request in self._gain_order() if missing() > 0 else ():
            if missing() <= 0:
                break
            self._spill_request(request, missing())
        if missing() > 0:
            self._spill_shared(missing())
        return missing() <= 0

    def _spill_idle(self, count: int) -> None:
        residency = self.residency
        chosen = []
        room = residency.host_room()
        for page in residency.idle:
            if len(chosen) == min(count, room):
                break
            if self._may_leave(page):
                chosen.append(page)
        for page in chosen:
            residency.spill(page)

    def _spill_request(self, request: Request, want: int) -> None:
        """Spill pages of `request` for a net gain of `want` device pages, or as much as it has."""
        residency = self.residency
        to_fill = max(0, self.options.hot_min - request.spilled)
        count = min(want + to_fill, residency.host_room())
        chosen = []
        for page in self._movable_pages(request):
            if len(chosen) == count:
                break
            chosen.append(page)
        if len(chosen) - self._hot_cost(request, len(chosen)) <= 0 or not self._has_table(request):
            return
        for page in chosen:
            residency.spill(page)
        self._settle(request)

    def _has_table(self, request: Request) -> bool:
        return request.lease is not None or bool(self.free_tables)

    def _spill_shared(self, want: int) -> None:
        """Spill pages that several requests read, all or nothing: each reader may need hot rows."""
        residency = self.residency
        chosen = [
            page
            for page in residency.shared
            if self._may_leave(page) and all(page not in r.pages[-OPEN_PAGES:] for r in residency.readers[page])
        ][: residency.host_room()]
        more: dict[int, int] = {}
        for page in chosen:
            for reader in residency.readers[page]:
                more[reader.row] = more.get(reader.row, 0) + 1
        requests = [residency.requests[row] for row in more]
        cost = sum(self._hot_cost(r, more[r.row]) for r in requests)
        tables = sum(r.lease is None for r in requests)
        if len(chosen) - cost <= 0 or tables > len(self.free_tables):
            return
        for page in chosen[: want + cost]:
            residency.spill(page)
        for request in requests:
            self._settle(request)

    # -- bringing back ---------------------------------------------------------------------------------------

    def restore_all(self, requests: Iterable[Request]) -> bool:
        """Bring every page of `requests` to HBM and keep it there for the coming forward (prefill reads it).
        False where there is no room; then nothing is restored."""
        residency = self.residency
        requests = list(requests)
        pages = dict.fromkeys(page for request in requests for page in request.pages)
        residency.pinned.update(pages)
        gone = [page for page in pages if residency.device[page] < 0]
        if not self.make_room(len(gone)):
            residency.pinned.difference_update(pages)
            return False
        for page in gone:
            residency.restore(page)
        for request in requests:
            self._resize_lease(request, self.least_hot(request.spilled))
        return True

    def prepare_decode(self, request: Request) -> bool:
        """Lease the hot rows that `request` needs to decode with what is spilled now."""
        least = self.least_hot(request.spilled)
        if request.hot_pages() >= least:
            return True
        if not self._has_table(request) or not self.make_room(least - request.hot_pages()):
            return False
        self._settle(request)
        return True

    # -- once a step -----------------------------------------------------------------------------------------

    def step(self) -> None:
        """Watermark work before a forward: spill above the high one, clean above the low one, restore and
        grow hot rows below it. Nothing moves while device use stays under the low watermark and nothing is
        spilled."""
        options, residency = self.options, self.residency
        if options.force_spill > 0:
            self._force()
        else:
            keep = residency.device_pages - int(options.high_watermark * residency.device_pages)
            if len(residency.free_device) < keep:
                self.make_room(min(keep, len(residency.free_device) + self.gain()))
            low = residency.device_pages - int(options.low_watermark * residency.device_pages)
            if len(residency.free_device) < low:
                self._clean_ahead(options.clean_per_step)
            else:
                self._bring_back(len(residency.free_device) - low)
        self._grow_hot()

    def _clean_ahead(self, count: int) -> None:
        """Copy the pages that would be spilled next, so that spilling them moves no bytes."""
        residency = self.residency
        count = min(count, len(residency.free_host))
        for page in self._next_victims():
            if count <= 0:
                return
            if residency.state(page) is State.RESIDENT:
                residency.clean(page)
                count -= 1

    def _next_victims(self) -> Iterator[int]:
        yield from [page for page in self.residency.idle if self._may_leave(page)]
        for request in self._gain_order():
            if request.movable() - self._hot_cost(request, request.movable()) > 0:
                yield from list(self._movable_pages(request))

    def _bring_back(self, room: int) -> None:
        """Pressure fell: restore pages of running requests, newest first."""
        residency = self.residency
        room = min(room, self.options.restore_per_step)
        for request in list(residency.requests.values()):
            if room <= 0:
                return
            if request.spilled == 0:
                continue
            for page in reversed(request.pages):
                if room > 0 and residency.device[page] < 0:
                    residency.restore(page)
                    room -= 1
            if request.spilled == 0:
                self._resize_lease(request, 0)

    def _grow_hot(self) -> None:
        """Lease up to `hot_max` where device pages are free above the high watermark's reserve."""
        residency = self.residency
        reserve = residency.device_pages - int(self.options.high_watermark * residency.device_pages)
        for request in residency.requests.values():
            spare = len(residency.free_device) - reserve
            wanted = min(self.options.hot_max, request.spilled)
            if request.lease is not None and spare > 0 and wanted > request.hot_pages():
                self._resize_lease(request, min(wanted, request.hot_pages() + spare))

    def _force(self) -> None:
        """Tests: keep `force_spill` of every request's sealed pages spilled, spread over its positions."""
        share, residency = self.options.force_spill, self.residency
        for request in list(residency.requests.values()):
            sealed = request.pages[: max(0, len(request.pages) - OPEN_PAGES)]
            chosen = [
                page
                for index, page in enumerate(sealed)
                if self._may_leave(page) and int((index + 1) * share) > int(index * share)
            ]
            chosen = [p for p in chosen if all(p not in r.pages[-OPEN_PAGES:] for r in residency.readers[p])]
            readers = {r.row: r for p in chosen for r in residency.readers[p]}.values()
            needs = sum(self.options.hot_min - min(self.options.hot_min, r.hot_pages()) for r in readers)
            unleased = sum(r.lease is None for r in readers)
            if len(residency.free_device) < needs or unleased > len(self.free_tables):
                continue
            for page in chosen[: residency.host_room()]:
                residency.spill(page)
            for reader in readers:
                self._settle(reader)
