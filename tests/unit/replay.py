"""A memory that does what a drained journal says, as the mover does, and complains where order is left open.

Unfenced copies run on a side stream: `Memory` may leave them pending while later forwards write. A fence runs
them all. Within one launch the order of copies is arbitrary, so two may not share a target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sglang_hisparse.policy import Journal, Residency

Content = tuple[object, ...]


def distinct(values: Iterable[int], what: str) -> set[int]:
    values = list(values)
    assert len(set(values)) == len(values), f"one launch writes a {what} twice: {sorted(values)}"
    return set(values)


class HotTable:
    """What the pages of one lease cache, at page granularity, least recently used first out."""

    def __init__(self) -> None:
        self.device_pages: list[int] = []
        self.cached: list[int | None] = []
        self.stamps: list[int] = []
        self.now = 0

    def reset(self, first: int, device_pages: list[int]) -> None:
        kept = min(first, len(device_pages), len(self.device_pages))
        assert kept == first or kept == len(device_pages), "a lease grew without a reset of what it got"
        assert device_pages[:kept] == self.device_pages[:kept], "a kept hot entry changed its device page"
        blank = len(device_pages) - kept
        self.device_pages = list(device_pages)
        self.cached = self.cached[:kept] + [None] * blank
        self.stamps = self.stamps[:kept] + [0] * blank

    def entry_for(self, pages: list[int]) -> dict[int, tuple[int, bool]]:
        """One step: page -> (its hot device page, was it a hit). No entry of the step evicts another."""
        self.now += 1
        found = {}
        for page in pages:
            if page in self.cached:
                entry = self.cached.index(page)
                self.stamps[entry] = self.now
                found[page] = (self.device_pages[entry], True)
        for page in pages:
            if page not in found:
                free = [e for e in range(len(self.cached)) if self.stamps[e] != self.now]
                assert free, f"a step selects {len(pages)} spilled pages, the lease has {len(self.cached)}"
                entry = min(free, key=lambda e: (self.stamps[e], e))
                self.cached[entry], self.stamps[entry] = page, self.now
                found[page] = (self.device_pages[entry], False)
        return found


class Memory:
    """Device pages, host pages, page map and hot tables. Content is whatever a forward wrote."""

    def __init__(self, logical_pages: int) -> None:
        self.device: dict[int, Content] = {}
        self.host: dict[int, Content] = {}
        self.page_map = [0] + [-1] * logical_pages
        self.hot_index: dict[int, int] = {}
        self.tables: dict[int, HotTable] = {}
        self.pending: list[tuple[bool, list[tuple[int, int]]]] = []
        self.copied = 0

    def apply(self, journal: Journal, leases: Mapping[int, list[int]], lazy: bool) -> None:
        """`lazy`: leave copies that are not fenced pending."""
        for batch in journal.batches:
            self._check_launches(batch.to_host, batch.to_device)
            for to_host, copies in ((True, batch.to_host), (False, batch.to_device)):
                if copies:
                    self.pending.append((to_host, copies))
                    self.copied += len(copies)
        if any(batch.to_device for batch in journal.batches):
            assert journal.fence, "the next forward may read a page before it is restored"
        if journal.fence or not lazy:
            self.run_copies()
        for page, value in journal.page_values.items():
            self.page_map[page] = value
        for row, table in journal.row_tables.items():
            assert row >= 0, f"the journal names row {row}"
            self.hot_index[row] = table
        for table, first in journal.hot_reset.items():
            self.tables.setdefault(table, HotTable()).reset(first, leases.get(table, []))

    @staticmethod
    def _check_launches(to_host: list[tuple[int, int]], to_device: list[tuple[int, int]]) -> None:
        distinct((host for _, host in to_host), "host page")
        distinct((device for device, _ in to_device), "device page")
        for device, host in [*to_host, *to_device]:
            assert device > 0 and host >= 0, f"copy of device page {device} and host page {host}"

    def run_copies(self) -> None:
        for to_host, copies in self.pending:
            for device, host in copies:
                if to_host:
                    self.host[host] = self.device.get(device, ())
                else:
                    self.device[device] = self.host.get(host, ())
        self.pending.clear()

    def host_after_copies(self) -> dict[int, Content]:
        """Host content once everything pending has run, which changes no device page that is in use."""
        host = dict(self.host)
        for to_host, copies in self.pending:
            assert to_host, "a copy to the device may not stay pending"
            host.update({h: self.device.get(d, ()) for d, h in copies})
        return host

    # -- what a forward does ---------------------------------------------------------------------------------

    def write(self, page: int, content: Content) -> None:
        device = self.page_map[page]
        assert device > 0, f"a forward writes page {page}, which has no device page"
        self.device[device] = content

    def read(self, page: int) -> Content:
        """Wherever it is."""
        value = self.page_map[page]
        assert value != -1, f"page {page} is nowhere"
        return self.device.get(value, ()) if value >= 0 else self.host.get(-2 - value, ())

    def resolve(self, row: int, pages: list[int]) -> dict[int, Content]:
        """What attention of `row` reads for one step that selects `pages`."""
        spilled = [page for page in pages if self.page_map[page] < 0]
        read = {page: self.read(page) for page in pages if page not in spilled}
        if spilled:
            table = self.hot_index.get(row, -1)
            assert table >= 0, f"row {row} selects spilled pages {spilled} and leases nothing"
            for page, (device, hit) in self.tables[table].entry_for(spilled).items():
                if not hit:
                    self.device[device] = self.read(page)
                read[page] = self.device[device]
        return read

    def check_tables(self, residency: Residency) -> None:
        """The replayed tables equal what the policy believes."""
        for page in range(1, residency.logical_pages + 1):
            device, host = residency.device[page], residency.host[page]
            want = device if device >= 0 else -2 - host if host >= 0 else -1
            assert self.page_map[page] == want, f"page {page} maps to {self.page_map[page]}, should be {want}"
        leased = set()
        for row, request in residency.requests.items():
            table = self.hot_index.get(row, -1)
            if request.lease is None:
                assert table == -1, f"row {row} leases nothing, but maps to hot table {table}"
            else:
                assert table == request.lease.table, f"row {row} maps to hot table {table}"
                assert self.tables[table].device_pages == request.lease.pages, f"hot pages of row {row}"
                leased.update(request.lease.pages)
        assert leased.isdisjoint(self.page_map[1:]), "a leased device page also holds a page"
