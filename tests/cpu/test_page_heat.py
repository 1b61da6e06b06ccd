"""Counts of selected pages, and that they reach the policy."""

from __future__ import annotations

import random
from dataclasses import replace

import torch

from sglang_hisparse.policy import PlannerOptions
from sglang_hisparse.tier.layout import PAGE
from sglang_hisparse.tier.page_heat import READ_EVERY, SAMPLE, PageHeat
from tests.cpu.tier_server import MLA, TierServer
from tests.unit.fake_server import Sizes

CPU = torch.device("cpu")
BY_HEAT = PlannerOptions(
    hot_min=2, hot_max=4, tables=8, low_watermark=0.5, high_watermark=0.8, spill_order="heat"
)


def reading(heat: PageHeat) -> dict[int, int]:
    """The next one."""
    for _ in range(2 * READ_EVERY):
        found = heat.poll()
        if found is not None:
            return found
    raise AssertionError("no reading arrives")


def test_one_entry_in_so_many_is_counted_by_page() -> None:
    heat = PageHeat(10, CPU)
    selection = torch.full((2, 4 * SAMPLE), -1, dtype=torch.int32)
    selection[0, ::SAMPLE] = torch.tensor([3 * PAGE, 3 * PAGE + 63, 10 * PAGE, -1], dtype=torch.int32)
    selection[0, 1] = 5 * PAGE  # between two samples
    selection[1, 0] = 10 * PAGE + 63
    heat.count(selection, torch.tensor([4, 7], dtype=torch.int32))
    assert reading(heat) == {3: 2, 10: 2}


def test_padded_rows_do_not_count_whatever_they_hold() -> None:
    heat = PageHeat(10, CPU)
    selection = torch.tensor([[1 << 30], [-5], [4 * PAGE]], dtype=torch.int32)
    heat.count(selection, torch.tensor([-1, -1, -1], dtype=torch.int32))
    assert reading(heat) == {}


def test_a_reading_comes_every_so_many_forwards_and_starts_anew() -> None:
    heat = PageHeat(4, CPU)
    heat.count(torch.tensor([[PAGE]], dtype=torch.int32), torch.tensor([0]))
    found = [heat.poll() for _ in range(3 * READ_EVERY + 1)]
    assert [place + 1 for place, counts in enumerate(found) if counts is not None] == [
        READ_EVERY + 1, 2 * READ_EVERY + 1, 3 * READ_EVERY + 1
    ]  # fmt: skip
    assert [counts for counts in found if counts is not None] == [{1: 1}, {}, {}]


def test_what_decode_selects_leaves_last() -> None:
    """One request selects two of its pages only."""
    server = TierServer(Sizes(14, 24, BY_HEAT, reads_host=True), random.Random(1), MLA)
    assert (sequence := server.start(2, prompt=12, output=1, chunk=4))
    server.forward()
    for _ in range(2):
        server.extend(sequence)
        server.forward()
    favourites = sequence.pages[3:5]
    requests = torch.tensor([sequence.request.row])
    slots = torch.tensor([favourites]).repeat_interleave(PAGE, 1).to(torch.int32) * PAGE
    for _ in range(2 * READ_EVERY + 2):
        server.tier.begin_forward([sequence.request.row])
        server.tier.resolve(0, slots, requests)
    assert server.planner.heat is not None
    leaving = list(server.planner._leaving(sequence.request))
    assert leaving[-3:-1] == favourites, "before the first page"


def test_by_position_nothing_is_counted() -> None:
    sizes = Sizes(12, 24, replace(BY_HEAT, spill_order="position"), reads_host=True)
    assert TierServer(sizes, random.Random(1), MLA).tier.heat is None
    without_host = Sizes(12, 0, BY_HEAT, reads_host=True)
    assert TierServer(without_host, random.Random(1), MLA).tier.heat is None
