"""What can happen to a server, as plain methods: driven at random, and by hypothesis, which shrinks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TypeVar

from sglang_hisparse.config import OPEN_PAGES
from sglang_hisparse.policy import PlannerOptions
from tests.unit.fake_server import FakeServer, Sequence, Sizes, snapshot

T = TypeVar("T")

WATERMARKS = [(0.85, 0.99), (0.0, 0.0), (0.0, 1.0), (0.3, 0.6), (0.5, 0.5), (1.0, 1.0)]


def any_sizes(one_of: Callable[[list[T]], T]) -> Sizes:
    """Sizes at and beside every extreme; `one_of` draws from a list."""
    hot_min = one_of(list(range(1, 9)))
    low, high = one_of(WATERMARKS)
    options = PlannerOptions(
        hot_min=hot_min,
        hot_max=hot_min + one_of([0, 1, 8]),
        tables=one_of([2, 4, 64]),
        low_watermark=low,
        high_watermark=high,
        force_spill=one_of([0.0, 0.0, 0.1, 0.5, 1.0]),
        clean_per_step=one_of([1, 3, 64]),
        restore_per_step=one_of([1, 4, 32]),
        spill_order=one_of(["position", "heat"]),
    )
    device = hot_min + OPEN_PAGES + 2 + one_of([0, 1, 3, 6, 10, 20, 40])
    host = one_of([0, 1, hot_min, hot_min + 1, 16, 24, 40, 60, 80])
    return Sizes(device, host, options, reads_host=one_of([True, False]))


class Events:
    """One method an event. An event that cannot happen now does nothing."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server

    def _some(self, which: int, among: Callable[[Sequence], bool] = lambda _: True) -> list[Sequence]:
        """The running requests at the set bits of `which`."""
        running = [sequence for sequence in self.server.running if among(sequence)]
        return [sequence for index, sequence in enumerate(running) if which >> index & 1]

    def start(self, script: int, prompt: int, output: int, chunk: int, hit: int, squeezed: bool) -> None:
        server, sizes = self.server, self.server.sizes
        output = min(output, sizes.logical - 1)
        prompt = min(prompt, sizes.logical - output, sizes.logical if sizes.reads_host else sizes.device)
        chunk = min(chunk, sizes.device - sizes.options.hot_min - OPEN_PAGES - 1)
        if len(server.running) < sizes.options.tables and server.start(script, prompt, output, chunk, hit):
            if squeezed:  # between allocation and forward: new and held pages stay
                self.squeeze()
            server.forward()

    def extend(self, which: int, squeezed: bool) -> None:
        for sequence in self._some(which, lambda s: s.request.in_prefill())[:1]:
            self.server.extend(sequence)
            if squeezed:
                self.squeeze()
            self.server.forward()

    def decode(self, which: int, grow: int) -> None:
        batch = self._some(which, lambda s: not s.request.in_prefill())
        growing = [s for i, s in enumerate(batch) if grow >> i & 1 and len(s.pages) < s.request.most_pages]
        assert not self.server.decode(batch, growing), "a request was retracted, though all were admitted"

    def insert(self, which: int) -> None:
        for sequence in self._some(which):
            self.server.insert(sequence)

    def stop(self, which: int, keep: bool) -> None:
        for sequence in self._some(which):
            self.server.stop(sequence, keep)

    def read_heat(self, seed: int) -> None:
        """Counts of selections arrive, of pages that are long released too."""
        heat, rng = self.server.planner.heat, random.Random(seed)
        if heat is not None:
            pages = rng.sample(range(1, self.server.sizes.logical + 1), min(10, self.server.sizes.logical))
            heat.add({page: rng.randrange(100) for page in pages})

    def quiet_step(self) -> None:
        """Below the low watermark with nothing spilled, a step copies nothing."""
        server, options, residency = self.server, self.server.sizes.options, self.server.residency
        server.forward()  # what was pending
        free = len(residency.free_device)
        below = free >= server.sizes.device - int(options.low_watermark * server.sizes.device)
        spilled = residency.idle_spilled + sum(request.spilled for request in residency.requests.values())
        server.planner.step()
        if below and not spilled and not options.force_spill:
            batches = residency.journal.batches
            assert not any(batch.to_host or batch.to_device for batch in batches), "a quiet step copies"

    def nothing_to_clean(self) -> None:
        """Where `may_clean` says so there is nothing."""
        planner = self.server.planner
        if not planner.may_clean():
            before = snapshot(self.server)
            planner._clean_ahead(1000)
            assert snapshot(self.server) == before, "there was a page to clean"

    def squeeze(self) -> None:
        """gain() changes nothing, and make_room() finds what it says."""
        before = snapshot(self.server)
        gain = self.server.planner.gain()
        assert snapshot(self.server) == before, "gain() changed something"
        assert self.make_room(len(self.server.residency.free_device) + gain), "gain() promised too much"

    def _stays(self) -> set[int]:
        """Fresh, held and open pages."""
        residency = self.server.residency
        stay = set(residency.fresh) | set(residency.pinned)
        for request in residency.requests.values():
            stay.update(page for page in request.pages[-OPEN_PAGES:] if request in residency.readers[page])
        return stay

    def make_room(self, pages: int, borrow: bool = False) -> bool:
        """Fresh, held and open pages stay where they are; the answer is true."""
        residency, planner = self.server.residency, self.server.planner
        before = {page: residency.device[page] for page in self._stays()}
        done = planner.borrow_room(pages) if borrow else planner.make_room(pages)
        assert done == (len(residency.free_device) >= pages)
        assert {page: residency.device[page] for page in before} == before, "a page left that may not"
        return done

    def borrow(self, pages: int) -> None:
        """For a prefill there is room as long as the tree is evicted and SGLang has pages."""
        server, residency = self.server, self.server.residency
        server.evict(server.sizes.logical)
        stay = sum(residency.device[page] >= 0 for page in self._stays())
        pages = min(pages, len(server.free_pages), server.sizes.device - stay)
        assert self.make_room(pages, borrow=True), f"no room for {pages} pages"

    def leave(self) -> None:
        """Everybody stops and the tree is evicted: nothing is held."""
        server = self.server
        for sequence in list(server.running):
            server.stop(sequence, keep=True)
        server.evict(server.sizes.logical)
        server.forward()
        server.check()
        assert len(server.residency.free_device) == server.sizes.device
        assert len(server.residency.free_host) == server.sizes.host
        assert sorted(server.planner.free_tables) == list(range(server.sizes.options.tables))
        assert set(server.memory.page_map[1:]) == {-1}
        assert set(server.memory.hot_index.values()) <= {-1}


