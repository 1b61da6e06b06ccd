"""How an index group is stored."""

from __future__ import annotations

import pytest

from sglang_hisparse.row_groups import row_groups


@pytest.mark.parametrize(
    ("layers", "stored"),
    [
        ((7,), [(7,)]),
        ((7, 8), [(7,), (8,)]),
        ((0, 2, 4, 6), [(0,), (2,), (4, 6)]),
        (tuple(range(10)), [(0,), (1,), (2, 3), (4, 5, 6, 7), (8, 9)]),
        (
            tuple(range(20)),
            [(0,), (1,), (2, 3), (4, 5, 6, 7), tuple(range(8, 16)), tuple(range(16, 20))],
        ),
    ],
)
def test_row_groups_grow_behind_the_leader(layers: tuple[int, ...], stored: list[tuple[int, ...]]) -> None:
    assert list(row_groups(layers)) == stored
