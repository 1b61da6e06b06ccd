"""What the planner picks, in small cases whose answer fits in the head."""

from __future__ import annotations

import pytest

from sglang_hisparse.config import OPEN_PAGES
from sglang_hisparse.policy import Journal, Planner, PlannerOptions, Request, Residency, State

HOT_MIN = 3


def planner_of(device: int, host: int, **options: float) -> Planner:
    """Watermarks at 1, so that only what a test asks for moves."""
    values = {
        "hot_min": HOT_MIN,
        "hot_max": 2 * HOT_MIN,
        "tables": 8,
        "low_watermark": 1.0,
        "high_watermark": 1.0,
    }
    return Planner(Residency(device + host, device, host), PlannerOptions(**(values | options)))  # type: ignore[arg-type]


def own(planner: Planner, pages: range) -> list[int]:
    """Pages that were allocated and written, and that nobody reads: the radix tree's."""
    for page in pages:
        planner.residency.allocate(page)
    planner.residency.forward_prepared()
    return list(pages)


def run(planner: Planner, row: int, pages: range | list[int], most: int = 99) -> Request:
    """A request that reads `pages`; those that are free are allocated and written."""
    residency = planner.residency
    for page in pages:
        if residency.state(page) is State.FREE:
            residency.allocate(page)
    request = Request(row, most)
    planner.open(request, pages)
    residency.forward_prepared()
    return request


def spilled(planner: Planner) -> list[int]:
    residency = planner.residency
    return [page for page in range(1, residency.logical_pages + 1) if residency.state(page) is State.SPILLED]


def spill(planner: Planner, pages: list[int]) -> None:
    """As make_room does it: readers lease what that costs."""
    planner._spill_pages(pages)
    planner.residency.check()


# -- gain ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(HOT_MIN + OPEN_PAGES + 4))
def test_the_first_hot_min_pages_of_a_request_gain_nothing(count: int) -> None:
    planner = planner_of(20, 20)
    run(planner, 0, range(1, count + 1))
    assert planner.gain() == max(0, count - OPEN_PAGES - HOT_MIN)


@pytest.mark.parametrize(("host", "gain"), [(0, 0), (1, 0), (HOT_MIN, 0), (HOT_MIN + 1, 1), (8, 5), (9, 5)])
def test_gain_ends_where_the_host_is_full(host: int, gain: int) -> None:
    planner = planner_of(20, host)
    run(planner, 0, range(1, 11))
    assert planner.gain() == gain
    assert planner.make_room(10 + gain)
    assert not planner.make_room(11 + gain)


def test_clean_copies_count_as_host_room() -> None:
    planner = planner_of(10, 2)
    first, second, third, fourth = own(planner, range(1, 5))
    planner.residency.clean(first)
    planner.residency.clean(second)
    assert planner.residency.host_room() == 2
    assert planner.gain() == 2
    spill(planner, [third, fourth])  # takes over both copies
    assert [planner.residency.state(page) for page in (first, second)] == [State.RESIDENT] * 2
    assert planner.gain() == 0


def test_beyond_hot_min_every_page_gains() -> None:
    planner = planner_of(20, 20)
    request = run(planner, 0, range(1, 11))
    spill(planner, request.pages[:HOT_MIN])
    assert (request.hot_pages(), planner.gain()) == (HOT_MIN, 10 - OPEN_PAGES - HOT_MIN)


def test_idle_pages_gain_in_full_but_not_before_they_are_written() -> None:
    planner = planner_of(10, 10)
    own(planner, range(1, 4))
    planner.residency.allocate(4)
    assert planner.gain() == 3
    planner.residency.pinned.add(1)
    assert planner.gain() == 2
    assert planner.make_room(8)
    assert spilled(planner) == [2, 3]
    assert not planner.make_room(9)
    planner.residency.forward_prepared()
    assert planner.gain() == 2


def test_held_pages_gain_nothing() -> None:
    planner = planner_of(20, 20)
    request = run(planner, 0, range(1, 11))
    planner.hold([request])
    assert planner.gain() == 0
    assert not planner.make_room(11)
    planner.residency.forward_prepared()
    assert planner.gain() > 0