def random_events(server: FakeServer, rng: random.Random, count: int) -> None:
    """`count` events, each followed by every check, then `leave`."""
    events = Events(server)

    def bits() -> int:
        return rng.getrandbits(16)

    def start() -> None:
        prompt, output, chunk = rng.randint(1, 24), rng.randint(1, 12), rng.randint(1, 12)
        hit = rng.choice([0, 3, 24, 24, 24])
        events.start(rng.randrange(3), prompt, output, chunk, hit, squeezed=rng.random() < 0.3)

    weighted: dict[Callable[[], object], int] = {
        start: 12,
        lambda: events.extend(bits(), squeezed=rng.random() < 0.3): 10,
        lambda: events.decode(bits() | bits(), bits()): 20,
        lambda: events.insert(bits()): 4,
        lambda: events.stop(bits() & bits(), keep=rng.random() < 0.9): 6,
        lambda: server.evict(rng.randint(1, 30)): 1,
        server.forward: 2,
        events.quiet_step: 2,
        events.squeeze: 2,
        lambda: events.read_heat(bits()): 4,
        lambda: events.make_room(rng.randint(0, 60)): 2,
        lambda: events.borrow(rng.randint(0, 60)): 1,
    }
    todo = rng.choices(list(weighted), list(weighted.values()), k=count)
    todo[count // 2] = server.flush
    for action in todo:
        action()
        server.check()
        events.nothing_to_clean()
    events.leave()


def serve(server: FakeServer, todo: Iterable[tuple[int, int, int, int]], rng: random.Random) -> int:
    """Run requests (script, prompt, output, chunk) to their end, first come first served. Returns steps."""
    waiting, steps = list(todo), 0
    while waiting or server.running:
        steps += 1
        assert steps < 5000, f"{len(waiting)} requests wait and {len(server.running)} run for ever"
        started = server.start(*waiting[0]) if waiting else None
        assert started or server.running, f"{waiting[0]} is not admitted, though nothing else runs"
        prefilling = started or next((s for s in server.running if s.request.in_prefill()), None)
        if started:
            del waiting[0]
        elif prefilling:
            server.extend(prefilling)
        if prefilling:
            server.forward()
            server.check()
            server.insert(prefilling)
            server.check()
        decoding = [s for s in server.running if not s.request.in_prefill()]
        for sequence in [s for s in decoding if len(s.pages) >= s.request.most_pages]:
            decoding.remove(sequence)
            server.stop(sequence, keep=True)
            server.check()
        if decoding:
            growing = [sequence for sequence in decoding if rng.random() < 0.6]
            assert not server.decode(decoding, growing), "a request was retracted, though all were admitted"
            server.check()
    return steps


def serve_crowded(
    server: FakeServer,
    todo: Iterable[tuple[int, int, int, int]],
    rng: random.Random,
    prefill_share: float = 0.5,
) -> int:
    """`serve` where more is admitted than fits, and decode steps come between the chunks of a prompt, as under
    --prefill-decode-interval: requests are retracted and come back, and nothing else happens to them. Returns how
    many times."""
    waiting, steps, retractions = list(todo), 0, 0
    while waiting or server.running:
        steps += 1
        assert steps < 20000, f"{len(waiting)} requests wait and {len(server.running)} run for ever"
        prefilling = next((s for s in server.running if s.request.in_prefill()), None)
        decoding = [s for s in server.running if not s.request.in_prefill()]
        if not decoding or rng.random() < prefill_share:
            if prefilling is None and waiting and (prefilling := server.start(*waiting[0])):
                del waiting[0]
            elif prefilling and server.chunk_fits(prefilling):
                server.extend(prefilling)
            else:
                assert decoding, f"{prefilling or waiting[0]} waits, though nothing else runs"
                prefilling = None
            if prefilling:
                server.check()
                server.forward()
                server.insert(prefilling)
                server.check()
                continue
        for sequence in [s for s in decoding if len(s.pages) >= s.request.most_pages]:
            decoding.remove(sequence)
            server.stop(sequence, keep=True)
        longest = server.sizes.longest_prefill
        outgrown = [s for s in decoding if longest is not None and len(s.pages) > longest]
        decoding.sort(key=lambda sequence: sequence not in outgrown)
        retracted = server.decode(decoding, [s for s in decoding if rng.random() < 0.6])
        assert decoding or not retracted, "SGLang aborts the last request rather than retract it"
        for sequence in retracted:
            retractions += 1
            request = sequence.request
            assert sequence not in outgrown, "a request was retracted that prefill cannot compute again"
            prompt = len(sequence.pages)
            waiting.append((sequence.script, prompt, request.most_pages - prompt, sequence.chunk))
        server.check()
    return retractions
