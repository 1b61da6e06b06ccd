"""The fetch behind resolve, on its streams: a layer that has waited reads its own rows, in a graph too."""

from __future__ import annotations

import pytest
import torch

from sglang_hisparse.kernels import resolve
from sglang_hisparse.tier import listed_fetch
from sglang_hisparse.tier.layout import Group, Plane
from sglang_hisparse.tier.listed_fetch import ListedFetch
from tests.gpu.test_resolve_cuda import CASES, DEVICE, REQUESTS, Twin

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def stored_apart(twin: Twin) -> list[Group]:
    """The twin's layers as a tier stores them, each with host rows of its own."""
    return [
        Group(0, (Plane(plane.layer, plane.name, plane.rows, plane.host.contiguous().pin_memory()),))
        for plane in twin.cuda_group.planes
    ]


@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize("case", [CASES[1], CASES[4]], ids=lambda case: case.name)
def test_every_layer_reads_what_the_reference_reads(
    case, swept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listed_fetch, "SWEPT_REQUESTS", 1 if swept else 1000)
    twin, batch = Twin(case), REQUESTS + 2
    group, groups = twin.cuda_group, stored_apart(twin)
    fetch = ListedFetch(batch, case.q * case.width, torch.device(DEVICE), copy_rows=True)
    assert fetch.sweeps(batch) is swept and fetch.lists(groups, batch)
    request = torch.full((batch,), -1, dtype=twin.request_dtype, device=DEVICE)
    selection = torch.zeros(batch * case.q, case.width, dtype=torch.int32, device=DEVICE)
    out = torch.empty_like(selection)
    row = torch.empty_like(out)
    read = [
        torch.empty(out.numel(), plane.row_bytes, dtype=torch.uint8, device=DEVICE) for plane in group.planes
    ]

    def step() -> None:
        with fetch.beside():
            resolve.resolve(
                twin.cuda, groups[0], selection, request, case.q, out, twin.stats[DEVICE],
                read_rows=not swept, misses=fetch.misses, heat=twin.heat[DEVICE],
            )  # fmt: skip
            fetch.start(groups, batch)
        for layer, plane, rows in zip(group.layers, group.planes, read, strict=True):
            fetch.wait(layer)
            torch.clamp(out, min=0, out=row)
            torch.index_select(plane.rows, 0, row.view(-1), out=rows)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for replay in range(case.steps):
        ids, slots = twin.requests(), twin.select(batch * case.q)
        request.copy_(ids)
        selection.copy_(slots)
        if replay % 2:
            step()
        else:
            graph.replay()
        twin.check(slots, ids, out)
        for plane, rows in zip(twin.cpu_group.planes, read, strict=True):
            assert torch.equal(rows.cpu(), plane.rows[out.clamp(min=0).cpu().view(-1)])
        twin.move_pages(1 + torch.randperm(case.pages, generator=twin.random)[: 1 + case.pages // 5])
    assert twin.stats["cpu"][2] > 0
