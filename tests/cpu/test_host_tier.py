"""HostTier on the CPU: under any order of events every selected slot resolves to the bytes that were written."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from sglang_hisparse.kernels.resolve import MissList
from sglang_hisparse.policy import PlannerOptions
from sglang_hisparse.tier import listed_fetch
from sglang_hisparse.tier.layout import PAGE
from sglang_hisparse.tier.listed_fetch import ListedFetch
from tests.cpu.tier_server import MHA, MLA, TierServer, tier_of
from tests.unit.events import Events, any_sizes, random_events
from tests.unit.fake_server import Sizes, snapshot

OPTIONS = PlannerOptions(hot_min=2, hot_max=4, tables=8, low_watermark=0.5, high_watermark=0.8)
SMALL = Sizes(12, 24, OPTIONS, reads_host=True)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("groups", [MHA, MLA], ids=["mha", "mla"])
def test_any_order_of_events(groups: tuple[tuple[int, ...], ...], seed: int) -> None:
    rng = random.Random(1000 + seed)
    sizes = any_sizes(rng.choice)
    if sizes.host:
        sizes = replace(sizes, host=sizes.host + sizes.options.hot_min)
    server = TierServer(sizes, rng, groups, audit=rng.choice(["off", "sampled", "full"]))
    random_events(server, rng, count=80)
    tables = server.tier.tables
    assert (
        (tables.page_map[1:] == -1).all() and (tables.hot_index == -1).all() and (tables.hot_len == 0).all()
    )


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("groups", [MHA, MLA], ids=["mha", "mla"])
def test_decoding_with_forced_spills(groups: tuple[tuple[int, ...], ...], share: float) -> None:
    """Long enough for hot rows to be hit, missed and replaced."""
    sizes = replace(SMALL, device=40, options=replace(OPTIONS, force_spill=share))
    server = TierServer(sizes, random.Random(7), groups, audit="full")
    events = Events(server)
    for script in range(2):
        events.start(script, prompt=13, output=4, chunk=5, hit=0, squeezed=False)
        for _ in range(3):
            events.extend(-1, squeezed=False)
    for step in range(12):
        events.decode(-1, grow=-1 if step % 4 == 3 else 0)
        server.check()
    counters = server.tier.counters()
    assert counters["pages_spilled"] > 0
    assert counters["selected_hot"] > 0
    assert counters["selected_missed"] > 0
    assert counters["selected_overflow"] == 0
    assert (counters["selected_resident"] > 0) and server.resolved > 0
    assert counters["audited_pages"] > 0
    assert counters["max_running_requests"] == 2
    moved = counters["pages_cleaned"] * server.tier.mover.page_bytes
    assert counters["bytes_to_host"] == moved
    events.leave()


@pytest.fixture
def server() -> TierServer:
    return TierServer(SMALL, random.Random(1), MHA)


def test_nothing_moves_while_there_is_room(server: TierServer) -> None:
    events = Events(server)
    events.start(0, prompt=4, output=2, chunk=4, hit=0, squeezed=False)
    for _ in range(5):
        events.decode(-1, grow=0)
    assert server.tier.pages_by_state() == {"resident": 4, "clean": 0, "spilled": 0, "hot": 0, "free": 8}
    counters = server.tier.counters()
    assert (counters["bytes_to_host"], counters["bytes_to_device"]) == (0, 0)
    assert (counters["selected_hot"], counters["selected_missed"]) == (0, 0)


def test_pages_by_state_add_up_to_the_pool(server: TierServer) -> None:
    events = Events(server)
    events.start(0, prompt=12, output=4, chunk=4, hit=0, squeezed=False)
    for _ in range(8):
        events.extend(-1, squeezed=False)
        events.decode(-1, grow=-1)
        pages = server.tier.pages_by_state()
        assert pages["resident"] + pages["clean"] + pages["hot"] + pages["free"] == SMALL.device
        assert pages["clean"] + pages["spilled"] <= SMALL.host
    assert pages["spilled"] > 0 and pages["hot"] > 0


def test_hot_rows_that_change_hands_start_empty(server: TierServer) -> None:
    """Slots, stamps and clock: a stale stamp would make an empty row look young, and a cached one would go first."""
    tables, planner = server.tier.tables, server.planner
    for _ in range(2):
        sequence = server.start(0, prompt=6, output=2, chunk=6)
        assert sequence is not None
        server.forward()
        planner._spill_pages(sequence.pages[:3])
        server.tier.begin_forward(None)
        lease = sequence.request.lease
        assert lease is not None
        assert (tables.hot_slot[:, lease.table] == -1).all()
        assert (tables.hot_stamp[:, lease.table] == 0).all() and (tables.clock[:, lease.table] == 0).all()
        for _ in range(3):
            server.decode([sequence], [])
        assert (tables.hot_stamp[:, lease.table] > 0).any() and (tables.clock[:, lease.table] == 3).all()
        server.stop(sequence, keep=False)


def test_padding_slots_and_pages_map_to_device_page_0(server: TierServer) -> None:
    slots = torch.tensor([0, 5, 63, -1, -7, 64])
    assert server.tier.rows_of(slots)[:5].tolist() == [0, 5, 63, -1, -7]
    assert server.tier.rows_of(slots)[5] < 0, "page 1 is nowhere"
    assert server.tier.rows_of(slots.to(torch.int32)).dtype == torch.int32


def test_a_request_that_cannot_lease_hot_rows_does_not_decode() -> None:
    """Rather a stop than wrong rows: two requests, one hot table."""
    sizes = replace(SMALL, device=20, options=replace(OPTIONS, tables=1, low_watermark=0.0))
    server = TierServer(sizes, random.Random(1), MHA)
    planner, residency = server.planner, server.residency
    for script in range(2):
        assert server.start(script, prompt=4, output=4, chunk=4)
        server.forward()
    for sequence in server.running:
        residency.spill(sequence.pages[0])
    rows = [sequence.request.row for sequence in server.running]
    with pytest.raises(
        RuntimeError, match=r"request row \d decodes with 1 spilled pages, but only 0 hot pages"
    ):
        server.tier.begin_forward(rows)
    assert len(planner.free_tables) == 0


def test_a_row_that_no_request_holds_is_padding(server: TierServer) -> None:
    server.tier.begin_forward([3, 7])
    selection = torch.full((1, 8), -1, dtype=torch.int32)
    assert (server.tier.resolve(0, selection, torch.tensor([3])) == -1).all()


def test_a_tier_without_host_pages_only_maps() -> None:
    server = TierServer(replace(SMALL, host=0), random.Random(2), MLA, audit="full")
    assert server.tier.audit is None
    events = Events(server)
    events.start(0, prompt=6, output=6, chunk=6, hit=0, squeezed=False)
    for _ in range(6):
        events.decode(-1, grow=-1)
        server.check()
    assert server.tier.pages_by_state()["spilled"] == 0
    events.leave()


def test_host_rows_of_a_group_lie_side_by_side() -> None:
    tier = tier_of(SMALL, MLA)
    widths = [group.host_row_bytes for group in tier.layout.groups]
    assert widths == [16 + 32 + 48, 16, 32 + 48]
    assert [buffer.shape for buffer in tier.host_pool.buffers] == [(24 * PAGE, width) for width in widths]
    tier.close()
    tier.close()


def test_more_requests_than_the_list_of_misses_holds_fetch_all_at_once() -> None:
    server = TierServer(SMALL, random.Random(1), MLA)
    started: list[int] = []
    misses = MissList.create(2, server.tier.selector.top_k, "cpu")
    server.tier.listed = SimpleNamespace(  # type: ignore[assignment]
        misses=misses,
        lists=lambda group, batch: batch <= 2,
        planes=lambda group, batch: 1,
        start=lambda group, batch: started.append(batch),
    )
    for batch in (1, 2, 3):
        requests = torch.full((batch,), -1)
        selection = torch.full((batch, server.tier.selector.top_k), -1, dtype=torch.int32)
        server.tier.resolve(0, selection, requests)
    assert started == [1, 2]
    assert MissList.bytes(2, server.tier.selector.top_k) == misses.rows.nbytes + misses.count.nbytes


def test_what_resolve_leaves_to_other_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Followers always; the leader where many requests read a host pool beyond the reach of translations."""
    tier = tier_of(SMALL, MLA)
    three, one, _ = tier.layout.groups
    listed = ListedFetch.__new__(ListedFetch)
    listed.batch = 64
    asked = [(group, batch) for group in (three, one) for batch in (1, 31, 32, 64, 65)]
    assert [listed.lists(*a) for a in asked] == [True] * 4 + [False] * 6
    assert [listed.planes(*a) for a in asked[:4]] == [1] * 4
    monkeypatch.setattr(listed_fetch, "REACH_BYTES", one.host.nbytes - 1)
    assert [listed.lists(*a) for a in asked] == [True] * 4 + [False] * 3 + [True, True, False]
    assert [listed.planes(*a) for a in asked[:4]] == [1, 1, 0, 0]


def test_followers_come_in_parts_that_grow() -> None:
    parts = [list(part) for part in listed_fetch.in_growing_parts(range(1, 10))]
    assert parts == [[1], [2, 3], [4, 5, 6, 7], [8, 9]]
    assert not list(listed_fetch.in_growing_parts([]))


@pytest.mark.parametrize("seed", range(8))
def test_nothing_to_do_means_that_a_forward_changes_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    server = TierServer(any_sizes(rng.choice), rng, MLA, audit=rng.choice(["off", "off", "full"]))
    tier, seen = server.tier, set()
    begin = tier.begin_forward

    def watched(rows: list[int] | None) -> None:
        before = snapshot(server)
        idle = tier.nothing_to_do()
        assert snapshot(server) == before, "a question changes nothing"
        seen.add(idle)
        if idle:
            monkeypatch.setattr(tier.mover, "apply", lambda *_: pytest.fail("there was something to do"))
        began = (before, tier.nothing_spilled)
        begin(rows)
        monkeypatch.undo()
        assert not idle or (snapshot(server), tier.nothing_spilled) == began

    tier.begin_forward = watched  # type: ignore[method-assign]
    random_events(server, rng, count=60)
    assert False in seen