def test_no_gain_without_a_hot_table() -> None:
    planner = planner_of(30, 30, tables=1)
    run(planner, 0, range(1, 11))
    run(planner, 1, range(11, 21))
    gain = planner.gain()
    assert gain == 10 - OPEN_PAGES - HOT_MIN
    assert planner.make_room(10 + gain)
    assert not planner.make_room(11 + gain)
    assert [request.hot_pages() for request in planner.residency.requests.values()] == [HOT_MIN, 0]


# -- order -----------------------------------------------------------------------------------------------------


def test_room_comes_from_excess_then_idle_then_private_then_shared_pages() -> None:
    planner = planner_of(60, 60)
    residency = planner.residency
    idle = own(planner, range(1, 4))
    run(planner, 0, range(10, 20))
    prefix = own(planner, range(40, 52))
    for row, tail in ((1, [30, 31]), (2, [32, 33])):
        run(planner, row, [*prefix, *tail])
    spill(planner, [10, 11, 12])
    planner._resize_lease(residency.requests[0], HOT_MIN + 2)

    def room(more: int) -> bool:
        done = planner.make_room(len(residency.free_device) + more)
        residency.check()
        return done

    assert room(2) and spilled(planner) == [10, 11, 12], "hot rows beyond the least"
    assert residency.requests[0].hot_pages() == HOT_MIN
    assert room(3) and spilled(planner) == [*idle, 10, 11, 12], "idle pages"
    assert room(5) and spilled(planner) == [*idle, *range(10, 18)], "private pages"
    assert room(1) and set(spilled(planner)) - {*idle, *range(10, 18)} <= set(prefix), "shared pages"
    assert room(5), "all 12 shared pages for 2 x 3 hot ones"
    assert not room(1)
    assert {*spilled(planner)} == {*idle, *range(10, 18), *prefix}


def test_the_oldest_pages_leave_first_and_the_first_page_last() -> None:
    planner = planner_of(12, 12)
    run(planner, 0, [5, 6, 7, 8, 9, 10, 11, 12])
    free = len(planner.residency.free_device)
    assert planner.make_room(free + 1)
    assert spilled(planner) == [6, 7, 8, 9]
    assert planner.make_room(free + 2)
    assert spilled(planner) == [6, 7, 8, 9, 10]
    assert planner.make_room(free + 3)
    assert spilled(planner) == [5, 6, 7, 8, 9, 10]
    assert not planner.make_room(free + 4)


def test_the_request_that_gains_most_goes_first() -> None:
    planner = planner_of(40, 40)
    run(planner, 3, range(1, 9))
    run(planner, 4, range(11, 23))
    run(planner, 2, range(31, 39))
    assert planner.make_room(len(planner.residency.free_device) + 1)
    assert spilled(planner) == [12, 13, 14, 15]
    assert [request.row for request, _ in planner._gain_order()] == [4, 2, 3]


def test_a_request_is_left_alone_where_nothing_is_gained() -> None:
    planner = planner_of(10, 10)
    run(planner, 0, range(1, HOT_MIN + OPEN_PAGES + 1))
    assert not planner.make_room(10)
    assert spilled(planner) == []


def test_what_was_gained_stays_gained() -> None:
    planner = planner_of(10, 10)
    own(planner, range(1, 4))
    assert not planner.make_room(11)
    assert len(planner.residency.free_device) == 10
    assert spilled(planner) == [1, 2, 3]


# -- shared pages ----------------------------------------------------------------------------------------------


def test_shared_and_private_pages_leave_together_where_neither_pays_alone() -> None:
    """Each of two readers could spill 3 private pages (for 3 hot ones) and 3 shared ones (for 2 x 3)."""
    planner = planner_of(13, 20)
    prefix = own(planner, range(1, 4))
    run(planner, 0, [*prefix, *range(4, 9)])
    run(planner, 1, [*prefix, *range(9, 14)])
    assert planner.gain() == 0
    assert planner.make_room(1)
    planner.residency.check()
    assert spilled(planner) == [1, 2, 3, 4, 5, 6, 9], "7 pages for 2 x 3 hot ones"


