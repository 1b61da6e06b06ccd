"""A scheduler, a radix tree and an allocator of logical pages: they drive the policy as the seams do.

Every operation ends with `check`: the accounting invariant, the replayed tables, and every page's bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sglang_hisparse.config import OPEN_PAGES
from sglang_hisparse.policy import Journal, Planner, PlannerOptions, Request, Residency, State
from sglang_hisparse.policy.admission import (
    can_finish,
    chunk_reserve,
    decode_pages,
    hot_charge,
    longest_prefill,
    prefill_pages,
    running_footprint,
)
from sglang_hisparse.policy.device_pages import DevicePages
from sglang_hisparse.policy.host_pages import HostPages
from tests.unit.replay import Content, Memory

Key = tuple[object, ...]

COMMON_PAGES = (4, 9, 30)
"""Script -> pages that all its requests begin with."""


@dataclass(frozen=True)
class Sizes:
    device: int
    host: int
    options: PlannerOptions
    reads_host: bool
    """prefill takes spilled rows from the host (Quest); otherwise they are restored first (DSA)"""
    new_token_ratio: float = 1.0
    """share of what running requests may still ask for that admission reckons with, as SGLang's"""

    @property
    def logical(self) -> int:
        return self.device + max(0, self.host - self.options.hot_min)

    @property
    def longest_prefill(self) -> int | None:
        return longest_prefill(self.device, self.options.hot_min, self.reads_host, chunked=True)


@dataclass(eq=False)
class Sequence:
    """One request as SGLang sees it: the pages of its row. The radix tree owns the first `in_tree`."""

    name: int
    request: Request
    script: int
    chunk: int
    pages: list[int]
    in_tree: int

    def key(self, index: int) -> Key:
        """What page `index` says: the first pages are the same for all requests of a script."""
        common = index < COMMON_PAGES[self.script]
        return (self.script, index) if common else (self.script, index, self.name)


@dataclass
class Tree:
    """Pages by what they say and what comes before them."""

    child: dict[tuple[int, Key], int] = field(default_factory=dict)
    parent: dict[int, tuple[int, Key]] = field(default_factory=dict)

    def match(self, keys: list[Key]) -> list[int]:
        pages: list[int] = []
        for key in keys:
            page = self.child.get((pages[-1] if pages else 0, key))
            if page is None:
                break
            pages.append(page)
        return pages

    def insert(self, before: int, key: Key, page: int) -> None:
        self.child[before, key] = page
        self.parent[page] = (before, key)

    def leaves(self) -> list[int]:
        inner = {before for before, _ in self.child}
        return [page for page in self.parent if page not in inner]

    def drop(self, page: int) -> None:
        del self.child[self.parent.pop(page)]


