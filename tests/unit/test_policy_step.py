"""What a step cleans, spills, restores and leases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sglang_hisparse.policy import Request
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
    assert sorted(residency.clean_pages) == [1, 2, 3, 4, 5] and planner.may_clean()
    planner.step()
    planner.step()
    planner.step()
    assert sorted(residency.clean_pages) == prefix, "the open pages of both are not cleaned"
    assert not planner.may_clean()
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
