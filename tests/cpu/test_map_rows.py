"""Look-ups in the page map, and what the tier knows of a forward that needs nothing else."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from sglang_hisparse.kernels.map_rows import map_pages, map_rows
from sglang_hisparse.policy import PlannerOptions
from sglang_hisparse.tier.layout import PAGE
from tests.cpu.tier_server import MLA, TierServer, tier_of
from tests.unit.events import Events
from tests.unit.fake_server import Sizes

OPTIONS = PlannerOptions(hot_min=2, hot_max=4, tables=8, low_watermark=0.5, high_watermark=0.8)
SMALL = Sizes(24, 40, OPTIONS, reads_host=True)
PAGE_MAP = torch.tensor([0, 3, -1, 1, -2, -9, 2], dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_one_by_one(dtype: torch.dtype) -> None:
    slots = torch.arange(-130, len(PAGE_MAP) * PAGE, dtype=dtype).view(2, -1)
    rows = map_rows(PAGE_MAP, slots)
    assert rows.dtype == dtype and rows.shape == slots.shape
    for slot, row in zip(slots.view(-1).tolist(), rows.view(-1).tolist(), strict=True):
        if slot < 0:
            assert row == slot
        else:
            device = int(PAGE_MAP[slot // PAGE])
            assert row == device * PAGE + slot % PAGE if device >= 0 else row < 0


def test_rows_outside_the_map() -> None:
    slots = torch.tensor([len(PAGE_MAP) * PAGE, 2**31 - 1], dtype=torch.int64)
    assert map_rows(PAGE_MAP, slots).tolist() == [-1, -1]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_every_slot_of_a_tier(dtype: torch.dtype) -> None:
    tier = tier_of(SMALL, MLA)
    tier.tables.page_map[: len(PAGE_MAP)] = PAGE_MAP
    slots = torch.arange(-70, len(PAGE_MAP) * PAGE, dtype=dtype)
    found = tier.rows_of(slots)
    assert found.dtype == dtype
    for slot, row in zip(slots.tolist(), found.tolist(), strict=True):
        page = int(PAGE_MAP[slot // PAGE]) if slot >= 0 else 0
        if slot < 0:
            assert row == slot
        elif page >= 0:
            assert row == page * PAGE + slot % PAGE
        else:
            assert row < 0


def test_tables_of_pages() -> None:
    table = torch.tensor([[0, 1, 2], [6, 5, 4], [-1, 7, 2**31 - 1]], dtype=torch.int32)
    assert map_pages(PAGE_MAP, table).tolist() == [[0, 3, 0], [2, 0, 0], [0, 0, 0]]
    assert map_pages(PAGE_MAP, table).dtype == torch.int32


def test_slots_behind_rows() -> None:
    tier = tier_of(SMALL, MLA)
    tier.tables.page_map[: len(PAGE_MAP)] = PAGE_MAP
    resident = [page for page in range(len(PAGE_MAP)) if PAGE_MAP[page] >= 0]
    slots = torch.tensor([page * PAGE + offset for page in resident for offset in (0, 1, 63)] + [-1]).int()
    assert torch.equal(tier.slots_of(tier.rows_of(slots)), slots)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_forward_knows_whether_anything_is_spilled(share: float) -> None:
    sizes = replace(SMALL, device=40, options=replace(OPTIONS, force_spill=share))
    server = TierServer(sizes, random.Random(3), MLA)
    tier, events = server.tier, Events(server)
    for script in range(2):
        events.start(script, prompt=9, output=6, chunk=9, hit=0, squeezed=False)
    seen = set()
    for step in range(8):
        events.decode(-1, grow=-1 if step % 3 == 2 else 0)
        assert tier.nothing_spilled == all(s.request.spilled == 0 for s in server.running)
        seen.add(tier.nothing_spilled)
    assert seen == {share == 0}
    one, other = (sequence.request for sequence in server.running)
    if share:
        tier.planner.options = replace(tier.planner.options, force_spill=0.0)
        tier.planner.restore_all([one])
        tier.begin_forward([one.row])
        assert tier.nothing_spilled, "pages of a request that is not in the batch do not count"
        assert other.spilled > 0
        for rows in ([one.row, other.row], None, [one.row, 31]):
            tier.planner.options = replace(tier.planner.options, restore_per_step=0)
            tier.begin_forward(rows)
            assert not tier.nothing_spilled, "spilled, not known who decodes, a row that nobody opened"
        one.stale = True
        tier.begin_forward([one.row])
        assert not tier.nothing_spilled, "its pages are to be read again"
        one.stale = False
    events.leave()


def test_selections_without_resolve_are_counted_once_a_forward() -> None:
    tier = tier_of(SMALL, MLA)
    before = tier.counters()["selected_resident"]
    lengths = torch.tensor([5, tier.selector.top_k, 10_000])
    for _ in range(2):
        tier.begin_forward([])
        tier.count_resident(lengths)
        tier.count_resident(lengths)
    counted = tier.counters()["selected_resident"] - before
    assert counted == 2 * len(MLA) * (5 + 2 * tier.selector.top_k)
    assert tier.counters(wait=False)["selected_resident"] == before + counted
    tier.begin_forward([])
    tier.count_resident(None)
    assert tier.counters()["selected_resident"] == before + counted, "lengths that are not known"
    assert tier.counters()["resident_forwards"] == 3
