"""The other references of the kernels: blocks to slots, and whole pages between the tiers."""

from __future__ import annotations

import random

import pytest
import torch

from sglang_hisparse.kernels import resolve
from sglang_hisparse.kernels.pages import PageCopies
from sglang_hisparse.tier.layout import PAGE
from tests.cpu.test_resolve_reference import INT32_MAX, INT32_MIN, MHA, World


@pytest.mark.parametrize("unit", [1, 4, 64, 128])
def test_expand_blocks(unit):
    rng = random.Random(unit)
    context = 512
    req_to_token = torch.randint(
        64, 9999, (5, context), dtype=torch.int32, generator=torch.Generator().manual_seed(1)
    )
    request, seq_len = [3, -1, 0, 4], [300, 100, 512, 0]
    blocks = [
        [rng.randrange(-2, context // unit + 2) for _ in range(6)] + [INT32_MIN, INT32_MAX] for _ in request
    ]
    expected = [
        [
            int(req_to_token[r, p]) if r >= 0 and b >= 0 and p < n else -1
            for b in row
            for p in range(b * unit, (b + 1) * unit)
        ]
        for row, r, n in zip(blocks, request, seq_len, strict=True)
    ]
    out = resolve.expand_blocks(
        torch.tensor(blocks, dtype=torch.int32),
        unit,
        req_to_token,
        torch.tensor(request),
        torch.tensor(seq_len),
    )
    assert out.dtype == torch.int32 and out.tolist() == expected


def test_copy_pages_round_trip_moves_every_plane_and_nothing_else():
    world = World.make(random.Random(3), group_layers=[(0, 1), (2,)], planes=MHA)
    saved = [[plane.rows.clone() for plane in group.planes] for group in world.layout.groups]
    pairs = torch.tensor([[3, 7], [1, 0], [-1, 4], [5, -1]], dtype=torch.int32)
    copies = PageCopies(world.layout)
    assert copies.copy(pairs, to_host=True)
    for plane in world.layout.planes:
        assert not plane.host[4 * PAGE : 5 * PAGE].any() and plane.host[7 * PAGE : 8 * PAGE].any()
    assert copies.copy(torch.tensor([[8, 7], [9, 0]]), to_host=False)
    for group, before in zip(world.layout.groups, saved, strict=True):
        for plane, rows in zip(group.planes, before, strict=True):
            rows[8 * PAGE : 9 * PAGE] = rows[3 * PAGE : 4 * PAGE]
            rows[9 * PAGE : 10 * PAGE] = rows[1 * PAGE : 2 * PAGE]
            assert torch.equal(plane.rows, rows)
