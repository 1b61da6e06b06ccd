"""The copies planned for the copy engines, done here byte by byte, put down what the reference puts down."""

from __future__ import annotations

import ctypes
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_hisparse.kernels import copy_plan, engines, pages, reference
from sglang_hisparse.kernels.copy_plan import Addresses, Ring, in_order, part_edges, runs
from sglang_hisparse.tier.layout import PAGE, Group, RowLayout, plan_planes

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
        planes, width = plan_planes((index, f"plane{i}", r) for i, r in enumerate(rows))
        groups.append(Group(index, (index,), planes, noise(HOST_PAGES * PAGE, width, seed=100 + index)))
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


def move(target: int, source: int, size: int) -> None:
    ctypes.memmove(target, source, size)


def copy_staged(layout: RowLayout, pairs: torch.Tensor, to_host: bool, ring: Ring) -> None:
    """What engines.Staged does, piece after piece; its part of the staging is spoilt before it is used again."""
    ordered = in_order(pairs)
    if not len(ordered):
        return
    staging = RowLayout.of(
        Group(g.index, g.layers, g.planes, noise(ring.slots * PAGE, g.host_row_bytes, seed=7))
        for g in layout.groups
    )
    first_slots = torch.tensor([group.host.data_ptr() for group in staging.groups])
    plan = Addresses(layout).staged(ordered, first_slots, ring)
    edges = part_edges(len(layout.groups), ring.parts)
    done = 0
    for number, piece in enumerate(plan.pieces()):
        assert (piece.turn, piece.part) == (
            number // (len(edges) - 1) % ring.turns,
            number % (len(edges) - 1),
        )
        pairs_here = plan.pairs[piece.first : piece.last]
        assert 0 < len(pairs_here) <= ring.pages
        assert (pairs_here[:, 1] // ring.pages == piece.turn).all()
        groups = staging.groups[edges[piece.part] : edges[piece.part + 1]]
        part = RowLayout.of(Group(i, g.layers, g.planes, g.host) for i, g in enumerate(groups))
        for group in groups:
            group.host[piece.turn * ring.pages * PAGE :][: ring.pages * PAGE] = 0xA5
        if to_host:
            reference.copy_pages(part, pairs_here, True)
        for host, stage, size in plan.copies[:, piece.begin : piece.end].T.tolist():
            move(*((host, stage) if to_host else (stage, host)), size)
            done += size
        if not to_host:
            reference.copy_pages(part, pairs_here, False)
    assert done == len(ordered) * PAGE * sum(group.host_row_bytes for group in layout.groups)


def copy_strided(layout: RowLayout, pairs: torch.Tensor, to_host: bool) -> None:
    """What engines.Strided does."""
    ordered = in_order(pairs)
    if not len(ordered):
        return
    for target, source, target_pitch, source_pitch, width, height in (
        Addresses(layout).rects(ordered, to_host).tolist()
    ):
        assert width > 0 and height > 0 and min(target_pitch, source_pitch) >= width
        for row in range(height):
            move(target + row * target_pitch, source + row * source_pitch, width)


def assert_equal(ours: RowLayout, theirs: RowLayout) -> None:
    for a, b in zip(ours.groups, theirs.groups, strict=True):
        assert torch.equal(a.host, b.host), a.index
        for p, r in zip(a.planes, b.planes, strict=True):
            assert torch.equal(p.rows, r.rows), (p.layer, p.name)


RINGS = (
    Ring(1, 1, 2),
    Ring(2, 1, 2),
    Ring(5, 1, 2),
    Ring(20, 1, 2),
    Ring(2, 1, 3),
    Ring(1, 2, 2),
    Ring(1, 9, 3),
)


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=12, deadline=None)
@given(pairs=page_pairs(), to_host=st.booleans(), ring=st.sampled_from([None, *RINGS]))
def test_planned_copies_equal_the_reference(
    shape: str, pairs: Pairs, to_host: bool, ring: Ring | None
) -> None:
    """Without a ring: without a staging."""
    ours, theirs = build(shape), build(shape)
    given_pairs = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
    if ring:
        copy_staged(ours, given_pairs, to_host, ring)
    else:
        copy_strided(ours, given_pairs, to_host)
    reference.copy_pages(theirs, given_pairs, to_host)
    assert_equal(ours, theirs)


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(1, 8))
def test_runs_are_whole_short_and_as_few_as_possible(values: list[int], most: int) -> None:
    first, length = runs(torch.tensor(values).unsqueeze(1), most)
    found = list(zip(first.tolist(), length.tolist(), strict=True))
    assert [row for begin, count in found for row in range(begin, begin + count)] == list(range(len(values)))
    for begin, count in found:
        assert values[begin : begin + count] == list(range(values[begin], values[begin] + count))
        assert begin // most == (begin + count - 1) // most
        assert begin == 0 or begin % most == 0 or values[begin] != values[begin - 1] + 1


