"""Whom the planner asks for room, and what that gains."""

from __future__ import annotations

import pytest

from sglang_hisparse.config import OPEN_PAGES
from sglang_hisparse.policy import State
from tests.unit.planner_cases import HOT_MIN, own, planner_of, run, spill, spilled

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


def test_room_comes_from_idle_then_private_then_shared_pages_then_excess() -> None:
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

    assert room(3) and spilled(planner) == [*idle, 10, 11, 12], "idle pages"
    assert room(5) and spilled(planner) == [*idle, *range(10, 18)], "private pages"
    assert room(1) and set(spilled(planner)) - {*idle, *range(10, 18)} <= set(prefix), "shared pages"
    assert room(5), "all 12 shared pages for 2 x 3 hot ones"
    assert {*spilled(planner)} == {*idle, *range(10, 18), *prefix}
    assert residency.requests[0].hot_pages() == HOT_MIN + 2
    assert room(2), "hot rows beyond the least"
    assert residency.requests[0].hot_pages() == HOT_MIN
    assert not room(1)


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


def test_where_nothing_is_shared_no_page_is_looked_at_for_it() -> None:
    """That would be every page of every request, whenever an allocation finds no room."""
    planner = planner_of(24, 40)
    for row in range(2):
        run(planner, row, range(1 + 12 * row, 13 + 12 * row))

    def together(want: int) -> None:
        raise AssertionError(f"looks at all pages for {want}")

    planner._spill_together = together  # type: ignore[method-assign]
    assert planner.make_room(planner.gain()) and not planner.make_room(planner.gain() + 20)
    planner.residency.check()


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


def test_restoring_needs_room_for_every_page() -> None:
    planner = planner_of(8, 8)
    request = run(planner, 0, range(1, 8))
    spill(planner, [2, 3, 4, 5])
    run(planner, 1, range(11, 13))
    assert not planner.restore_all([request])
    assert (spilled(planner), planner.residency.pinned) == ([5], set())
    planner.close(1)
    for page in (11, 12):
        planner.residency.release(page)
    assert planner.restore_all([request])
    planner.residency.check()


def test_pages_change_places_where_both_tiers_are_full() -> None:
    """The host holds the prefix, so that nothing can be spilled for it before a part of it is back."""
    planner = planner_of(14, 8)
    prefix = own(planner, range(1, 9))
    spill(planner, prefix)
    other = run(planner, 0, range(9, 19))
    assert (planner.residency.host_room(), planner.gain()) == (0, 0)
    request = run(planner, 1, prefix)
    assert planner.restore_all([request])
    assert (request.spilled, other.spilled, other.hot_pages()) == (0, 7, HOT_MIN)
    planner.residency.check()


# -- room for a prefill, which reads no hot rows -----------------------------------------------------------------


def test_a_prefix_comes_back_where_hot_rows_and_host_pages_fill_both_tiers() -> None:
    """Two requests outgrew what was reckoned with: their 2 x 3 hot rows and the host leave no page. SGLang has three
    (14 + 8 - 3 - 16): the next chunk of a prompt is due, its prefix on the host."""
    planner = planner_of(14, 8)
    residency = planner.residency
    prefix = own(planner, range(1, 3))
    spill(planner, prefix)
    first = run(planner, 0, range(3, 10))
    second = run(planner, 1, range(10, 17))
    spill(planner, [4, 5, 6])
    spill(planner, [11, 12, 13])
    planner._resize_lease(first, HOT_MIN)
    planner._resize_lease(second, HOT_MIN)
    assert (len(residency.free_device), residency.host_room()) == (0, 0)
    prompt = run(planner, 2, prefix)
    assert not planner.restore_all([prompt])
    assert planner.restore_all([prompt], borrow=True)
    assert planner.borrow_room(1), "and a page for the chunk"
    assert (prompt.spilled, spilled(planner)[0]) == (0, 4)
    residency.check()
    residency.allocate(17)
    residency.attach(prompt, [17])
    residency.forward_prepared()
    assert not all(planner.prepare_decode(request) for request in (first, second)), "one of them is retracted"
    pages = list(second.pages)
    planner.close(1)
    for page in pages:
        residency.release(page)
    assert planner.prepare_decode(first)
    assert first.hot_pages() == planner.least_hot(first.spilled)
    residency.check()


def test_borrowing_takes_no_more_hot_rows_than_it_needs() -> None:
    planner = planner_of(14, 6)
    first, second = run(planner, 0, range(1, 8)), run(planner, 1, range(8, 15))
    spill(planner, [2, 3, 4])
    spill(planner, [9, 10, 11])
    assert (len(planner.residency.free_device), planner.residency.host_room()) == (0, 0)
    assert not planner.make_room(1)
    assert planner.borrow_room(4)
    assert (first.hot_pages(), second.hot_pages()) == (0, HOT_MIN - 1)
    assert planner.prepare_decode(first) and planner.prepare_decode(second)


def test_borrowing_leaves_a_page_that_is_open_for_any_reader() -> None:
    planner = planner_of(14, 30)
    prefix = own(planner, range(1, 11))
    run(planner, 0, [*prefix, *range(11, 15)])
    run(planner, 1, prefix)
    assert not planner.borrow_room(11)
    assert spilled(planner) == [*range(1, 9), 11, 12]
    planner.residency.check()


# -- requests whose row was rewritten --------------------------------------------------------------------------


def test_a_stale_request_does_not_touch_pages_that_are_another_ones_now() -> None:
    planner = planner_of(30, 30)
    stale = run(planner, 0, range(1, 16))
    for page in range(3, 9):
        planner.residency.release(page)
    other = run(planner, 1, [5, 6, 7, 8])  # SGLang handed them out again
    assert stale.stale
    planner._clean_ahead(20)
    assert sorted(planner.residency.clean_pages) == [2, *range(9, 14)]
    assert not planner.make_room(31)
    assert (spilled(planner), other.spilled) == ([1, 2, *range(9, 14)], 0)
    planner.reread(stale, [1, 2, *range(9, 16)])
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
