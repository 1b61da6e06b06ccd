"""Hot rows under pressure: who grows at whose cost, who shares, and that they come to fill the device."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sglang_hisparse.policy import Planner, Request
from sglang_hisparse.policy.room import level_of
from tests.unit.planner_cases import HOT_MIN, planner_of, run, spill


def test_hot_rows_grow_in_exchange_for_clean_pages() -> None:
    """Under pressure no page is free, but a hot row is worth more than a page that the host has anyway."""
    planner = planner_of(23, 40, low_watermark=0.5, high_watermark=1.0, clean_per_step=4, grow_per_step=2)
    residency = planner.residency
    first, second = run(planner, 0, range(1, 13)), run(planner, 1, range(21, 26))
    spill(planner, [2, 3, 4, 5, 6])
    run(planner, 2, range(31, 31 + len(residency.free_device)))
    assert not residency.free_device and first.hot_pages() == HOT_MIN
    planner.step()  # cleans, and gives pages that are clean by now
    residency.check()
    grown = [first.hot_pages()]
    for _ in range(4):
        residency.forward_prepared()
        planner.step()
        residency.check()
        grown.append(first.hot_pages())
    assert grown[-1] == 2 * HOT_MIN and all(0 <= b - a <= 2 for a, b in pairwise(grown))
    assert len(residency.free_device) == 0 and second.hot_pages() == 0, "nothing is spilled of the others"
    assert first.spilled == 5 + HOT_MIN


def test_hot_rows_do_not_grow_at_the_cost_of_pages_that_the_host_lacks() -> None:
    planner = planner_of(17, 5, low_watermark=0.5)
    residency = planner.residency
    first = run(planner, 0, range(1, 13))
    spill(planner, [2, 3, 4, 5, 6])
    run(planner, 1, range(13, 13 + len(residency.free_device)))
    planner.step()
    residency.forward_prepared()
    planner.step()
    assert first.hot_pages() == HOT_MIN and first.spilled == 5
    residency.check()


def test_a_request_without_pages_in_hbm_grows_at_the_cost_of_the_one_that_has_most() -> None:
    planner = planner_of(40, 60, low_watermark=0.5, high_watermark=1.0, clean_per_step=40)
    residency = planner.residency
    poor, rich = run(planner, 0, range(1, 13)), run(planner, 1, range(13, 35))
    spill(planner, list(range(1, 11)))
    spill(planner, [14, 15, 16])
    run(planner, 2, range(40, 40 + len(residency.free_device)))
    assert poor.movable() == 0 and not residency.free_device
    for _ in range(6):
        planner.step()
        residency.check()
        residency.forward_prepared()
    assert (poor.hot_pages(), rich.hot_pages()) == (2 * HOT_MIN, 2 * HOT_MIN)
    assert poor.spilled == 10 and rich.spilled == 3 + HOT_MIN + HOT_MIN


def test_a_page_closed_last_does_not_keep_a_request_from_growing() -> None:
    """A request whose own pages are nearly all gone grows at the cost of the richest, not by one page a step."""
    planner = planner_of(60, 80, low_watermark=0.5, high_watermark=1.0, clean_per_step=40)
    residency = planner.residency
    poor, rich = run(planner, 0, range(1, 13)), run(planner, 1, range(13, 45))
    spill(planner, list(range(1, 10)))
    spill(planner, list(range(14, 14 + 2 * HOT_MIN)))
    planner._resize_lease(rich, 2 * HOT_MIN)
    run(planner, 2, range(60, 60 + len(residency.free_device)))
    assert poor.movable() == 1 and rich.movable() > HOT_MIN and not residency.free_device
    planner._clean_ahead(80)
    residency.forward_prepared()
    planner._exchange()
    assert poor.hot_pages() == 2 * HOT_MIN
    residency.check()


@pytest.mark.parametrize(
    ("heights", "water", "level"),
    [
        ([], 5, 0),
        ([4], 3, 7),
        ([1, 5], 3, 4),
        ([1, 5], 4, 5),
        ([1, 5], 6, 6),
        ([2, 2, 9], 5, 4),
        ([-8, -3], 2, -6),
    ],
)
def test_water_fills_the_lowest_first(heights: list[int], water: int, level: int) -> None:
    assert level_of(heights, water) == level


def three_spilled(
    device: int, leased: tuple[int, int, int], **options: float
) -> tuple[Planner, list[Request]]:
    """Three requests of 12 pages with 9 spilled each, which lease as many hot pages."""
    planner = planner_of(device, 60, hot_max=9, **options)
    requests = []
    for row, hot in enumerate(leased):
        requests.append(run(planner, row, range(1 + 20 * row, 13 + 20 * row)))
        spill(planner, requests[-1].pages[1:10])
        planner._resize_lease(requests[-1], hot)
    return planner, requests


def hot_pages(requests: list[Request]) -> list[int]:
    return [request.hot_pages() for request in requests]


def test_hot_rows_grow_where_there_are_fewest() -> None:
    planner, requests = three_spilled(40, (7, 3, 4))
    run(planner, 3, range(61, 61 + len(planner.residency.free_device) - 5))
    planner._grow_hot()
    assert hot_pages(requests) == [7, 6, 6], "the order of rows does not count"
    planner, requests = three_spilled(40, (4, 4, 4))
    run(planner, 3, range(61, 61 + len(planner.residency.free_device) - 2))
    planner._grow_hot()
    assert hot_pages(requests) == [5, 5, 4], "no page is left over"


def test_hot_rows_are_taken_where_there_are_most() -> None:
    planner, requests = three_spilled(40, (4, 9, 6))
    planner._spill_request = lambda request, want: None  # type: ignore[method-assign]
    free = len(planner.residency.free_device)
    assert planner.make_room(free + 5)
    assert hot_pages(requests) == [4, 5, 5]
    assert planner.make_room(free + 10) and hot_pages(requests) == [3] * 3
    assert not planner.make_room(free + 11)
    planner.residency.check()


def test_who_has_no_clean_page_does_not_keep_others_from_growing() -> None:
    planner, requests = three_spilled(28, (4, 3, 3), low_watermark=0.5, high_watermark=1.0)
    residency = planner.residency
    residency.restore(requests[2].pages[9])
    run(planner, 3, range(61, 61 + len(residency.free_device)))
    for turn in range(2):
        planner.turn = turn
        planner._exchange()
        residency.forward_prepared()
    assert hot_pages(requests) == [4, 3, 4], "the fewest first, whose turn it is"


def test_who_has_most_hot_rows_shares_where_no_page_is_left_to_give() -> None:
    planner = planner_of(30, 60, low_watermark=0.5, high_watermark=1.0)
    residency = planner.residency
    rich, poor = run(planner, 0, range(1, 13)), run(planner, 1, range(13, 25))
    spill(planner, list(range(1, 11)))
    spill(planner, list(range(13, 22)))
    planner._resize_lease(rich, 2 * HOT_MIN)
    run(planner, 2, range(40, 40 + len(residency.free_device)))
    assert not residency.free_device and not residency.clean_pages
    planner._exchange()
    assert (rich.hot_pages(), poor.hot_pages()) == (2 * HOT_MIN - 1, HOT_MIN + 1)
    residency.check()
    planner._exchange()
    assert (rich.hot_pages(), poor.hot_pages()) == (2 * HOT_MIN - 1, HOT_MIN + 1), "not far apart"


def test_hot_rows_that_are_not_far_apart_are_not_shared() -> None:
    planner = planner_of(60, 60, low_watermark=0.5, high_watermark=1.0, hot_min=8, hot_max=16)
    rich, poor = run(planner, 0, range(1, 25)), run(planner, 1, range(25, 49))
    spill(planner, list(range(1, 21)))
    spill(planner, list(range(25, 45)))
    planner._resize_lease(rich, 13)
    planner._share_hot(poor, rich)
    assert (rich.hot_pages(), poor.hot_pages()) == (13, 8), "two pages are not worth the rows that are lost"
    planner._resize_lease(rich, 14)
    planner._share_hot(poor, rich)
    assert (rich.hot_pages(), poor.hot_pages()) == (11, 11)


@pytest.mark.parametrize(("spilled", "grow", "shared"), [(20, 64, 6), (6, 64, 2), (20, 3, 3)])
def test_no_more_is_shared_than_can_be_used_or_a_step_may_move(spilled: int, grow: int, shared: int) -> None:
    planner = planner_of(90, 60, low_watermark=0.5, hot_min=4, hot_max=16, grow_per_step=grow)
    rich, poor = run(planner, 0, range(1, 25)), run(planner, 1, range(25, 49))
    spill(planner, list(range(1, 21)))
    spill(planner, list(range(25, 25 + spilled)))
    planner._resize_lease(rich, 16)
    planner._share_hot(poor, rich)
    assert (rich.hot_pages(), poor.hot_pages()) == (16 - shared, 4 + shared)


def test_it_is_the_richest_that_shares() -> None:
    planner = planner_of(60, 90, low_watermark=0.5, hot_min=4, hot_max=16)
    poor, middle, rich = (run(planner, row, range(1 + 20 * row, 21 + 20 * row)) for row in range(3))
    for first in (1, 21, 41):
        spill(planner, list(range(first, first + 18)))
    planner._resize_lease(middle, 9)
    planner._resize_lease(rich, 14)
    planner._exchange()
    assert [request.hot_pages() for request in (poor, middle, rich)] == [9, 9, 9]


def test_hot_rows_that_a_request_needs_are_not_shared() -> None:
    planner = planner_of(30, 60, low_watermark=0.5, high_watermark=1.0)
    rich, poor = run(planner, 0, range(1, 13)), run(planner, 1, range(13, 25))
    spill(planner, [1, 2, 3, 4])
    spill(planner, [13, 14, 15, 16])
    planner._resize_lease(poor, 1)  # as a prefill leaves it
    planner._share_hot(poor, rich)
    assert (rich.hot_pages(), poor.hot_pages()) == (HOT_MIN, 1)


def test_hot_rows_of_many_requests_come_to_fill_the_device() -> None:
    """Eight times what HBM holds, prefilled one after the other: soon nearly every page is open or caches hot rows."""
    requests, prompt, chunk = 16, 128, 32
    planner = planner_of(
        256, 2048, hot_min=8, hot_max=16, tables=requests, low_watermark=0.85, high_watermark=0.99
    )
    residency, running, unused = planner.residency, [], iter(range(1, 2200))

    def extend(request: Request, count: int) -> None:
        assert planner.make_room(count)
        pages = [next(unused) for _ in range(count)]
        for page in pages:
            residency.allocate(page)
        residency.attach(request, pages)

    for row in range(requests):
        running.append(Request(row, prompt + 4, prompt_pages=prompt))
        planner.open(running[-1], [])
        for _ in range(prompt // chunk):
            extend(running[-1], chunk)
            planner.step()
            residency.forward_prepared()
    for step in range(40):
        if step % 4 == 0:
            extend(running[step // 4 % requests], 1)
        planner.step()
        assert all(planner.prepare_decode(request) for request in running)
        residency.forward_prepared()
    residency.check()
    hot = sum(request.hot_pages() for request in running)
    spare = 256 - hot - len(residency.free_device)
    assert hot >= 13 * requests and spare <= 3 * requests, (hot, spare)
