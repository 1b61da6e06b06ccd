"""Rows and owners that change, and what the journal then tells the device."""

from __future__ import annotations

import pytest

from sglang_hisparse.policy import Journal, Request
from tests.unit.planner_cases import planner_of, run, spill


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


def test_a_journal_is_handed_over_whole() -> None:
    residency = planner_of(4, 4).residency
    journal = residency.journal
    assert journal.empty()
    journal.map(4, 2)
    journal.reset_hot(1, 5)
    journal.reset_hot(1, 7)
    drained = residency.forward_prepared()
    assert (drained.page_values, drained.hot_reset, drained.empty()) == ({4: 2}, {1: 5}, False)
    assert residency.journal.empty()
    residency.journal.row_tables[1] = 2
    assert not residency.journal.empty()
    assert drained.row_tables == {}
