"""Device pages are handed out lowest first, so that a prompt's pages are neighbours on both sides."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from sglang_hisparse.policy.device_pages import DevicePages
from tests.unit.planner_cases import own, planner_of, run


def test_the_lowest_free_page_comes_first() -> None:
    pages = DevicePages(6)
    assert [pages.take() for _ in range(4)] == [1, 2, 3, 4] and sorted(pages) == [5, 6] and len(pages) == 2
    for page in (3, 1, 4):
        pages.give(page)
    assert [pages.take() for _ in range(5)] == [1, 3, 4, 5, 6] and not len(pages)
    with pytest.raises(IndexError):
        pages.take()


@pytest.mark.parametrize("seed", range(20))
def test_no_page_is_lost_or_twice_whatever_happens(seed: int) -> None:
    rng, pages, held = random.Random(seed), DevicePages(30), set[int]()
    for step in range(200):
        if step in (50, 120):
            pages.shuffle(seed)
        if held and rng.random() < 0.5:
            page = rng.choice(sorted(held))
            held.remove(page)
            pages.give(page)
        elif len(pages):
            page = pages.take()
            assert page not in held
            held.add(page)
        assert sorted([*pages, *held]) == list(range(1, 31)) and len(pages) == 30 - len(held)


def test_shuffled_pages_come_in_another_order_that_lasts() -> None:
    pages = DevicePages(100)
    kept = [pages.take() for _ in range(10)]
    pages.shuffle(7)
    order = [pages.take() for _ in range(90)]
    assert sorted(order) == list(range(11, 101)) and order != sorted(order)
    for page in [*kept, *sorted(order)]:
        pages.give(page)
    assert [pages.take() for _ in range(100)] == [*kept, *order]


def test_pages_freed_in_any_order_are_neighbours_again() -> None:
    """What a prompt gets after others left piece by piece; and their copies to the host are few."""
    planner = planner_of(64, 64, low_watermark=0.0, high_watermark=1.0, clean_per_step=64)
    residency = planner.residency
    for page in (pages := own(planner, range(1, 49))):
        residency.release(page) if page % 2 else None
    for page in sorted(pages, key=lambda page: page * 29 % 64):
        residency.release(page) if page % 2 == 0 else None
    residency.forward_prepared()
    run(planner, 0, range(1, 41))
    planner.step()
    (batch,) = residency.forward_prepared().batches
    breaks = [b for a, b in pairwise(sorted(batch.to_host)) if (b[0] - a[0], b[1] - a[1]) != (1, 1)]
    assert len(batch.to_host) > 30 and not breaks
