"""When pages are cleaned, spilled and restored, and how many device pages a request leases for hot rows.

Spilling pays only beyond the hot rows that it makes necessary: the first `hot_min` pages that leave a
request cost as many leased pages. So room is made in this order, and a request is touched only where that
gains pages:

    1. hot rows beyond the least that a request needs          (gain 1 a page, no bytes)
    2. idle pages: owned by the radix tree, read by nobody     (gain 1 a page)
    3. pages that one request reads, oldest first, its first page (attention sink) last
    4. pages that several requests read, and private ones that gain only together with them

`gain()` answers how much that would be and changes nothing; `make_room()` does it. Both count the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from sglang_hisparse.config import OPEN_PAGES
from sglang_hisparse.policy.requests import Lease, Request
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

    def _gain_order(self) -> list[tuple[Request, int]]:
        """Requests and how many of their pages may leave (a lower bound), by what that would gain, best
        first; ties by row."""
        residency = self.residency
        movable = {row: request.movable() for row, request in residency.requests.items()}
        for page in residency.pinned:
            if residency.device[page] >= 0 and len(residency.readers[page]) == 1:
                row = residency.readers[page][0].row
                movable[row] = max(0, movable[row] - 1)
        order = [(request, movable[row]) for row, request in residency.requests.items()]
        return sorted(order, key=lambda pair: (self._hot_cost(*pair) - pair[1], pair[0].row))

    def gain(self) -> int:
        """Device pages that `make_room` could free now without touching shared pages, beyond the free ones.
        Changes nothing. O(requests + pages of the coming forward)."""
        residency = self.residency
        room, tables = residency.host_room(), len(self.free_tables)
        gained = 0
        for request in residency.requests.values():
            gained += self._excess_hot(request)
            tables += request.lease is not None and request.spilled == 0
        stay = residency.fresh | residency.pinned
        idle = len(residency.idle) - sum(page in residency.idle for page in stay)
        moved = min(idle, room)
        gained, room = gained + moved, room - moved
        for request, movable in self._gain_order():
            count = min(movable, room)
            net = count - self._hot_cost(request, count)
            needs_table = net < count and min(request.spilled, request.hot_pages()) == 0
            if net > 0 and tables >= needs_table:
                gained, room, tables = gained + net, room - count, tables - needs_table
        return gained

    # -- making room -----------------------------------------------------------------------------------------

    def _movable_pages(self, request: Request) -> Iterator[int]:
        """Pages of `request` that only it reads and that may leave, coldest first: oldest, then the sink."""
        residency = self.residency
        last = len(request.pages) - OPEN_PAGES
        for index in (*range(1, last), *range(min(1, last))):
            page = request.pages[index]
            if self._may_leave(page) and residency.readers[page] == [request]:
                yield page

    def _may_leave(self, page: int) -> bool:
        residency = self.residency
        return residency.device[page] >= 0 and page not in residency.fresh and page not in residency.pinned

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
        for request, _ in self._gain_order() if missing() > 0 else ():
            if missing() <= 0:
                break
            self._spill_request(request, missing())
        if missing() > 0:
            self._spill_together(missing())
        return missing() <= 0

    def _spill_idle(self, count: int) -> None:
        residency = self.residency
        chosen: list[int] = []
        room = residency.host_room()
        for page in residency.idle:
            if len(chosen) == min(count, room):
                break
            if self._may_leave(page):
                chosen.append(page)
        self._spill_pages(chosen)

    def _spill_request(self, request: Request, want: int) -> None:
        """Spill pages of `request` for a net gain of `want` device pages, or as much as it has."""
        to_fill = max(0, self.options.hot_min - request.spilled)
        count = min(want + to_fill, self.residency.host_room())
        chosen: list[int] = []
        for page in self._movable_pages(request):
            if len(chosen) == count:
                break
            chosen.append(page)
        cost = self._hot_cost(request, len(chosen))
        if len(chosen) > cost and (cost == 0 or self._has_table(request)):
            self._spill_pages(chosen)

    def _has_table(self, request: Request) -> bool:
        return request.lease is not None or bool(self.free_tables)

    def _spill_together(self, want: int) -> None:
        """Spill shared pages for a net gain of `want`, and private ones that gain only together with them:
        what is left where neither alone pays for the hot rows of all readers. Less where there is less."""
        residency = self.residency
        room, tables = residency.host_room(), len(self.free_tables)
        is_open = {page for r in residency.requests.values() for page in r.pages[-OPEN_PAGES:]}
        chosen: dict[int, None] = {}
        more: dict[int, int] = {}  # row -> pages of `chosen` that it reads
        best = gained = cost = 0
        for request, _ in self._gain_order():
            for page in (*request.pages[1:], *request.pages[:1]):
                readers = residency.readers[page]
                new = sum(r.lease is None and r.row not in more and self._hot_cost(r, 1) > 0 for r in readers)
                if len(chosen) == room or gained >= want:
                    break
                if page in chosen or page in is_open or request not in readers or new > tables:
                    continue
                if not self._may_leave(page):
                    continue
                chosen[page] = None
                tables -= new
                for reader in readers:
                    before = more.get(reader.row, 0)
                    more[reader.row] = before + 1
                    cost += self._hot_cost(reader, before + 1) - self._hot_cost(reader, before)
                if len(chosen) - cost > gained:
                    best, gained = len(chosen), len(chosen) - cost
        self._spill_pages(list(chosen)[:best])

    def _spill_pages(self, pages: list[int]) -> None:
        """Spill `pages` and lease the hot rows that this costs their readers. What a reader lacks already, as
        after a prefill that reads the host, is for `prepare_decode`."""
        residency = self.residency
        readers = {r.row: r for page in pages for r in residency.readers[page]}.values()
        lacking = [self.least_hot(r.spilled) - r.hot_pages() for r in readers]
        for page in pages:
            residency.spill(page)
        for reader, lacks in zip(readers, lacking, strict=True):
            self._resize_lease(reader, self.least_hot(reader.spilled) - lacks)

    # -- bringing back ---------------------------------------------------------------------------------------

    def hold(self, requests: Iterable[Request]) -> list[int]:
        """The coming forward reads every page of `requests` in HBM: none of them leaves, and their hot rows,
        which it does not use, make room. Returns the pages that are to be restored."""
        pages: dict[int, None] = {}
        for request in requests:
            pages.update(dict.fromkeys(request.pages))
            self._resize_lease(request, 0)
        self.residency.pinned.update(pages)
        return [page for page in pages if self.residency.device[page] < 0]

    def restore_all(self, requests: Iterable[Request]) -> bool:
        """Hold `requests` and bring every page of them to HBM (prefill reads it there). False where there is
        no room; then nothing is held, and what was brought back stays."""
        residency = self.residency
        requests = list(requests)
        gone = self.hold(requests)
        while gone:
            self.make_room(len(gone))
            count = min(len(gone), len(residency.free_device))
            if count == 0:
                residency.pinned.difference_update(page for request in requests for page in request.pages)
                return False
            for page in gone[:count]:  # their host copies can be given up now: the next turn may spill more
                residency.restore(page)
            del gone[:count]
        return True

    def prepare_decode(self, request: Request) -> bool:
        """Lease the hot rows that `request` needs to decode with what is spilled now."""
        least = self.least_hot(request.spilled)
        if request.hot_pages() >= least:
            return True
        if not self.make_room(least - request.hot_pages()) or not self._has_table(request):
            return False
        self._resize_lease(request, self.least_hot(request.spilled))
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
        """Copy the pages that would be spilled next, so that spilling them moves no bytes. Looks at every page
        of a request once, so that a step costs what it cleans and not what there is."""
        residency = self.residency
        count = min(count, len(residency.free_host))
        skipped = len(residency.fresh) + len(residency.pinned)
        for page in list(islice(residency.idle_dirty, count + skipped)):
            if count > 0 and self._may_leave(page):
                residency.clean(page)
                count -= 1
        for request, movable in self._gain_order() if count > 0 else ():
            if movable <= self._hot_cost(request, movable):
                return
            last = len(request.pages) - OPEN_PAGES
            while request.clean_upto < last and count > 0:
                page = request.pages[request.clean_upto]
                if page in residency.fresh or page in residency.pinned:
                    break
                if residency.readers[page] == [request] and residency.state(page) is State.RESIDENT:
                    residency.clean(page)
                    count -= 1
                request.clean_upto += 1

    def _bring_back(self, room: int) -> None:
        """Pressure fell: restore pages of running requests, newest first."""
        residency = self.residency
        room = min(room, self.options.restore_per_step)
        for request in list(residency.requests.values()):
            if room <= 0:
                return
            if request.stale:
                continue
            for page in reversed(request.pages) if request.spilled else ():
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
                self._resize_lease(reader, max(reader.hot_pages(), self.least_hot(reader.spilled)))
