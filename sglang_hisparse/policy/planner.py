"""When pages are cleaned, spilled and restored. What makes room, and in which order: `room.py`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from sglang_hisparse.config import OPEN_PAGES
from sglang_hisparse.policy.requests import Request
from sglang_hisparse.policy.residency import State
from sglang_hisparse.policy.room import PlannerOptions, Room, level_of

__all__ = ["Planner", "PlannerOptions"]


EXCHANGES_TRIED = 4
"""Requests a step that are looked at for hot rows, where the pages of the first are not on the host yet."""


class Planner(Room):
    """Decisions over one `Residency`. Deterministic: depends on counts and order only."""

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

    def restore_all(self, requests: Iterable[Request], borrow: bool = False) -> bool:
        """Hold `requests` and bring every page of them to HBM (prefill reads it there). False where there is
        no room; then nothing is held, and what was brought back stays. `borrow`: see `borrow_room`."""
        residency = self.residency
        requests = list(requests)
        gone = self.hold(requests)
        while gone:
            if borrow:
                self.borrow_room(len(gone))
            else:
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
        if self.forces:
            self._force()
        else:
            free = len(residency.free_device)
            if free < self.free_at_high:
                self.make_room(min(self.free_at_high, free + self.gain(self.free_at_high - free)))
            if len(residency.free_device) < self.free_at_low:
                if residency.hot_pages:
                    self._exchange()  # of what earlier steps cleaned, so that nothing waits for a copy
                # A prefill writes many pages a forward: as many should be ready to leave.
                self._clean_ahead(max(options.clean_per_step, len(residency.fresh)))
            elif residency.hot_pages or residency.spilled_pages() > residency.idle_spilled:
                self._bring_back(len(residency.free_device) - self.free_at_low)
        if residency.hot_pages:
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
        unseen = self._not_looked_at() if count > 0 else []
        for request, movable in self._gain_order(unseen) if unseen else ():
            if count <= 0 or movable <= self._hot_cost(request, movable):
                break
            count -= self._clean_request(request, count)
        if count > 0 and residency.shared_dirty:
            self._clean_shared(count)

    def may_clean(self) -> bool:
        """Whether there is a page to clean ahead, perhaps: where not, `_clean_ahead` does nothing."""
        residency = self.residency
        if not len(residency.free_host):
            return False
        if residency.idle_dirty or residency.shared_dirty:
            return True
        unseen = ((request, request.movable()) for request in self._not_looked_at())
        return any(movable > self._hot_cost(request, movable) for request, movable in unseen)

    def _not_looked_at(self) -> list[Request]:
        """Requests of which `_clean_request` may find a page; for the others it would do nothing."""
        return [
            request
            for request in self.residency.requests.values()
            if self.heat is not None or request.looked_at < len(request.pages) - OPEN_PAGES - 1
        ]

    def _clean_request(self, request: Request, count: int) -> int:
        """Clean up to `count` pages that only `request` reads. Returns how many."""
        residency, left = self.residency, count
        self._sort(request)
        places = len(request.pages) - OPEN_PAGES - 1
        while request.looked_at < places and left > 0:
            page = request.pages[request.place(request.looked_at)]
            if page in residency.fresh or page in residency.pinned:
                break
            if residency.readers[page] == [request] and residency.state(page) is State.RESIDENT:
                residency.clean(page)
                left -= 1
            request.looked_at += 1
        return count - left

    def _clean_shared(self, count: int) -> None:
        """Clean up to `count` pages with several readers, where spilling them could gain: where they and the private
        pages that leave with them are more than the hot rows of all readers."""
        residency, requests = self.residency, self.residency.requests.values()
        cost = sum(self.options.hot_min - self.least_hot(r.spilled) for r in requests)
        if len(residency.shared) + sum(request.movable() for request in requests) <= cost:
            return
        is_open = self._open_pages()
        skipped = len(residency.fresh) + len(residency.pinned) + len(is_open)
        for page in list(islice(residency.shared_dirty, count + skipped)):
            if count > 0 and self._may_leave(page) and page not in is_open:
                residency.clean(page)
                count -= 1

    def _bring_back(self, room: int) -> None:
        """Pressure fell: restore pages of running requests, hottest first: by heat, or newest first."""
        residency = self.residency
        room = min(room, self.options.restore_per_step)
        for request in list(residency.requests.values()):
            if room <= 0:
                return
            if request.stale:
                continue
            if request.spilled:
                first_open = max(0, len(request.pages) - OPEN_PAGES)
                closed = list(self._leaving(request))
                for page in (*reversed(request.pages[first_open:]), *reversed(closed[:-1]), *closed[-1:]):
                    if room > 0 and residency.device[page] < 0:
                        residency.restore(page)
                        room -= 1
            if request.spilled == 0:
                self._resize_lease(request, 0)

    def _grow_hot(self) -> None:
        """Lease up to `hot_max` where device pages are free above the high watermark's reserve; those that have least
        come first, since every further hot row is worth less than the one before."""
        residency, most = self.residency, self.options.hot_max
        spare = len(residency.free_device) - self.free_at_high
        if spare <= 0:
            return
        wanting = [
            request
            for request in residency.requests.values()
            if request.lease is not None and min(most, request.spilled) > len(request.lease.pages)
        ]
        wanting.sort(key=Request.hot_pages)
        level = level_of([request.hot_pages() for request in wanting], spare)
        for request in wanting:
            has = request.hot_pages()
            more = min(spare, max(level - has, 1), min(most, request.spilled) - has)
            self._resize_lease(request, has + more)
            spare -= more
            if spare == 0:
                return

    def _exchange(self) -> None:
        """Under pressure hot rows grow in exchange for pages that the host has already, since they are worth more
        (room.py): pages of the same request, or, where it has too few left, of the one that has most. Where no page is
        left to give, who has most hot rows shares with who has fewest. One request a step, because this looks at its
        pages: in turns those that have the fewest hot rows."""
        residency, options = self.residency, self.options
        requests = [request for request in residency.requests.values() if not request.stale]
        wanting = [
            request
            for request in requests
            if request.lease is not None
            and len(request.lease.pages) < options.hot_max
            and len(request.lease.pages) < request.spilled
        ]
        if not wanting:
            return
        least = min(request.hot_pages() for request in wanting)
        poorest = [request for request in wanting if request.hot_pages() == least]
        self.turn += 1
        if residency.clean_pages:
            most = max(requests, key=lambda request: (request.movable(), -request.row))
            for n in range(min(EXCHANGES_TRIED, len(poorest))):
                if self._exchange_for(poorest[(self.turn + n) % len(poorest)], most):
                    self.turn += n
                    return
        self._share_hot(poorest[self.turn % len(poorest)], max(requests, key=Request.hot_pages))

    def _share_hot(self, poor: Request, rich: Request) -> None:
        """Half of what `rich` has more, for `poor`, where that is many: rows that `rich` caches are lost."""
        more = (rich.hot_pages() - poor.hot_pages()) // 2
        more = min(more, self._excess_hot(rich), poor.spilled - poor.hot_pages(), self.options.grow_per_step)
        if more > self.options.hot_min // 4:
            self._resize_lease(rich, rich.hot_pages() - more)
            self._resize_lease(poor, poor.hot_pages() + more)

    def _exchange_for(self, request: Request, most: Request) -> bool:
        """Hot rows of `request` for its clean pages, or for those of `most`. False where they have none."""
        residency, options = self.residency, self.options
        wanted = min(min(options.hot_max, request.spilled) - request.hot_pages(), options.grow_per_step)
        donor = request
        # What it has left may be the page that it closed last. Those of `most` must not cost it hot rows of its own.
        if request.movable() < wanted and most.spilled >= options.hot_min:
            donor = most
        clean = (p for p in self._movable_pages(donor) if residency.state(p) is State.CLEAN)
        chosen = list(islice(clean, min(wanted, donor.movable())))
        for page in chosen:
            residency.spill(page)
        self._resize_lease(request, request.hot_pages() + len(chosen))
        return bool(chosen)

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