class FakeServer:
    def __init__(self, sizes: Sizes, pick: Callable[[int], int] = lambda n: 0) -> None:
        """`pick(n)` draws from range(n): what a step selects, and whether unfenced copies stay pending."""
        self.sizes, self.pick = sizes, pick
        self.residency = Residency(sizes.logical, sizes.device, sizes.host)
        self.planner = Planner(self.residency, sizes.options)
        self.memory = Memory(sizes.logical)
        self.journals: list[object] = []
        self.names = 0
        self._restart()

    def _restart(self) -> None:
        self.free_pages = deque(range(1, self.sizes.logical + 1))
        self.tree = Tree()
        self.running: list[Sequence] = []
        self.content: dict[int, Content] = {}
        self.writes = 0

    # -- allocator and radix tree ----------------------------------------------------------------------------

    def release(self, pages: list[int]) -> None:
        self.free_pages.extendleft(reversed(pages))
        for page in pages:
            self.residency.release(page)
            self.content.pop(page, None)

    def evict(self, count: int) -> int:
        """Release up to `count` pages that the tree holds and nobody locks, leaves first."""
        locked = {page for sequence in self.running for page in sequence.pages[: sequence.in_tree]}
        done = 0
        while done < count and (leaves := [page for page in self.tree.leaves() if page not in locked]):
            self.tree.drop(leaves[0])
            self.release(leaves[:1])
            done += 1
        return done

    def ensure(self, pages: int) -> bool:
        """TieredPageAllocator.ensure_device."""
        while not self.planner.make_room(pages):
            if not self.evict(pages - len(self.residency.free_device)):
                return False
        return True

    def ensure_logical(self, pages: int) -> bool:
        missing = pages - len(self.free_pages)
        return missing <= 0 or self.evict(missing) == missing

    def refresh(self) -> None:
        for sequence in self.running:
            if sequence.request.stale:
                self.planner.reread(sequence.request, sequence.pages)

    def take(self, sequence: Sequence, count: int) -> None:
        pages = [self.free_pages.popleft() for _ in range(count)]
        for page in pages:
            self.residency.allocate(page)
        sequence.pages.extend(pages)
        self.residency.attach(sequence.request, pages)

    # -- scheduler -------------------------------------------------------------------------------------------

    def admits(self, prompt: int, most: int, chunk: int, new: int) -> bool:
        """TieredPrefillBudget, with what a running request may still ask for kept in reserve."""
        hot_min, requests = self.sizes.options.hot_min, self.residency.requests.values()
        reads_host = self.sizes.reads_host
        device = max(decode_pages(most, hot_min), prefill_pages(prompt, reads_host))
        chunks = [s.chunk for s in self.running if s.request.in_prefill()]
        device += chunk_reserve(max([chunk, *chunks]), reads_host)
        longest = [request.most_pages for request in requests]
        charge = hot_charge([*longest, most], hot_min, self.sizes.device)
        growth = int(self.sizes.new_token_ratio * sum(max(0, r.most_pages - len(r.pages)) for r in requests))
        kept = [(r.most_pages, r.prompt_pages if r.in_prefill() else 0) for r in requests]
        kept.append((most, prompt if prompt > chunk else 0))
        if not can_finish(kept, self.sizes.longest_prefill, hot_min, self.sizes.logical):
            return False
        locked = {page for sequence in self.running for page in sequence.pages}
        beside = running_footprint(requests, hot_min) + device <= self.sizes.device
        return beside and growth + new + charge <= self.sizes.logical - len(locked)

    def start(self, script: int, prompt: int, output: int, chunk: int, hit: int = 1 << 20) -> Sequence | None:
        """Admit a request of `prompt` pages and prefill its first chunk; None where it has to wait.

        `hit` bounds the prefix that it finds in the tree.
        """
        self.refresh()
        sequence = Sequence(self.names, Request(-1, prompt + output, prompt), script, chunk, [], 0)
        keys = [sequence.key(index) for index in range(min(prompt - 1, hit))]
        prefix = self.tree.match(keys)
        held = {page for other in self.running for page in other.pages}
        if not self.admits(prompt, prompt + output, chunk, prompt + output - len(held.intersection(prefix))):
            return None
        sequence.request.prefill_pages = prefill_pages(prompt, self.sizes.reads_host)
        sequence.pages, sequence.in_tree = list(prefix), len(prefix)
        self.names += 1
        self.planner.open(sequence.request, prefix)
        self.running.append(sequence)
        self._prefill(sequence)
        return sequence

    def extend(self, sequence: Sequence) -> None:
        """The next chunk of a prompt."""
        self.refresh()
        self._prefill(sequence)

    def chunk_fits(self, sequence: Sequence) -> bool:
        """TieredPrefillBudget.available_chunk_tokens: a chunk waits where it has no logical pages."""
        locked = {page for other in self.running for page in other.pages[: other.in_tree]}
        evictable = len(self.tree.parent) - len(locked.intersection(self.tree.parent))
        return self._chunk(sequence) <= len(self.free_pages) + evictable

    @staticmethod
    def _chunk(sequence: Sequence) -> int:
        return min(sequence.chunk, sequence.request.prompt_pages - len(sequence.pages))

    def _bring_back(self, request: Request) -> None:
        """lifecycle._bring_back: by spilling, by evicting, then by borrowing."""
        if self.planner.restore_all([request]):
            return
        self.ensure(len(self.planner.hold([request])))
        if not self.planner.restore_all([request], borrow=True):
            raise OutOfMemory(f"{request.spilled} prefix pages of an admitted request cannot be restored")

    def _prefill(self, sequence: Sequence) -> None:
        request, count = sequence.request, self._chunk(sequence)
        if not self.sizes.reads_host:
            self._bring_back(request)
        room = self.ensure_logical(count) and (self.ensure(count) or self.planner.borrow_room(count))
        if not room:
            raise OutOfMemory(f"{count} pages of an admitted request cannot be had")
        if request.row < 0:
            rows = {other.request.row for other in self.running}
            self.planner.rename(request, next(row for row in range(len(rows) + 1) if row not in rows))
        self.take(sequence, count)

    def can_decode(self, batch: list[Sequence], grow: int) -> bool:
        """TieredPageAllocator.check_decode_capacity."""
        self.refresh()
        if not self.ensure_logical(grow):
            return False
        for sequence in batch:
            request = sequence.request
            short = self.planner.least_hot(request.spilled) - request.hot_pages()
            if short > 0 and (not self.ensure(short) or not self.planner.prepare_decode(request)):
                return False
        return self.ensure(grow)

    def decode(self, batch: list[Sequence], growing: list[Sequence]) -> list[Sequence]:
        """One decode step of `batch`, of which `growing` start a new page. Returns who was retracted."""
        retracted = []
        while not self.can_decode(batch, len(growing)):
            retracted.append(victim := batch.pop())
            if victim in growing:
                growing.remove(victim)
            self.stop(victim, keep=False)
        for sequence in growing:
            self.take(sequence, 1)
        self.forward(batch)
        return retracted

    def forward(self, decoding: Iterable[Sequence] = ()) -> None:
        """HostTier.begin_forward, then the forward: it reads what it selects, writes fresh and open pages."""
        self.planner.step()
        for sequence in decoding:
            assert self.planner.prepare_decode(sequence.request), f"row {sequence.request.row} lacks hot rows"
        written, must_be_resident = list(self.residency.fresh), list(self.residency.pinned)
        for sequence in decoding:
            own = sequence.pages[sequence.in_tree :]
            written += own[-1 - self.pick(OPEN_PAGES) :]  # speculation rewrites the page before the open one
        journal = self.residency.forward_prepared()
        self.journals.append(as_tuple(journal))
        leases = {r.lease.table: list(r.lease.pages) for r in self.residency.requests.values() if r.lease}
        self.memory.apply(journal, leases, lazy=self.pick(2) == 1)
        self.memory.check_tables(self.residency)
        self._read(decoding, must_be_resident)
        for page in dict.fromkeys(written):
            self.writes += 1
            self.content[page] = (page, self.writes)
            self.memory.write(page, self.content[page])

    def _read(self, decoding: Iterable[Sequence], must_be_resident: list[int]) -> None:
        for page in must_be_resident:
            assert self.memory.page_map[page] >= 0, f"prefill reads page {page}, which is not in HBM"
            assert self.memory.read(page) == self.content.get(page, self.memory.read(page))
        for sequence in decoding:
            known = [page for page in sequence.pages if page in self.content]
            start = self.pick(len(known)) if known else 0
            selected = (known[start:] + known[:start])[: self.sizes.options.hot_min]
            for page, content in self.memory.resolve(sequence.request.row, selected).items():
                assert content == self.content[page], (
                    f"row {sequence.request.row} reads {content}, page {page}"
                )

    # -- what follows a forward ------------------------------------------------------------------------------

    def insert(self, sequence: Sequence) -> None:
        """The radix tree takes the complete pages; where it has the same already, the row is rewritten."""
        duplicates = []
        for index in range(sequence.in_tree, len(sequence.pages) - 1):
            before, key = sequence.pages[index - 1] if index else 0, sequence.key(index)
            held = self.tree.child.get((before, key))
            if held is None:
                self.tree.insert(before, key, sequence.pages[index])
            else:
                duplicates.append(sequence.pages[index])
                sequence.pages[index] = held
            sequence.in_tree = index + 1
        self.release(duplicates)

    def stop(self, sequence: Sequence, keep: bool) -> None:
        """Finished (`keep`: complete pages stay in the tree), retracted or aborted."""
        if keep:
            self.insert(sequence)
        self.running.remove(sequence)
        self.release(sequence.pages[sequence.in_tree :])
        self.planner.close(sequence.request.row)

    def flush(self) -> None:
        self.planner.clear()
        self._restart()

    # -- invariants ------------------------------------------------------------------------------------------

    def check(self) -> None:
        residency, memory = self.residency, self.memory
        residency.check()
        for request in residency.requests.values():
            enough = request.hot_pages() >= self.planner.least_hot(request.spilled)
            assert enough or request in residency.grown, (
                f"row {request.row} lacks hot rows, and nobody would look"
            )
            assert residency.may_be_stale or not request.stale, f"row {request.row} would not be read again"
        assert 0 <= residency.device_use() <= 1
        if not residency.journal.empty() or residency.fresh:
            return
        memory.check_tables(residency)
        host = memory.host_after_copies()
        for page, content in self.content.items():
            state = residency.state(page)
            assert state is not State.FREE, f"page {page} is owned but free"
            if state is not State.SPILLED:
                assert memory.device[residency.device[page]] == content, f"device bytes of page {page}"
            if state is State.SPILLED:
                assert memory.host[residency.host[page]] == content, f"host bytes of page {page}"
            if state is State.CLEAN:
                assert host[residency.host[page]] == content, f"host copy of page {page}"


class OutOfMemory(AssertionError):
    """An admitted request could not go on: a bug in admission."""


def as_tuple(journal: Journal) -> object:
    """Everything that a journal says, for comparison."""
    return (
        [(tuple(batch.to_host), tuple(batch.to_device)) for batch in journal.batches],
        list(journal.page_values.items()),
        list(journal.hot_reset.items()),
        list(journal.row_tables.items()),
        journal.fence,
    )


def snapshot(server: FakeServer) -> object:
    """Everything that the policy knows, for comparison."""
    residency, planner = server.residency, server.planner
    plain = {
        name: list(value.items())
        if hasattr(value, "items")
        else value.copy()
        if hasattr(value, "copy")
        else list(value)
        if isinstance(value, (DevicePages, HostPages))
        else value
        for name, value in vars(residency).items()
        if name not in ("journal", "requests", "readers")
    }
    requests = [
        (
            row,
            r.pages[:],
            r.spilled,
            r.private,
            r.fresh,
            r.stale,
            r.lease and (r.lease.table, r.lease.pages[:]),
        )
        for row, r in residency.requests.items()
    ]
    readers = [[request.row for request in page] for page in residency.readers]
    return plain, requests, readers, planner.free_tables[:], as_tuple(residency.journal)