def test_a_page_that_is_open_for_any_reader_stays() -> None:
    planner = planner_of(30, 30)
    prefix = own(planner, range(1, 13))
    run(planner, 0, [*prefix, *range(21, 25)])
    run(planner, 1, [*prefix[:10], 31])
    run(planner, 2, prefix)
    assert not planner.make_room(31)
    assert set(spilled(planner)).isdisjoint([10, 31, 11, 12, 23, 24])


def test_shared_pages_stay_where_tables_run_out() -> None:
    planner = planner_of(30, 30, tables=1)
    prefix = own(planner, range(1, 15))
    run(planner, 0, [*prefix, 21, 22])
    run(planner, 1, [*prefix, 23, 24])
    assert not planner.make_room(len(planner.residency.free_device) + 1)
    assert spilled(planner) == []


# -- hot rows that a request owes, or does not need --------------------------------------------------------------


def test_making_room_does_not_lease_what_a_request_owed_before() -> None:
    """A prefill that reads the host has spilled pages and no hot rows; it pays when it decodes."""
    planner = planner_of(13, 20)
    prefix = own(planner, range(1, 10))
    spill(planner, prefix[:5])
    request = run(planner, 0, [*prefix, *range(10, 17)])
    assert (request.spilled, request.hot_pages(), len(planner.residency.free_device)) == (5, 0, 2)
    assert planner.gain() == 9
    assert planner.make_room(3)
    assert (request.spilled, request.hot_pages()) == (6, 0)
    assert planner.prepare_decode(request)
    assert request.hot_pages() == HOT_MIN
    planner.residency.check()


def test_decoding_waits_for_a_hot_table() -> None:
    planner = planner_of(30, 20, tables=1)
    requests = [run(planner, row, range(10 * row + 1, 10 * row + 9)) for row in range(2)]
    for request in requests:
        for page in request.pages[:4]:
            planner.residency.spill(page)
    assert planner.prepare_decode(requests[0])
    assert not planner.prepare_decode(requests[1])
    planner.close(0)
    assert planner.prepare_decode(requests[1])


def test_a_held_request_gives_its_hot_rows_up() -> None:
    """The pool is just as large as the prompt: its pages fit only where its hot rows go first."""
    planner = planner_of(8, 8)
    request = run(planner, 0, range(1, 9))
    spill(planner, [2, 3, 4, 5])
    assert (request.hot_pages(), len(planner.residency.free_device)) == (HOT_MIN, 1)
    assert planner.restore_all([request])
    assert (request.spilled, request.hot_pages()) == (0, 0)
    assert planner.residency.pinned == set(request.pages)


def test_restoring_all_or_nothing() -> None:
    planner = planner_of(8, 8)
    request = run(planner, 0, range(1, 8))
    spill(planner, [2, 3, 4, 5])
    run(planner, 1, range(11, 13))
    assert not planner.restore_all([request])
    assert (spilled(planner), planner.residency.pinned) == ([2, 3, 4, 5], set())
    planner.residency.check()


# -- requests whose row was rewritten --------------------------------------------------------------------------


def test_a_stale_request_does_not_spill_pages_that_are_another_ones_now() -> None:
    planner = planner_of(30, 30)
    stale = run(planner, 0, range(1, 11))
    for page in range(2, 9):
        planner.residency.release(page)
    other = run(planner, 1, [5, 6, 7, 8])  # SGLang handed them out again
    assert stale.stale
    assert not planner.make_room(31)
    assert (spilled(planner), other.spilled) == ([], 0)
    planner.reread(stale, [1, 9, 10])
    planner.residency.check()


def test_a_stale_request_does_not_bring_back_pages_that_nobody_owns() -> None:
    planner = planner_of(20, 20)
    request = run(planner, 0, range(1, 11))
    spill(planner, [2, 3, 4])
    planner.residency.release(10)
    planner.step()
    planner.residency.check()
    planner.reread(request, range(1, 10))
    planner.step()
    planner.residency.check()
    assert spilled(planner) == []