def test_neighbours_become_one_copy() -> None:
    layout = build("fp8")
    addresses = Addresses(layout)
    shuffled = in_order(torch.tensor([[3, 7], [1, 5], [2, 6], [9, 14], [-1, 0]], dtype=torch.int32))
    assert shuffled.tolist() == [[1, 5], [2, 6], [3, 7], [9, 14]]
    plan = addresses.staged(shuffled, torch.zeros(2, dtype=torch.int64), Ring(10, 1, 2))
    group, alone = (PAGE * g.host_row_bytes for g in layout.groups)
    assert plan.copies[2].tolist() == [3 * group, 3 * alone, group, alone]
    rects = addresses.rects(shuffled, to_host=True)
    assert rects.shape == (2 * 5, len(copy_plan.RECT))
    # The group of one plane has no gaps: three pages of it are one row.
    assert rects[:, 4:].tolist() == [[656, 3 * 64]] * 4 + [[656 * 3 * 64, 1]] + [[656, 64]] * 4 + [
        [656 * 64, 1]
    ]


MIB = 1 << 20


@pytest.mark.parametrize("piece", [1, MIB, 4 * MIB, 24 * MIB, 100 * MIB])
@pytest.mark.parametrize("page_bytes", [1, 64 * 656 * 78, 64 * 1152 * 78, 40 << 20, 400 << 20])
def test_the_staging_keeps_its_size_and_tells_it(page_bytes: int, piece: int) -> None:
    staging = engines.Staging(48 * MIB, piece)
    ring = staging.ring(page_bytes)
    assert ring.turns >= 2 and (ring.pages == 1 or ring.parts == 1)
    assert ring.slots * page_bytes <= max(48 * MIB, 2 * page_bytes)
    assert ring.pages * page_bytes <= max(piece, page_bytes)
    assert page_bytes / ring.parts <= 2 * max(piece, page_bytes if ring.pages > 1 else 1)
    way, kernel = pages.Way("staged", staging=staging), pages.Way("kernel")
    assert pages.staging_bytes(page_bytes, way, way) == ring.slots * page_bytes
    assert pages.staging_bytes(page_bytes, way, kernel) == pages.staging_bytes(page_bytes, kernel, way) > 0
    assert pages.staging_bytes(page_bytes, kernel, pages.Way("strided")) == 0
    assert pages.staging_bytes(0, way, way) == 0


def test_two_stagings_take_twice_the_memory() -> None:
    spill = pages.Way("staged", staging=engines.Staging(4 * MIB, MIB))
    restore = pages.Way("staged", staging=engines.Staging(8 * MIB, 2 * MIB))
    assert pages.staging_bytes(MIB, spill, restore) == 12 * MIB
    assert pages.staging_bytes(MIB, spill, spill) == 4 * MIB


def test_parts_are_whole_groups_and_none_is_empty() -> None:
    for groups in range(1, 30):
        for parts in (1, 2, 3, 7, 40):
            edges = part_edges(groups, parts)
            assert edges[0] == 0 and edges[-1] == groups and len(edges) == min(parts, groups) + 1
            assert all(a < b for a, b in itertools.pairwise(edges))


@pytest.mark.parametrize("spill", pages.PATHS)
@pytest.mark.parametrize("restore", pages.PATHS)
def test_on_the_cpu_every_path_is_the_reference(spill: pages.Path, restore: pages.Path) -> None:
    ours, theirs = build("kv"), build("kv")
    pairs = torch.tensor([[3, 9], [-1, 2], [4, 10], [5, -1], [11, 0]])
    copies = pages.PageCopies(ours, pages.Way(spill), pages.Way(restore))
    for to_host, there in ((True, pairs), (False, pairs.flip(0))):
        assert copies.copy(there, to_host)
        reference.copy_pages(theirs, there, to_host)
    assert_equal(ours, theirs)
