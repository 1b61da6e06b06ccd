"""Heat of pages, and pages that leave by it."""

from __future__ import annotations

import random

from sglang_hisparse.policy.heat import READINGS_KEPT, Heat
from tests.unit.planner_cases import HOT_MIN, own, planner_of, run, spill, spilled

# -- scores ----------------------------------------------------------------------------------------------------


def order(heat: Heat, *pages: int) -> list[int]:
    """Coldest first; equal ones as given."""
    return sorted(pages, key=heat.of)


def test_more_selections_are_hotter_and_none_is_coldest() -> None:
    heat = Heat()
    heat.add({1: 5, 2: 9, 3: 1, 4: 0})
    assert order(heat, 1, 2, 3, 4, 5) == [4, 5, 3, 1, 2]


def test_what_was_counted_before_weighs_half() -> None:
    heat = Heat()
    heat.add({1: 8})
    heat.add({2: 4})
    assert heat.of(1) == heat.of(2)
    heat.add({3: 3})
    assert order(heat, 1, 2, 3) == [1, 2, 3]


def test_order_equals_that_of_halved_numbers_over_many_readings() -> None:
    """Scaling back, every READINGS_KEPT readings, changes nothing that is not long forgotten."""
    heat, rng = Heat(), random.Random(1)
    halved = dict.fromkeys(range(50), 0.0)
    for _ in range(5 * READINGS_KEPT):
        counts = {page: rng.randrange(1, 200) for page in rng.sample(range(50), 8)}
        heat.add(counts)
        for page in halved:
            halved[page] = halved[page] / 2 + counts.get(page, 0)
    told_apart = [page for page in halved if halved[page] > 0.01]
    assert len(told_apart) > 20
    assert order(heat, *told_apart) == sorted(told_apart, key=halved.__getitem__)
    assert len(heat._scores) <= 50 and max(heat._scores.values()).bit_length() < 2 * READINGS_KEPT + 10


def test_cold_pages_are_dropped_for_good() -> None:
    heat = Heat()
    heat.add({1: 1})
    for _ in range(3 * READINGS_KEPT):
        heat.add({})
    assert heat._scores == {}


def test_a_page_that_is_written_anew_starts_hot() -> None:
    heat = Heat()
    heat.written(7)
    assert heat.of(7) > heat.of(8)
    heat.add({1: 5, 2: 9})
    heat.written(1)
    assert heat.of(1) == heat.of(2)
    heat.forget(2)
    assert heat.of(2) == 0


# -- pages that leave by heat -----------------------------------------------------------------------------------


def test_the_coldest_pages_leave_first_and_the_first_page_last() -> None:
    planner = planner_of(12, 12, spill_order="heat")
    assert planner.heat is not None
    run(planner, 0, range(1, 11))
    planner.heat.add(dict(zip(range(1, 11), [0, 9, 2, 7, 2, 1, 8, 0, 0, 0], strict=True)))
    planner.heat.add({})
    for page in range(1, 11):
        assert planner.heat.of(page) > 0, "written pages are not cold at once"
    free = len(planner.residency.free_device)
    assert planner.make_room(free + 1)
    assert spilled(planner) == sorted([8, 6, 3, 5])
    assert planner.make_room(free + 2) and planner.make_room(free + 4)
    assert spilled(planner) == [2, 3, 4, 5, 6, 7, 8]
    assert planner.make_room(free + 5)
    assert spilled(planner)[0] == 1
    assert not planner.make_room(free + 6)


def test_pages_that_came_after_the_reading_leave_after_the_others() -> None:
    planner = planner_of(20, 20, spill_order="heat")
    assert planner.heat is not None
    request = run(planner, 0, range(1, 9))
    planner.heat.add(dict.fromkeys(range(1, 9), 100))
    assert list(planner._leaving(request)) == [2, 3, 4, 5, 6, 1]
    for page in (9, 10, 11):
        planner.residency.allocate(page)
        planner.residency.attach(request, [page])
    assert list(planner._leaving(request)) == [2, 3, 4, 5, 6, 7, 8, 9, 1]
    planner.heat.add({2: 1000, 9: 1})
    assert list(planner._leaving(request)) == [3, 4, 5, 6, 7, 8, 9, 2, 1]


def test_cleaning_takes_the_pages_that_leave_next() -> None:
    planner = planner_of(20, 20, low_watermark=0.0, clean_per_step=2, spill_order="heat")
    assert planner.heat is not None
    request = run(planner, 0, range(1, 11))
    planner.heat.add({page: 20 - page for page in range(1, 11)})
    planner.step()
    assert sorted(planner.residency.clean_pages) == [7, 8]
    planner.heat.add({7: 500, 8: 500, 2: 40})
    planner.step()
    assert sorted(planner.residency.clean_pages) == [5, 6, 7, 8]
    assert list(planner._leaving(request))[:3] == [6, 5, 4]


def test_the_hottest_pages_come_back_first() -> None:
    planner = planner_of(
        40, 40, low_watermark=0.5, high_watermark=0.9, restore_per_step=2, spill_order="heat"
    )
    assert planner.heat is not None
    run(planner, 0, range(1, 13))
    spill(planner, list(range(2, 11)))
    planner.heat.add({3: 300, 6: 200, 9: 100})
    planner.step()
    assert spilled(planner) == [2, 4, 5, 7, 8, 9, 10]
    planner.step()
    assert 9 not in spilled(planner)


def test_a_rewritten_row_is_sorted_anew() -> None:
    planner = planner_of(20, 20, spill_order="heat")
    assert planner.heat is not None
    request = run(planner, 0, range(1, 13))
    planner.heat.add({page: page for page in range(1, 13)})
    assert next(planner._leaving(request)) == 2
    planner.residency.release(12)
    own(planner, range(15, 17))
    planner.heat.forget(15)
    planner.reread(request, [1, 3, 2, 15, 4])
    assert list(planner._leaving(request)) == [2, 3, 1]


def test_released_pages_are_forgotten_and_a_flush_forgets_all() -> None:
    planner = planner_of(20, 20, spill_order="heat")
    assert planner.heat is not None
    own(planner, range(1, 3))
    planner.heat.add({1: 50, 2: 50})
    planner.residency.release(1)
    assert (planner.heat.of(1), planner.heat.of(2) > 0) == (0, True)
    planner.clear()
    assert planner.heat.of(2) == 0


def test_by_position_heat_is_not_kept() -> None:
    planner = planner_of(20, 20)
    request = run(planner, 0, range(1, 2 * HOT_MIN + 4))
    assert planner.heat is None and planner.residency.heat is None
    assert next(planner._leaving(request)) == 2 and request.order == []
