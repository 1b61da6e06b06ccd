"""The comparison of rows read with rows written, on CPU tensors: it notices what it is there for."""

from __future__ import annotations

import pytest
import torch

from sglang_hisparse.seams.read_check import ReadCheck
from sglang_hisparse.tier.layout import Group, Plane, RowLayout


@pytest.fixture
def written() -> tuple[ReadCheck, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(check, its rows, slots [10, 10] that were written, the device rows they are in)."""
    rows = torch.randint(0, 256, (640, 656), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    plane = Plane(0, "kv", rows, torch.zeros(64, 656, dtype=torch.uint8))
    check = ReadCheck(RowLayout.of([Group(0, (plane,))]), 1024)
    slots, at = torch.arange(64, 164), torch.randperm(640, generator=torch.Generator().manual_seed(1))[:100]
    check.written(0, slots, at)
    return check, plane.rows, slots.view(10, 10).int(), at.view(10, 10).int()


def test_what_was_written_is_the_same(written) -> None:
    check, _, slots, rows = written
    slots[0, :3] = -1  # selects nothing
    check.read(0, slots, rows)
    assert check.counts.tolist() == [97, 0]


@pytest.mark.parametrize("byte", [0, 5, 655])
def test_a_changed_byte_is_noticed(written, byte: int) -> None:
    check, memory, slots, rows = written
    memory[rows[3, 4].long(), byte] ^= 1
    check.read(0, slots, rows)
    assert check.counts.tolist() == [100, 1]


def test_another_row_and_no_row_are_noticed(written) -> None:
    check, _, slots, rows = written
    rows[0, 0], rows[1, 1] = rows[5, 5].clone(), -1
    check.read(0, slots, rows)
    assert check.counts.tolist() == [100, 2]


def test_no_row_is_noticed_whatever_row_0_holds(written) -> None:
    check, memory, slots, rows = written
    memory[0] = memory[rows[1, 1].long()]
    check.read(0, slots[1:2, 1:2], torch.full((1, 1), -1, dtype=torch.int32))
    assert check.counts.tolist() == [1, 1]
