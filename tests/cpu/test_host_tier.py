"""HostTier on the CPU: under any order of events every selected slot resolves to the bytes that were written."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partialmethod

import pytest
import torch

from sglang_hisparse.policy import PlannerOptions
from sglang_hisparse.tier import listed_fetch
from sglang_hisparse.tier.host_tier import HostTier
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
    page = PAGE * sum(plane.row_bytes for plane in server.tier.layout.planes)
    assert counters["bytes_to_host"] == page * counters["pages_cleaned"]
    restored = counters["bytes_to_device"] - counters["bytes_missed"]
    assert restored == page * counters["pages_restored"]
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


def test_every_plane_has_host_rows_of_its_own() -> None:
    tier = tier_of(SMALL, MLA)
    assert [group.layers for group in tier.layout.groups] == [(0,), (1,), (2,), (3,), (4,), (5,)]
    assert [group.index for group in tier.layout.groups] == [0, 0, 0, 1, 2, 2]
    widths = [16, 32, 48, 16, 32, 48]
    assert [plane.row_bytes for plane in tier.layout.planes] == widths
    assert [buffer.shape for buffer in tier.host_pool.buffers] == [(24 * PAGE, width) for width in widths]
    for plane, buffer in zip(tier.layout.planes, tier.host_pool.buffers, strict=True):
        assert plane.host.data_ptr() == buffer.data_ptr() and plane.host_pitch == plane.row_bytes
    tier.close()
    tier.close()
    assert len(tier_of(SMALL, ((0, 1, 2, 3),)).layout.index_groups) == 1


@pytest.mark.parametrize("swept", [1, 1000], ids=["swept", "leader first"])
@pytest.mark.parametrize("at_once", [1, 2, 32], ids=["one", "two", "all"])
def test_more_requests_than_the_list_holds_are_resolved_in_parts(
    at_once: int, swept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right bytes and rows, whatever the list holds and whoever reads the leader's rows; and no part before all
    layers have waited for the one before it, which would lose its list."""
    monkeypatch.setattr(listed_fetch, "SWEPT_REQUESTS", swept)
    monkeypatch.setattr(HostTier, "__init__", partialmethod(HostTier.__init__, listed_batch=at_once))
    sizes = replace(SMALL, device=60, host=60, options=replace(OPTIONS, force_spill=1.0))
    server = TierServer(sizes, random.Random(7), MLA, audit="full")
    calls: list[int | str] = []
    resolve, wait = HostTier._resolve, HostTier.wait_for_rows
    monkeypatch.setattr(
        HostTier, "_resolve", lambda self, *a: (calls.append(f"{len(a[2])}"), resolve(self, *a))[1]
    )
    monkeypatch.setattr(HostTier, "wait_for_rows", lambda self, n: (calls.append(n), wait(self, n))[1])
    events = Events(server)
    for script in range(3):
        events.start(script, prompt=13, output=4, chunk=13, hit=0, squeezed=False)
    for step in range(8):
        events.decode(-1, grow=-1 if step % 4 == 3 else 0)
        server.check()
    counters = server.tier.counters()
    assert counters["selected_missed"] and counters["selected_hot"] and server.resolved
    parts = {1: ["1"] * 4, 2: ["2", "2"], 32: ["4"]}[at_once]  # three requests and a padded row
    waits: list[int | str] = [0, 1, 2] if len(parts) > 1 else []
    wanted = [call for part in parts for call in (part, *waits)]
    first = calls.index(parts[0])
    assert calls[first : first + len(wanted)] == wanted
    assert calls[first + len(wanted) :][:3] == [0, 1, 2], "the layers of the step itself"


def test_what_resolve_leaves_to_other_launches() -> None:
    """Followers always; the leader where many requests decode."""
    three, one, _ = tier_of(SMALL, MLA).layout.index_groups
    asked = [(groups, batch) for groups in (three, one) for batch in (1, 47, 48, 64)]
    assert [ListedFetch.lists(*a) for a in asked] == [True] * 4 + [False, False, True, True]
    assert [ListedFetch.sweeps(batch) for batch in (1, 47, 48, 64)] == [False, False, True, True]


def test_the_oracle_fetches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed_fetch.kernels, "fetch_listed", lambda *_, **__: pytest.fail("bytes moved"))
    fetch = ListedFetch(64, 4, torch.device("cpu"), copy_rows=False)
    for batch in (2, 64):  # the leader's rows read by resolve, and swept
        for groups in tier_of(SMALL, MLA).layout.index_groups:
            fetch.start(groups, batch)
            fetch.wait(groups[-1].layers[0])


@pytest.mark.parametrize("host", [40, 17], ids=["room", "full"])
def test_nothing_is_left_to_do_once_what_may_be_cleaned_is(host: int) -> None:
    """Between the watermarks, where requests decode with everything in HBM; a page that is full is one more."""
    options = replace(OPTIONS, low_watermark=0.5, high_watermark=0.95, clean_per_step=4)
    server = TierServer(Sizes(40, host, options, reads_host=False), random.Random(3), MLA, audit="off")
    tier, events = server.tier, Events(server)
    for script in range(3):
        events.start(script, prompt=10, output=6, chunk=10, hit=0, squeezed=False)
    assert tier.planner.free_at_high < len(tier.residency.free_device) < tier.planner.free_at_low
    did = [not tier.nothing_to_do()]
    for _ in range(10):
        events.decode(-1, grow=0)
        did.append(not tier.nothing_to_do())
    cleaned = tier.counters()["pages_cleaned"]
    assert did[0] and not did[-1] and cleaned == min(3 * 7, host), "two open pages and one before them stay"
    before = snapshot(server)
    tier.begin_forward([sequence.request.row for sequence in server.running])
    assert snapshot(server) == before
    server.check()
    events.decode(-1, grow=-1)  # a page each, so that one more of each is closed
    assert tier.nothing_to_do() and tier.counters()["pages_cleaned"] == min(cleaned + 3, host)
    tier.planner.options = replace(options, high_watermark=0.6)
    assert not tier.nothing_to_do(), "too little is free now"


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
