"""Any order of events keeps accounting, tables and bytes right: the policy against a replayed memory."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sglang_hisparse.config import OPEN_PAGES
from sglang_hisparse.policy import PlannerOptions
from tests.unit.events import WATERMARKS, Events, any_sizes, random_events, serve, serve_crowded
from tests.unit.fake_server import FakeServer, Sizes

BATCHES, SEEDS = 8, 25


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_events(batch: int) -> None:
    for seed in range(batch * SEEDS, (batch + 1) * SEEDS):
        rng = random.Random(seed)
        random_events(FakeServer(any_sizes(rng.choice), rng.randrange), rng, count=120)


def test_random_events_reach_every_move() -> None:
    """The test above would prove little if pressure were rare."""
    moved = {"cleaned": 0, "spilled": 0, "restored": 0}
    for seed in range(SEEDS):
        rng = random.Random(seed)
        server = FakeServer(any_sizes(rng.choice), rng.randrange)
        random_events(server, rng, count=120)
        for name in moved:
            moved[name] += getattr(server.residency, name)
    assert min(moved.values()) > 50, moved


def test_same_events_give_the_same_journals() -> None:
    """Tensor-parallel ranks decide alone, so they must decide the same."""
    for seed in range(12):
        ranks = []
        for _ in range(2):
            rng = random.Random(seed)
            ranks.append(server := FakeServer(any_sizes(rng.choice), rng.randrange))
            random_events(server, rng, count=80)
        assert ranks[0].journals == ranks[1].journals
        assert len(set(map(str, ranks[0].journals))) > 5


@pytest.mark.parametrize("batch", range(5))
def test_what_is_admitted_finishes(batch: int) -> None:
    """Nobody is retracted and nothing hangs, in pools of any size, the smallest included."""
    for seed in range(batch * 16, (batch + 1) * 16):
        rng = random.Random(seed)
        hot_min = rng.randint(1, 8)
        device = hot_min + OPEN_PAGES + 2 + rng.choice([0, 0, 1, 2, 5, 8, 20, 40])
        low, high = rng.choice(WATERMARKS)
        options = PlannerOptions(hot_min, 2 * hot_min, device // 2 + 1, low, high, restore_per_step=4)
        host = rng.choice([0, hot_min + 1, hot_min + 4, 16, 40, 80])
        sizes = Sizes(device, host, options, reads_host=rng.random() < 0.5)
        todo = []
        for _ in range(20):
            prompt = rng.randint(1, min(24, sizes.logical if sizes.reads_host else device))
            output = rng.randint(0, min(12, sizes.logical - prompt))
            todo.append(
                (rng.randrange(3), prompt, output, rng.randint(1, min(6, device - hot_min - OPEN_PAGES - 1)))
            )
        serve(FakeServer(sizes, rng.randrange), todo, rng)


@pytest.mark.parametrize("batch", range(4))
def test_what_is_admitted_beyond_what_fits_is_retracted_and_comes_back(batch: int) -> None:
    """Running requests outgrow what admission reckoned with while a prompt is prefilled in chunks. Its prefix comes
    back all the same, and new pages are found; who cannot decode then is retracted, but not for ever."""
    retractions = 0
    for seed in range(batch * 20, (batch + 1) * 20):
        rng = random.Random(seed)
        hot_min = rng.randint(1, 5)
        device = hot_min + OPEN_PAGES + 2 + rng.choice([5, 8, 12, 20, 30])
        low, high = rng.choice(WATERMARKS)
        options = PlannerOptions(hot_min, 2 * hot_min, device // 2 + 1, low, high, restore_per_step=4)
        sizes = Sizes(device, rng.choice([16, 24, 40]), options, rng.random() < 0.5, new_token_ratio=0.0)
        todo = []
        for _ in range(30):
            prompt = rng.randint(1, min(rng.choice([3, 14]), sizes.longest_prefill or sizes.logical))
            output = rng.randint(0, min(rng.choice([4, 20]), sizes.logical - prompt))
            chunk = rng.randint(1, min(2, device - hot_min - OPEN_PAGES - 1))
            todo.append((rng.randrange(3), prompt, output, chunk))
        server = FakeServer(sizes, rng.randrange)
        retractions += serve_crowded(server, todo, rng, prefill_share=rng.choice([0.1, 0.25, 0.5]))
    assert retractions > 0


small, count = st.integers(0, 24), st.integers(1, 24)
bits = st.integers(0, (1 << 16) - 1)


class PolicyMachine(RuleBasedStateMachine):
    """The same events, chosen by hypothesis: what it finds is short."""

    @initialize(data=st.data(), seed=bits)
    def begin(self, data: st.DataObject, seed: int) -> None:
        sizes = any_sizes(lambda choices: data.draw(st.sampled_from(choices)))
        self.server = FakeServer(sizes, random.Random(seed).randrange)
        self.events = Events(self.server)

    @rule(
        script=st.integers(0, 2), prompt=count, output=small, chunk=count, hit=small, squeezed=st.booleans()
    )
    def start(self, script: int, prompt: int, output: int, chunk: int, hit: int, squeezed: bool) -> None:
        self.events.start(script, prompt, output, chunk, hit, squeezed)

    @rule(which=bits, squeezed=st.booleans())
    def extend(self, which: int, squeezed: bool) -> None:
        self.events.extend(which, squeezed)

    @rule(which=bits, grow=bits)
    def decode(self, which: int, grow: int) -> None:
        self.events.decode(which, grow)

    @rule(which=bits)
    def insert(self, which: int) -> None:
        self.events.insert(which)

    @rule(which=bits, keep=st.booleans())
    def stop(self, which: int, keep: bool) -> None:
        self.events.stop(which, keep)

    @rule(count=small)
    def evict(self, count: int) -> None:
        self.server.evict(count)

    @rule()
    def idle_forward(self) -> None:
        self.server.forward()

    @rule()
    def quiet_step(self) -> None:
        self.events.quiet_step()

    @rule(seed=bits)
    def read_heat(self, seed: int) -> None:
        self.events.read_heat(seed)

    @rule()
    def squeeze(self) -> None:
        self.events.squeeze()

    @rule(pages=small)
    def make_room(self, pages: int) -> None:
        self.events.make_room(pages)

    @rule(pages=small)
    def borrow(self, pages: int) -> None:
        self.events.borrow(pages)

    @rule()
    def flush(self) -> None:
        self.server.flush()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "server"):
            self.server.check()

    def teardown(self) -> None:
        if hasattr(self, "server"):
            self.events.leave()


TestPolicy = PolicyMachine.TestCase
TestPolicy.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
