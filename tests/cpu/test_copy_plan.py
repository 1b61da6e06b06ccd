"""The copies planned for the copy engines, done here byte by byte, put down what the reference puts down."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_hisparse.kernels import pages, reference
from sglang_hisparse.kernels.copy_plan import Addresses, in_order, runs
from sglang_hisparse.kernels.pages import PageCopies
from sglang_hisparse.tier.layout import PAGE, Group, Plane, RowLayout

DEVICE_PAGES, HOST_PAGES = 12, 15

SHAPES = {  # planes of every group, by their row bytes
    "one": ((656,),),
    "fp8": ((656, 656, 656, 656), (656,)),
    "bf16": ((1152, 1152), (1152, 1152, 1152)),
    "kv": ((256, 512, 256, 512),),
    "mixed": ((16,), (32, 16), (656,)),
}

Pairs = list[tuple[int, int]]


def noise(*shape: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def build(shape: str) -> RowLayout:
    """A pool full of noise, the same at every call."""
    groups = []
    for index, sizes in enumerate(SHAPES[shape]):
        rows = [noise(DEVICE_PAGES * PAGE, size, seed=10 * index + i) for i, size in enumerate(sizes)]
        planes = [
            Plane(index, f"plane{i}", r, noise(HOST_PAGES * PAGE, r.shape[1], seed=100 + 10 * index + i))
            for i, r in enumerate(rows)
        ]
        groups.append(Group(index, tuple(planes)))
    return RowLayout.of(groups)


@st.composite
def page_pairs(draw: st.DrawFn) -> Pairs:
    """Distinct pages on both sides, often neighbours, some pairs switched off."""
    count = draw(st.integers(0, DEVICE_PAGES))
    sides = []
    for pages_there in (DEVICE_PAGES, HOST_PAGES):
        order = draw(st.permutations(range(pages_there))) if draw(st.booleans()) else list(range(pages_there))
        skip = draw(st.integers(0, pages_there - count))
        sides.append(order[skip : skip + count])
    off = draw(st.sets(st.integers(0, 2 * DEVICE_PAGES), max_size=3))
    return [
        (-1 if 2 * i in off else device, -(2**31) if 2 * i + 1 in off else host)
        for i, (device, host) in enumerate(zip(*sides, strict=True))
    ]


def assert_equal(ours: RowLayout, theirs: RowLayout) -> None:
    for p, r in zip(ours.planes, theirs.planes, strict=True):
        assert torch.equal(p.rows, r.rows) and torch.equal(p.host, r.host), (p.layer, p.name)


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=24, deadline=None)
@given(pairs=page_pairs(), to_host=st.booleans())
def test_planned_copies_equal_the_reference(shape: str, pairs: Pairs, to_host: bool) -> None:
    ours, theirs = build(shape), build(shape)
    given_pairs = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
    copies = Addresses(ours).copies(in_order(given_pairs)).T.tolist()
    for host, device, size in copies:
        ctypes.memmove(*((host, device) if to_host else (device, host)), size)
    wanted = [pair for pair in pairs if min(pair) >= 0]
    assert sum(size for *_, size in copies) == len(wanted) * PAGE * sum(g.row_bytes for g in ours.groups)
    reference.copy_pages(theirs, given_pairs, to_host)
    assert_equal(ours, theirs)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40))
def test_runs_are_whole_and_as_few_as_possible(values: Pairs) -> None:
    first, length = runs(torch.tensor(values, dtype=torch.int64).view(-1, 2))
    found = list(zip(first.tolist(), length.tolist(), strict=True))
    assert [row for begin, count in found for row in range(begin, begin + count)] == list(range(len(values)))
    for begin, count in found:
        for side in (0, 1):
            there = [pair[side] for pair in values[begin : begin + count]]
            assert there == list(range(there[0], there[0] + count))
        before = values[begin - 1] if begin else None
        assert before is None or values[begin] != (before[0] + 1, before[1] + 1)


def test_neighbours_become_one_copy() -> None:
    layout = build("fp8")
    shuffled = in_order(torch.tensor([[3, 7], [1, 5], [2, 6], [9, 14], [-1, 0]], dtype=torch.int32))
    assert shuffled.tolist() == [[1, 5], [2, 6], [3, 7], [9, 14]]
    copies = Addresses(layout).copies(shuffled)
    assert copies[2].tolist() == [3 * PAGE * 656] * 5 + [PAGE * 656] * 5
    assert copies[0, 5:].tolist() == [p.host.data_ptr() + 14 * PAGE * 656 for p in layout.planes]
    assert copies[1, 5:].tolist() == [p.rows.data_ptr() + 9 * PAGE * 656 for p in layout.planes]


def test_a_page_that_is_several_pieces_is_refused() -> None:
    host = noise(HOST_PAGES * PAGE, 32, seed=1)
    plane = Plane(3, "k", noise(DEVICE_PAGES * PAGE, 16, seed=2), host[:, :16])
    with pytest.raises(ValueError, match=r"layer 3 plane 'k': host rows of 16 B are 32 B apart"):
        Addresses(RowLayout.of([Group(0, (plane,))]))


class Driver:
    """Stands for CUDA where `PageCopies` issues copies: notes the calls, and does them at once."""

    def __init__(self, takes: bool) -> None:
        self.calls: list[tuple[int, int]] = []
        self.takes = takes

    def __call__(self, copies: torch.Tensor, begin: int, end: int, to_host: bool, stream: int) -> bool:
        assert stream == 5
        self.calls.append((begin, end))
        for host, device, size in copies[:, begin:end].T.tolist():
            ctypes.memmove(*((host, device) if to_host else (device, host)), size)
        return self.takes


@pytest.mark.parametrize("takes", [True, False])
def test_many_copies_go_to_the_driver_in_parts(takes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_COPIES", 4)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: SimpleNamespace(cuda_stream=5))
    ours, theirs = build("kv"), build("kv")
    copies, driver = PageCopies(ours), Driver(takes)
    copies._batch_copy = driver
    pairs = torch.tensor([[3, 9], [-1, 2], [4, 10], [5, 3], [11, 0]])
    for to_host, there in ((True, pairs), (False, pairs.flip(0))):
        assert copies.copy(there, to_host) is takes
        reference.copy_pages(theirs, there, to_host)
    assert driver.calls == [(0, 4), (4, 8), (8, 12)] * 2  # three runs of four planes
    assert copies.copy(pairs[1:2], True) and copies.copy(pairs[:0], False) and len(driver.calls) == 6
    assert_equal(ours, theirs)