def test_hot_rows_of_a_released_page_are_forgotten() -> None:
    planner = planner_of(20, 20)
    request = run(planner, 0, range(1, 11))
    spill(planner, [2, 3, 4])
    planner.residency.forward_prepared()
    planner.residency.release(3)
    assert request.lease is not None
    assert planner.residency.forward_prepared().hot_reset == {request.lease.table: 0}


# -- once a step -----------------------------------------------------------------------------------------------


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
    assert planner.make_room(len(residency.free_device) + 2)
    journal = residency.forward_prepared()
    assert spilled(planner) == [12, 13]
    assert not any(batch.to_host for batch in journal.batches), "a clean page is spilled without a copy"


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


# -- rows and flush --------------------------------------------------------------------------------------------


def test_a_request_keeps_its_lease_when_it_gets_its_row() -> None:
    planner = planner_of(20, 20)
    request = run(planner, -1, range(1, 11))
    spill(planner, [2, 3, 4, 5])
    planner.rename(request, 7)
    journal = planner.residency.forward_prepared()
    assert request.lease is not None
    assert journal.row_tables == {7: request.lease.table}
    assert planner.residency.requests == {7: request}


def test_a_row_has_one_request() -> None:
    planner = planner_of(20, 20)
    run(planner, 3, [1])
    request = run(planner, -1, [2])
    with pytest.raises(AssertionError, match="row 3 is taken"):
        planner.open(Request(3, 1), [])
    with pytest.raises(AssertionError, match="row 3 is taken"):
        planner.rename(request, 3)


def test_pages_are_not_handed_out_or_released_twice() -> None:
    residency = planner_of(4, 4).residency
    residency.allocate(1)
    with pytest.raises(AssertionError, match="page 1 is resident, cannot be allocated"):
        residency.allocate(1)
    residency.release(1)
    with pytest.raises(AssertionError, match="page 1 was released twice"):
        residency.release(1)


def test_a_flush_forgets_everything_and_unmaps_it() -> None:
    planner = planner_of(20, 20)
    run(planner, 0, range(1, 11))
    spill(planner, [2, 3, 4, 5])
    planner.residency.forward_prepared()
    planner.clear()
    planner.residency.check()
    journal = planner.residency.forward_prepared()
    assert journal.page_values == dict.fromkeys(range(1, 11), -1)
    assert journal.row_tables == {0: -1}
    assert len(planner.residency.free_device) == len(planner.residency.free_host) == 20
    planner.close(0)  # SGLang frees the row afterwards


# -- journal ---------------------------------------------------------------------------------------------------

COPIES = {"to host": Journal.copy_to_host, "to device": Journal.copy_to_device}


@pytest.mark.parametrize(
    ("first", "second", "batches"),
    [
        (("to host", 1, 1), ("to host", 1, 2), 1),
        (("to host", 1, 1), ("to host", 2, 1), 2),  # one host page gets two contents
        (("to host", 1, 1), ("to device", 1, 1), 1),  # the batch's order is what was asked for
        (("to host", 1, 1), ("to device", 2, 1), 1),
        (("to device", 1, 1), ("to device", 2, 1), 1),
        (("to device", 1, 1), ("to device", 1, 2), 2),  # one device page gets two contents
        (("to device", 1, 1), ("to host", 1, 2), 2),  # reads what was restored
        (("to device", 1, 1), ("to host", 2, 1), 2),  # overwrites what is restored
        (("to device", 1, 1), ("to host", 2, 2), 1),
    ],
)
def test_a_new_batch_only_where_order_demands_it(
    first: tuple[str, int, int], second: tuple[str, int, int], batches: int
) -> None:
    journal = Journal()
    for name, device, host in (first, second):
        COPIES[name](journal, device, host)
    assert len(journal.batches) == batches
    assert journal.fence == ("to device" in (first[0], second[0]))


def test_a_drained_journal_is_handed_over_whole() -> None:
    journal = Journal()
    assert journal.empty()
    journal.map(4, 2)
    journal.reset_hot(1, 5)
    journal.reset_hot(1, 7)
    drained = journal.drain()
    assert (drained.page_values, drained.hot_reset, drained.empty()) == ({4: 2}, {1: 5}, False)
    assert journal.empty()
    journal.row_tables[1] = 2
    assert not journal.empty()
    assert drained.row_tables == {}
