"""Counts of selected pages, and that they reach the policy."""

from __future__ import annotations

import random
from dataclasses import replace

import torch

from sglang_hisparse.kernels.reference import HEAT_STRIDE
from sglang_hisparse.policy import PlannerOptions
from sglang_hisparse.tier.layout import PAGE
from sglang_hisparse.tier.page_heat import READ_EVERY, PageHeat
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


def test_a_reading_holds_what_resolve_counted() -> None:
    server = TierServer(Sizes(14, 24, BY_HEAT, reads_host=True), random.Random(1), MLA)
    sequence = server.start(2, prompt=8, output=1, chunk=4)
    assert sequence is not None
    server.forward()
    heat, page = server.tier.heat, sequence.pages[2]
    assert heat is not None
    selection = torch.full((2, 4 * HEAT_STRIDE), -1, dtype=torch.int32)
    selection[0, HEAT_STRIDE::HEAT_STRIDE] = page * PAGE + 63
    selection[0, 1] = sequence.pages[1] * PAGE  # between two that count
    selection[1] = selection[0]  # padding
    for group in server.tier.layout.groups:
        server.tier.resolve(group.layers[0], selection, torch.tensor([sequence.request.row, -1]))
    assert reading(heat) == {page: 3 * len(server.tier.layout.groups)}


def test_a_reading_comes_every_so_many_forwards_and_starts_anew() -> None:
    heat = PageHeat(4, CPU)
    heat.counts[1] += 1
    found = [heat.poll() for _ in range(3 * READ_EVERY + 1)]
    assert [place + 1 for place, counts in enumerate(found) if counts is not None] == [
        READ_EVERY + 1, 2 * READ_EVERY + 1, 3 * READ_EVERY + 1
    ]  # fmt: skip
    assert [counts for counts in found if counts is not None] == [{1: 1}, {}, {}]


def test_what_decode_selects_leaves_last() -> None:
    """One request selects two of its pages only."""
    server = TierServer(Sizes(14, 24, BY_HEAT, reads_host=True), random.Random(1), MLA)
    sequence = server.start(2, prompt=12, output=1, chunk=4)
    assert sequence is not None
    server.forward()
    for _ in range(2):
        server.extend(sequence)
        server.forward()
    favourites = sequence.pages[3:5]
    requests = torch.tensor([sequence.request.row])
    slots = (torch.tensor([favourites]).repeat_interleave(PAGE, 1) * PAGE).to(torch.int32)
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
