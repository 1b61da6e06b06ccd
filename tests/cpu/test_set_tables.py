"""Changes of page map and leases between two forwards, entry by entry."""

from __future__ import annotations

import pytest
import torch

from sglang_hisparse.kernels.set_tables import set_entries, set_lease
from sglang_hisparse.tier.layout import PAGE, HotTables

GROUPS, TABLES, HOT = 3, 4, 5 * PAGE


def used_tables() -> HotTables:
    """Tables in which every entry says something."""
    tables = HotTables.create(100, 10, GROUPS, TABLES, HOT, "cpu")
    for number, name in enumerate(("hot_rows", "hot_len", "hot_slot", "hot_stamp", "clock")):
        getattr(tables, name).fill_(1000 + number)
    return tables


@pytest.mark.parametrize(
    ("pages", "requests"), [({}, {}), ({7: 3}, {}), ({}, {2: 1, 9: -1}), ({100: -9, 1: -1, 5: 0}, {0: 3})]
)
def test_entries(pages: dict[int, int], requests: dict[int, int]) -> None:
    tables = used_tables()
    want = [-1] * 101, [-1] * 10
    want[0][0] = 0
    for table, values in zip(want, (pages, requests), strict=True):
        for at, value in values.items():
            table[at] = value
    set_entries(tables, pages, requests)
    assert (tables.page_map.tolist(), tables.hot_index.tolist()) == want


@pytest.mark.parametrize("pages", [[], [9], [4, 2, 77, 1, 3]])
@pytest.mark.parametrize("first", [0, PAGE, 3 * PAGE, HOT])
def test_lease(pages: list[int], first: int) -> None:
    tables, before, table = used_tables(), used_tables(), 2
    set_lease(tables, table, first, pages)
    rows = [page * PAGE + offset for page in pages for offset in range(PAGE)]
    before.hot_rows[table, : len(rows)] = torch.tensor(rows, dtype=torch.int32)
    before.hot_len[table] = len(rows)
    for group in range(GROUPS):
        for row in range(first, HOT):
            before.hot_slot[group, table, row], before.hot_stamp[group, table, row] = -1, 0
        if first == 0:
            before.clock[group, table] = 0
    for name in ("hot_rows", "hot_len", "hot_slot", "hot_stamp", "clock", "page_map", "hot_index"):
        assert torch.equal(getattr(tables, name), getattr(before, name)), name
