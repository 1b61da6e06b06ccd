"""What a step cleans, spills, restores and leases."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from sglang_hisparse.policy import Planner, Request
from sglang_hisparse.policy.room import level_of
from tests.unit.planner_cases import HOT_MIN, own, planner_of, run, spill, spilled


def test_a_step_spills_down_to_the_high_watermark() -> None:
    planner = planner_of(20, 20, low_watermark=0.5, high_watermark=0.8)
    run(planner, 0, range(1, 20))
    planner.step()
    assert len(planner.residency.free_device) == 4
    assert spilled(planner) == list(range(2, 2 + 3 + HOT_MIN))


def test_a_step_cleans_the_pages_that_would_be_spilled_next() -> None:
    planner = planner_of(20, 20, low_watermark=0.5, high_watermark=1.0, clean_per_step=3)
    own(planner, range(12, 14))
    run(planner, 0, range(1, 10))
    planner.step()
    residency = planner.residency
    assert sorted(residency.clean_pages) == [2, 12, 13]
    copies = residency.forward_prepared().batches
    assert sum(len(batch.to_host) for batch in copies) == 3
    planner.step()
    assert sorted(residency.clean_pages) == [2, 3, 4, 5, 12, 13]
    residency.forward_prepared()
    assert planner.make_room(len(residency.free_device) + 2)
    journal = residency.forward_prepared()
    assert spilled(planner) == [12, 13]
    assert not any(batch.to_host for batch in journal.batches), "a clean page is spilled without a copy"


def test_shared_pages_are_cleaned_too_where_they_could_leave() -> None:
    """Otherwise an allocation that spills a shared prefix would wait for its copies."""
    planner = planner_of(20, 20, low_watermark=0.5, high_watermark=1.0, clean_per_step=5)
    residency = planner.residency
    prefix = own(planner, range(1, 13))
    for row in range(2):
        run(planner, row, [*prefix, 13 + 2 * row, 14 + 2 * row])
    residency.forward_prepared()
    planner.step()
    assert sorted(residency.clean_pages) == [1, 2, 3, 4, 5]
    planner.step()
    planner.step()
    planner.step()
    assert sorted(residency.clean_pages) == prefix, "the open pages of both are not cleaned"
    residency.forward_prepared()
    assert planner.make_room(len(residency.free_device) + 6)
    assert not any(batch.to_host for batch in residency.forward_prepared().batches)
    residency.check()


def test_shared_pages_are_not_cleaned_where_leaving_gains_nothing() -> None:
    planner = planner_of(12, 20, low_watermark=0.0)
    prefix = own(planner, range(1, 7))
    for row in range(2):
        run(planner, row, [*prefix, 7 + 2 * row, 8 + 2 * row])
    planner.step()
    assert not planner.residency.clean_pages, "6 pages for 2 x 3 hot ones"


def test_a_page_open_for_one_reader_is_not_cleaned() -> None:
    planner = planner_of(20, 20, low_watermark=0.0)
    prefix = own(planner, range(1, 11))
    run(planner, 0, [*prefix, 11, 12])
    run(planner, 1, prefix)
    planner.step()
    assert sorted(planner.residency.clean_pages) == list(range(1, 9))


def test_what_the_coming_forward_writes_or_holds_is_not_cleaned() -> None:
    planner = planner_of(10, 10, low_watermark=0.0)
    own(planner, range(1, 4))
    planner.residency.allocate(4)
    planner.residency.pinned.add(2)
    planner.step()
    assert sorted(planner.residency.clean_pages) == [1, 3]


def test_a_reread_row_is_cleaned_from_its_start() -> None:
    planner = planner_of(20, 20, low_watermark=0.0)
    request = run(planner, 0, range(1, 11))
    planner.step()
    assert sorted(planner.residency.clean_pages) == list(range(2, 9))
    planner.residency.release(3)
    own(planner, range(15, 17))
    planner.reread(request, [1, 2, 15, 4, 5, 6, 7, 16, 9, 10])
    planner.step()
    assert sorted(planner.residency.clean_pages) == [2, 4, 5, 6, 7, 8, 15, 16]


def test_cleaning_stops_where_the_host_is_full() -> None:
    planner = planner_of(10, 2, low_watermark=0.0)
    own(planner, range(1, 9))
    planner.step()
    planner.step()
    assert sorted(planner.residency.clean_pages) == [1, 2]


def test_when_pressure_falls_the_newest_pages_return_first() -> None:
    planner = planner_of(40, 40, low_watermark=0.5, high_watermark=0.9, restore_per_step=2)
    request = run(planner, 0, range(1, 13))
    spill(planner, list(range(2, 11)))
    planner.step()
    assert spilled(planner) == list(range(2, 9))
    assert request.hot_pages() == 2 * HOT_MIN, "and hot rows grow"
    for _ in range(4):
        planner.step()
    assert (spilled(planner), request.lease) == ([], None)


def test_pages_return_only_below_the_low_watermark() -> None:
    planner = planner_of(20, 20, low_watermark=0.5, high_watermark=0.5)
    request = run(planner, 0, range(1, 13))
    spill(planner, list(range(2, 8)))
    assert (len(planner.residency.free_device), request.hot_pages()) == (11, HOT_MIN)
    planner.step()
    assert spilled(planner) == list(range(2, 7))
    assert request.hot_pages() == HOT_MIN, "hot rows do not grow above the high watermark"


def test_hot_rows_go_back_when_another_reader_restores_the_pages() -> None:
    planner = planner_of(30, 30)
    prefix = own(planner, range(1, 9))
    requests = [run(planner, row, [*prefix, 10 + row, 12 + row]) for row in range(2)]
    spill(planner, prefix[:5])
    assert [request.hot_pages() for request in requests] == [HOT_MIN, HOT_MIN]
    planner.step()
    planner.step()
    assert [request.lease for request in requests] == [None, None]
    assert planner.residency.hot_pages == 0


def test_hot_rows_leave_the_reserve_alone() -> None:
    planner = planner_of(12, 12, low_watermark=0.0, high_watermark=0.75)
    request = run(planner, 0, range(1, 11))
    spill(planner, list(range(2, 8)))
    planner.step()
    assert (len(planner.residency.free_device), request.hot_pages()) == (3, HOT_MIN + 2)


def test_hot_rows_are_never_more_than_what_is_spilled() -> None:
    planner = planner_of(30, 30, low_watermark=0.0, hot_max=20)
    request = run(planner, 0, range(1, 11))
    spill(planner, list(range(2, 7)))
    planner.step()
    assert request.hot_pages() == 5


@pytest.mark.parametrize(
    ("share", "pages"), [(0.1, []), (0.5, [2, 4, 6, 8]), (1.0, [1, 2, 3, 4, 5, 6, 7, 8])]
)
def test_forced_spilling_takes_a_share_of_the_sealed_pages(share: float, pages: list[int]) -> None:
    planner = planner_of(20, 20, force_spill=share)
    request = run(planner, 0, range(1, 11))
    planner.step()
    planner.step()
    assert spilled(planner) == pages
    assert request.hot_pages() >= min(HOT_MIN, len(pages))


def test_forced_spilling_keeps_what_is_open_for_any_reader() -> None:
    planner = planner_of(30, 30, force_spill=1.0)
    prefix = own(planner, range(1, 5))
    run(planner, 0, [*prefix, *range(20, 26)])
    run(planner, 1, [*prefix, 11])
    planner.step()
    assert spilled(planner) == [1, 2, 3, 20, 21, 22, 23]


def test_forced_spilling_needs_tables() -> None:
    planner = planner_of(30, 30, force_spill=1.0, tables=1)
    run(planner, 0, range(1, 6))
    planner.step()
    assert spilled(planner) == [1, 2, 3]
    run(planner, 1, range(20, 30))
    planner.step()
    assert spilled(planner) == [1, 2, 3]
    planner.close(0)
    planner.step()
    assert spilled(planner) == [1, 2, 3, *range(20, 28)]


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


def test_hot_rows_that_a_request_needs_are_not_shared() -> None:
    planner = planner_of(30, 60, low_watermark=0.5, high_watermark=1.0)
    rich, poor = run(planner, 0, range(1, 13)), run(planner, 1, range(13, 25))
    spill(planner, [1, 2, 3, 4])
    spill(planner, [13, 14, 15, 16])
    planner._resize_lease(poor, 1)  # as a prefill leaves it
    planner._share_hot(poor, rich)
    assert (rich.hot_pages(), poor.hot_pages()) == (HOT_MIN, 1)


def test_a_prefill_finds_as_many_clean_pages_as_it_writes() -> None:
    planner = planner_of(40, 60, low_watermark=0.5, high_watermark=1.0, clean_per_step=2)
    residency = planner.residency
    run(planner, 0, range(1, 26))
    for page in range(26, 34):
        residency.allocate(page)
    planner.step()
    assert residency.cleaned == 8
    residency.forward_prepared()
    planner.step()
    assert residency.cleaned == 10


def test_only_requests_that_changed_are_looked_at_for_hot_rows() -> None:
    planner = planner_of(20, 20)
    request = run(planner, 0, range(1, 10))
    other = run(planner, 1, range(10, 15))

    def of_nobody() -> Iterator[Request]:
        raise AssertionError("nothing changed since all had enough")
        yield request

    assert planner.lacking(of_nobody()) == []
    spill(planner, [2, 3, 4, 5])
    assert request.hot_pages() == HOT_MIN and planner.lacking(of_nobody()) == []
    planner.residency.spill(6)  # least_hot is leased already
    planner.residency.spill(10)
    assert planner.lacking([None, other, request]) == [other] == planner.lacking([other])
    assert planner.prepare_decode(other) and planner.lacking(of_nobody()) == []
    planner._resize_lease(request, 1)
    assert planner.lacking([other]) == [] and planner.lacking([other, request]) == [request]
    planner.close(0)
    assert planner.lacking(of_nobody()) == []


def test_gain_stops_where_it_is_enough() -> None:
    planner = planner_of(40, 40)
    for row in range(3):
        run(planner, row, range(1 + 12 * row, 13 + 12 * row))
    everything = planner.gain()
    assert everything > 12
    for enough in (0, 1, 7, everything, everything + 1):
        assert min(enough, planner.gain(enough)) == min(enough, everything)


def test_pages_that_are_gone_are_not_looked_at_again() -> None:
    planner = planner_of(20, 20)
    request = run(planner, 0, range(1, 16))
    spill(planner, [2, 3, 4, 5, 6])
    assert next(planner._movable_pages(request)) == 7 and request.gone == 5
    planner.residency.restore(4)
    assert next(planner._movable_pages(request)) == 4 and request.gone == 2
    planner.residency.check()


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
