"""State of every logical page, and the accounting of both tiers.

    FREE      no SGLang owner                      device -   host -
    RESIDENT  only in HBM                          device d   host -
    CLEAN     in HBM and, identical, on the host   device d   host h
    SPILLED   only on the host                     device -   host h

Every method changes the state and writes what the device must do to the journal; none touches memory.
Device pages are in exactly one place: free list, a page's `device`, or a hot lease.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum

from sglang_hisparse.policy.device_pages import DevicePages
from sglang_hisparse.policy.heat import Heat
from sglang_hisparse.policy.host_pages import HostPages
from sglang_hisparse.policy.journal import Journal
from sglang_hisparse.policy.requests import Request


class State(Enum):
    FREE = "free"
    RESIDENT = "resident"
    CLEAN = "clean"
    SPILLED = "spilled"


class Residency:
    """Page states for `logical_pages` pages over `device_pages` device and `host_pages` host pages.

    Pages are numbered from 1; page 0 is SGLang's padding page and always device page 0.
    """

    def __init__(self, logical_pages: int, device_pages: int, host_pages: int) -> None:
        self.logical_pages, self.device_pages, self.host_pages = logical_pages, device_pages, host_pages
        self.journal = Journal()
        self.requests: dict[int, Request] = {}
        self.cleaned = self.spilled = self.restored = 0  # counters since start
        self.heat: Heat | None = None
        self.clear()

    def clear(self) -> None:
        """Forget every page and request (SGLang flushed its allocator)."""
        count = self.logical_pages + 1
        for page in range(1, count):
            if hasattr(self, "device") and (self.device[page] >= 0 or self.host[page] >= 0):
                self.journal.map(page, -1)
        for request in list(self.requests.values()):
            self._drop_lease_tables(request)
        self.requests.clear()
        self.device: list[int] = [0] + [-1] * (count - 1)
        self.host: list[int] = [-1] * count
        self.readers: list[list[Request]] = [[] for _ in range(count)]
        self.free_device = DevicePages(self.device_pages)
        self.free_host = HostPages(self.host_pages)
        self.last_host = -1  # host page taken last for a page that nobody reads
        self.hot_pages = 0
        self.idle: OrderedDict[int, None] = OrderedDict()  # owned, no reader, in HBM; longest idle first
        self.idle_dirty: OrderedDict[int, None] = OrderedDict()  # those of them without a host copy
        self.idle_spilled = 0  # owned, no reader, only on the host
        self.shared: OrderedDict[int, None] = OrderedDict()  # two readers or more, with a device page
        self.shared_dirty: OrderedDict[int, None] = OrderedDict()  # those of them without a host copy
        self.clean_pages: OrderedDict[int, None] = OrderedDict()  # host copies that can be given up
        self.fresh: set[int] = set()
        self.pinned: set[int] = set()
        self.may_be_stale = False  # where False, no request is
        self.grown: dict[
            Request, None
        ] = {}  # got spilled pages, or lost hot rows: all that may lack hot rows
        if self.heat is not None:
            self.heat.clear()

    def _drop_lease_tables(self, request: Request) -> None:
        if request.lease is not None:
            self.journal.row_tables[request.row] = -1
            self.journal.reset_hot(request.lease.table, 0)

    # -- queries ---------------------------------------------------------------------------------------------

    def state(self, page: int) -> State:
        device, host = self.device[page] >= 0, self.host[page] >= 0
        return (State.FREE, State.SPILLED, State.RESIDENT, State.CLEAN)[2 * device + host]

    def host_room(self) -> int:
        """Pages that could still be spilled: free host pages, and host copies of pages that are in HBM."""
        return len(self.free_host) + len(self.clean_pages)

    def spilled_pages(self) -> int:
        """Pages that are only on the host. O(1)."""
        return self.host_pages - len(self.free_host) - len(self.clean_pages)

    def device_use(self) -> float:
        """Share of device pages in use, hot rows included, in [0, 1]."""
        return 1.0 - len(self.free_device) / self.device_pages

    # -- owner changes ---------------------------------------------------------------------------------------

    def allocate(self, page: int) -> None:
        """FREE -> RESIDENT: SGLang handed the page out; the coming forward writes it."""
        if self.device[page] >= 0 or self.host[page] >= 0:
            raise AssertionError(f"page {page} is {self.state(page).value}, cannot be allocated")
        device = self.free_device.take()
        self.device[page] = device
        self.journal.map(page, device)
        self.fresh.add(page)
        self._enter_idle(page)
        if self.heat is not None:
            self.heat.written(page)

    def release(self, page: int) -> None:
        """any -> FREE: SGLang gave the page up. Requests that still list it read their row again."""
        if self.device[page] < 0 and self.host[page] < 0:
            raise AssertionError(f"page {page} was released twice")
        for request in list(self.readers[page]):
            self._detach_page(request, page)
            request.stale = self.may_be_stale = True
            if request.lease is not None:  # its hot rows may cache slots of this page: their owner changes
                self.journal.reset_hot(request.lease.table, 0)
        if self.device[page] >= 0:
            self.free_device.give(self.device[page])
        else:
            self.idle_spilled -= 1
        if self.host[page] >= 0:
            self.free_host.give(self.host[page])
        self.device[page] = self.host[page] = -1
        for index in (self.idle, self.idle_dirty, self.shared, self.shared_dirty, self.clean_pages):
            index.pop(page, None)
        if self.heat is not None:
            self.heat.forget(page)
        self.fresh.discard(page)
        self.pinned.discard(page)
        self.journal.map(page, -1)

    # -- readers ---------------------------------------------------------------------------------------------

    def attach(self, request: Request, pages: Iterable[int]) -> None:
        """`request` reads `pages` next after those it has."""
        for page in pages:
            readers = self.readers[page]
            readers.append(request)
            request.pages.append(page)
            on_device = self.device[page] >= 0
            if len(readers) == 1:
                if on_device:
                    self.idle.pop(page)
                    self.idle_dirty.pop(page, None)
                    request.private += 1
                    request.fresh += page in self.fresh
                else:
                    self.idle_spilled -= 1
                    request.spilled += 1
                    self.grown[request] = None
            else:
                if not on_device:
                    request.spilled += 1
                    self.grown[request] = None
                elif len(readers) == 2:
                    self._leave_private(readers[0], page)
                    self._enter_shared(page)

    def _enter_shared(self, page: int) -> None:
        self.shared[page] = None
        if self.host[page] < 0:
            self.shared_dirty[page] = None

    def _leave_shared(self, page: int) -> None:
        self.shared.pop(page, None)
        self.shared_dirty.pop(page, None)

    def _enter_idle(self, page: int) -> None:
        self.idle[page] = None
        if self.host[page] < 0:
            self.idle_dirty[page] = None

    def _leave_private(self, request: Request, page: int) -> None:
        request.private -= 1
        request.fresh -= page in self.fresh

    def _detach_page(self, request: Request, page: int) -> None:
        readers = self.readers[page]
        readers.remove(request)
        on_device = self.device[page] >= 0
        if not on_device:
            request.spilled -= 1
        if not readers:
            if on_device:
                self._leave_private(request, page)
                self._enter_idle(page)
            else:
                self.idle_spilled += 1
        elif len(readers) == 1 and on_device:
            self._leave_shared(page)
            readers[0].private += 1
            readers[0].fresh += page in self.fresh

    def detach_all(self, request: Request) -> None:
        """`request` reads nothing any more. Pages stay with their owner (the radix tree) or are released."""
        for page in request.pages:
            if request in self.readers[page]:
                self._detach_page(request, page)
        request.pages = []
        self.grown.pop(request, None)
        request.order, request.sorted_at, request.looked_at, request.gone = [], -1, 0, 0
        request.stale = False

    # -- moves -----------------------------------------------------------------------------------------------

    def _take_host(self, page: int) -> int:
        """A host page for `page`, near the others of its first reader, or of what nobody reads."""
        if not self.free_host:
            victim, _ = self.clean_pages.popitem(last=False)
            self.free_host.give(self.host[victim])
            self.host[victim] = -1
            if victim in self.idle:
                self.idle_dirty[victim] = None
            elif victim in self.shared:
                self.shared_dirty[victim] = None
        owner = self.readers[page][0] if self.readers[page] else self
        owner.last_host = self.free_host.take(owner.last_host)
        return owner.last_host

    def clean(self, page: int) -> None:
        """RESIDENT -> CLEAN: copy to the host ahead of need."""
        host = self._take_host(page)
        self.host[page] = host
        self.clean_pages[page] = None
        self.idle_dirty.pop(page, None)
        self.shared_dirty.pop(page, None)
        self.journal.copy_to_host(self.device[page], host)
        self.cleaned += 1

    def spill(self, page: int) -> None:
        """RESIDENT or CLEAN -> SPILLED. The device page is free for the next forward."""
        if self.host[page] < 0:
            self.clean(page)
        self.clean_pages.pop(page)
        self.journal.fence = True
        self.free_device.give(self.device[page])
        self.device[page] = -1
        self.journal.map(page, -2 - self.host[page])
        readers = self.readers[page]
        if not readers:
            self.idle.pop(page)
            self.idle_spilled += 1
        elif len(readers) == 1:
            self._leave_private(readers[0], page)
        else:
            self._leave_shared(page)
        for request in readers:
            request.spilled += 1
            self.grown[request] = None
        self.spilled += 1

    def restore(self, page: int) -> None:
        """SPILLED -> CLEAN: the coming forward finds the page in HBM again."""
        device = self.free_device.take()
        self.device[page] = device
        self.clean_pages[page] = None
        self.journal.copy_to_device(device, self.host[page])
        self.journal.map(page, device)
        readers = self.readers[page]
        for request in readers:
            request.spilled -= 1
            request.gone = 0
        if not readers:
            self.idle_spilled -= 1
            self._enter_idle(page)
        elif len(readers) == 1:
            readers[0].private += 1
        else:
            self._enter_shared(page)
        self.restored += 1

    def forward_prepared(self) -> Journal:
        """The coming forward is about to be launched: what it writes is ordinary from the next one on."""
        for page in self.fresh:
            readers = self.readers[page]
            if len(readers) == 1:
                readers[0].fresh -= 1
        self.fresh.clear()
        self.pinned.clear()
        drained, self.journal = self.journal, Journal()
        return drained

    # -- invariant -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Accounting invariant; raises AssertionError with what is off. O(pages); for tests and the audit."""
        on_device = [p for p in range(1, self.logical_pages + 1) if self.device[p] >= 0]
        leased = [d for r in self.requests.values() if r.lease for d in r.lease.pages]
        places = sorted([*self.free_device, *(self.device[p] for p in on_device), *leased])
        assert places == list(range(1, self.device_pages + 1)), "a device page is lost or in two places"
        assert len(leased) == self.hot_pages, f"{len(leased)} hot pages leased, {self.hot_pages} counted"
        hosts = sorted([*self.free_host, *(h for h in self.host if h >= 0)])
        assert hosts == list(range(self.host_pages)), "a host page is lost or in two places"
        for page in range(1, self.logical_pages + 1):
            state, readers = self.state(page), self.readers[page]
            idle = not readers and self.device[page] >= 0
            assert (page in self.idle) == idle, f"idle index, page {page}"
            assert (page in self.idle_dirty) == (idle and state is State.RESIDENT), f"idle dirty, page {page}"
            shared = len(readers) > 1 and self.device[page] >= 0
            assert (page in self.shared) == shared, f"shared index, page {page}"
            dirty = shared and state is State.RESIDENT
            assert (page in self.shared_dirty) == dirty, f"shared dirty, page {page}"
            assert (page in self.clean_pages) == (state is State.CLEAN), f"clean index, page {page}"
        spilled = [p for p in range(1, self.logical_pages + 1) if self.state(p) is State.SPILLED]
        assert self.idle_spilled == sum(not self.readers[p] for p in spilled), "idle spilled count"
        for request in self.requests.values():
            mine = [p for p in request.pages if request in self.readers[p]]
            alone = [p for p in mine if self.device[p] >= 0 and len(self.readers[p]) == 1]
            assert request.spilled == sum(self.device[p] < 0 for p in mine), f"spilled, row {request.row}"
            assert request.private == len(alone), f"private, row {request.row}"
            gone = [request.pages[request.place(n)] for n in range(request.gone)]
            assert all(self.device[p] < 0 or p not in mine for p in gone), f"gone, row {request.row}"
            assert request.fresh == sum(p in self.fresh for p in alone), f"fresh, row {request.row}"
