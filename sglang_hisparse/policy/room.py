"""How device pages become free, and how many a request leases for hot rows.

Spilling pays only beyond the hot rows that it makes necessary: the first `hot_min` pages that leave a
request cost as many leased pages. So room is made in this order, and a request is touched only where that
gains pages:

    1. idle pages: owned by the radix tree, read by nobody     (gain 1 a page)
    2. pages that one request reads, coldest first, its first page (attention sink) last
    3. pages that several requests read, and private ones that gain only together with them
    4. hot rows beyond the least that a request needs          (gain 1 a page, no bytes)

Hot rows go last because they are worth most: of the published miss rates, the second top_k of hot rows takes 16.6 of 30
points, half a point a page; a page of a context of 512 pages that stays in HBM takes 0.06 (30 % of 1/512). The third
and fourth top_k take 6.7 together, a tenth of a point a page, against 0.03 (13.4 % of 1/512).

`gain()` answers how much that would be and changes nothing; `make_room()` does it. Both count the same way.
A prefill reads no hot rows, so that for one `borrow_room()` also takes the least rows of all requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sglang_hisparse.config import OPEN_PAGES
from sglang_hisparse.policy.heat import Heat
from sglang_hisparse.policy.requests import Lease, Request
from sglang_hisparse.policy.residency import Residency


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
    grow_per_step: int = 64
    spill_order: str = "position"
    """position: the oldest pages of a request leave first; heat: those selected least lately"""


def level_of(heights: list[int], water: int) -> int:
    """How high `water` more fills the lowest of `heights`, which ascend. 0 where there are none."""
    for count, height in enumerate(heights):
        if count and water <= height * count:
            return water // count
        water += height
    return water // len(heights) if heights else 0


class Room:
    """Leases of hot rows, and making room, over one `Residency`. Deterministic: depends on counts and order only."""

    def __init__(self, residency: Residency, options: PlannerOptions) -> None:
        self.residency = residency
        self.options = options
        self.free_tables = list(range(options.tables - 1, -1, -1))
        self.heat = Heat() if options.spill_order == "heat" else None
        residency.heat = self.heat
        self.turn = 0  # of the requests whose hot rows grow under pressure

    @property
    def options(self) -> PlannerOptions:
        """May be replaced between two steps."""
        return self._options

    @options.setter
    def options(self, options: PlannerOptions) -> None:
        pages = self.residency.device_pages
        self._options = options
        self.forces = options.force_spill > 0
        self.free_at_low = pages - int(options.low_watermark * pages)
        self.free_at_high = pages - int(options.high_watermark * pages)
        """device pages that are free where use is at a watermark"""

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
            lease.pages.append(residency.free_device.take())
        while len(lease.pages) > pages:
            residency.free_device.give(lease.pages.pop())
        residency.hot_pages += pages - before
        if pages < before:
            residency.grown[request] = None
        if pages != before:
            journal.reset_hot(lease.table, min(pages, before))
        if pages == 0:
            journal.row_tables[request.row] = -1
            self.free_tables.append(lease.table)
            request.lease = None

    def lacking(self, requests: Iterable[Request | None]) -> list[Request]:
        """Those of `requests` that have too few hot rows to decode. Looks at them only where one may have."""
        grown = self.residency.grown
        for request in list(grown) if grown else ():
            if request.hot_pages() >= self.least_hot(request.spilled):
                del grown[request]
        return [request for request in requests if request in grown] if grown else []

    def _excess_hot(self, request: Request) -> int:
        return max(0, request.hot_pages() - self.least_hot(request.spilled))

    # -- what can be gained ----------------------------------------------------------------------------------

    def _hot_cost(self, request: Request, more: int) -> int:
        return self.least_hot(request.spilled + more) - self.least_hot(request.spilled)

    def _gain_order(self, requests: Iterable[Request] | None = None) -> list[tuple[Request, int]]:
        """`requests` (all of them) and how many of their pages may leave (a lower bound), by what that would gain,
        best first; ties by row."""
        residency, hot_min = self.residency, self.options.hot_min
        pinned: dict[Request, int] = {}
        for page in residency.pinned:
            if residency.device[page] >= 0 and len(residency.readers[page]) == 1:
                reader = residency.readers[page][0]
                pinned[reader] = pinned.get(reader, 0) + 1
        order = []
        for request in residency.requests.values() if requests is None else requests:
            movable, spilled = request.movable(), request.spilled
            if request in pinned:
                movable = max(0, movable - pinned[request])
            cost = min(hot_min, spilled + movable) - spilled if spilled < hot_min else 0
            order.append((cost - movable, request.row, request, movable))
        order.sort()
        return [(request, movable) for _, _, request, movable in order]

    def gain(self, enough: int | None = None) -> int:
        """Device pages that `make_room` could free now without touching shared pages, beyond the free ones; where it
        is `enough` or more, maybe less than all. Changes nothing. O(requests + pages of the coming forward)."""
        residency = self.residency
        room, tables = residency.host_room(), len(self.free_tables)
        gained = 0
        for request in residency.requests.values():
            if request.lease is not None:
                gained += max(0, len(request.lease.pages) - min(self._options.hot_min, request.spilled))
                tables += request.spilled == 0
        stay = residency.fresh | residency.pinned
        idle = len(residency.idle) - sum(page in residency.idle for page in stay)
        moved = min(idle, room)
        gained, room = gained + moved, room - moved
        if enough is not None and gained >= enough:
            return gained
        for request, movable in self._gain_order():
            if enough is not None and gained >= enough:
                break
            count = min(movable, room)
            net = count - self._hot_cost(request, count)
            needs_table = net < count and min(request.spilled, request.hot_pages()) == 0
            if net > 0 and tables >= needs_table:
                gained, room, tables = gained + net, room - count, tables - needs_table
        return gained

    # -- making room -----------------------------------------------------------------------------------------

    def _sort(self, request: Request) -> None:
        """Bring the order in which pages of `request` leave up to date. By position it never changes."""
        heat, pages = self.heat, request.pages
        if heat is not None and request.sorted_at != heat.readings:
            closed = range(1, len(pages) - OPEN_PAGES)
            request.order = sorted(closed, key=lambda index: heat.of(pages[index]))
            request.sorted_at, request.looked_at, request.gone = heat.readings, 0, 0

    def _leaving(self, request: Request, first: int = 0) -> Iterator[int]:
        """Pages of `request` that are not open, from the `first` on, coldest first: by heat or oldest first, its first
        page last."""
        self._sort(request)
        last = len(request.pages) - OPEN_PAGES
        for n in range(first, last - 1):
            yield request.pages[request.place(n)]
        if last > 0:
            yield request.pages[0]

    def _movable_pages(self, request: Request) -> Iterator[int]:
        """Pages of `request` that only it reads and that may leave, coldest first."""
        residency, pages = self.residency, request.pages
        self._sort(request)
        last = len(pages) - OPEN_PAGES - 1
        while request.gone < last and residency.device[pages[request.place(request.gone)]] < 0:
            request.gone += 1
        for page in self._leaving(request, request.gone):
            if self._may_leave(page) and residency.readers[page] == [request]:
                yield page

    def _open_pages(self) -> set[int]:
        """Pages that are open for one of their readers, or were just before."""
        return {page for r in self.residency.requests.values() for page in r.pages[-OPEN_PAGES:]}

    def _may_leave(self, page: int) -> bool:
        residency = self.residency
        return residency.device[page] >= 0 and page not in residency.fresh and page not in residency.pinned

    def make_room(self, pages: int) -> bool:
        """Free device pages until `pages` are free. False where that many cannot be had; then what was gained
        stays gained."""
        residency = self.residency

        if pages <= len(residency.free_device):
            return True

        def missing() -> int:
            return pages - len(residency.free_device)

        self._spill_idle(missing())
        for request, _ in self._gain_order() if missing() > 0 else ():
            if missing() <= 0:
                break
            self._spill_request(request, missing())
        if missing() > 0 and residency.shared:  # private pages alone gained what they can
            self._spill_together(missing())
        while missing() > 0 and self._shrink_hot(missing()):
            pass
        return missing() <= 0

    def _shrink_hot(self, pages: int) -> bool:
        """Take up to `pages` of hot rows that requests can do without, from those that have most. True where it did."""
        rich = [request for request in self.residency.requests.values() if self._excess_hot(request)]
        rich.sort(key=Request.hot_pages, reverse=True)
        level = -level_of([-request.hot_pages() for request in rich], pages)
        for request in rich:
            has = request.hot_pages()
            less = min(pages, max(has - level, 1), self._excess_hot(request))
            self._resize_lease(request, has - less)
            pages -= less
            if pages == 0:
                break
        return bool(rich)

    def borrow_room(self, pages: int) -> bool:
        """`make_room`, and where that is not enough, also what only a decode reads: hot rows that requests cannot do
        without, and pages that leave without leasing them. For a prefill. A request gets its hot rows back in
        `prepare_decode`, or is retracted, before it decodes again.

        Never False where SGLang has the logical pages, the radix tree is evicted and the footprints were admitted:
        used pages <= logical - pages = device + host - hot_min - pages, and without a lease every device page is
        free, open, held or movable. Open, held and new pages fit the device (admission). The movable ones find
        host pages, since what is free in both tiers together is hot_min + pages or more.
        """
        residency = self.residency
        if self.make_room(pages):
            return True
        for request in residency.requests.values():
            missing = pages - len(residency.free_device)
            self._resize_lease(request, request.hot_pages() - min(request.hot_pages(), max(0, missing)))
        is_open = self._open_pages()
        for request, _ in self._gain_order():
            for page in self._leaving(request):
                if len(residency.free_device) >= pages or residency.host_room() == 0:
                    return len(residency.free_device) >= pages
                if self._may_leave(page) and page not in is_open and request in residency.readers[page]:
                    residency.spill(page)
        return len(residency.free_device) >= pages

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
        is_open = self._open_pages()
        chosen: dict[int, None] = {}
        more: dict[int, int] = {}  # row -> pages of `chosen` that it reads
        best = gained = cost = 0
        for request, _ in self._gain_order():
            self._sort(request)
            for page in self._leaving(request, request.gone):
                if len(chosen) == room or gained >= want:
                    break
                readers = residency.readers[page]
                if not self._may_leave(page) or page in chosen or page in is_open or request not in readers:
                    continue
                new = sum(r.lease is None and r.row not in more and self._hot_cost(r, 1) > 0 for r in readers)
                if new > tables:
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
