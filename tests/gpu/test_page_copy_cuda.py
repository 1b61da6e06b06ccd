"""The CUDA page copy equals the torch reference in both directions, for any groups and planes.

`-k small` is the subset that sanitize.sh runs.
"""

from __future__ import annotations

import pytest
import torch

from sglang_hisparse.kernels import pages, reference
from sglang_hisparse.tier.layout import PAGE, Group, RowLayout, plan_planes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

DEVICE = "cuda"
DEVICE_PAGES, HOST_PAGES = 40, 50

SHAPES = {  # layers of the groups, row bytes of the planes of a layer
    "small": ([(0,)], (656,)),
    "small-4-layers": ([(0, 1, 2, 3), (4,)], (656,)),
    "bf16": ([(0,), (1,)], (1152,)),
    "kv": ([(0, 1), (2, 3)], (256, 512)),
    "small-chunk": ([(0,)], (16,)),
}


def noise(rows: int, row_bytes: int, seed: int) -> torch.Tensor:
    return torch.randint(
        0, 256, (rows, row_bytes), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def build(shape: str, device: str) -> RowLayout:
    """A pool full of noise, the same on every device."""
    groups, row_bytes = SHAPES[shape]
    built = []
    for index, layers in enumerate(groups):
        buffers = [
            (layer, f"plane{i}", noise(DEVICE_PAGES * PAGE, size, seed=layer * 10 + i).to(device))
            for layer in layers
            for i, size in enumerate(row_bytes)
        ]
        planes, host_row_bytes = plan_planes(buffers)
        host = noise(HOST_PAGES * PAGE, host_row_bytes, seed=1000 + index)
        built.append(Group(index, layers, planes, host.pin_memory() if device == DEVICE else host))
    return RowLayout.of(built)


def pairs_of(count: int, seed: int) -> torch.Tensor:
    """Distinct device pages and distinct host pages, some pairs switched off on either side."""
    random = torch.Generator().manual_seed(seed)
    pairs = torch.stack(
        [torch.randperm(n, generator=random)[:count] for n in (DEVICE_PAGES, HOST_PAGES)], dim=1
    )
    if count > 4:
        pairs[1, 0], pairs[3, 1] = -1, -(2**31)
    return pairs


def assert_equal(ours: RowLayout, theirs: RowLayout) -> None:
    torch.cuda.synchronize()
    for a, b in zip(ours.groups, theirs.groups, strict=True):
        assert torch.equal(a.host, b.host), a.index
        for p, r in zip(a.planes, b.planes, strict=True):
            assert torch.equal(p.rows.cpu(), r.rows), (p.layer, p.name)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("to_host", [True, False], ids=["to-host", "to-device"])
def test_equals_the_reference(shape: str, dtype: torch.dtype, to_host: bool) -> None:
    ours, theirs = build(shape, DEVICE), build(shape, "cpu")
    for count, blocks in ((1, 1), (7, 3), (33, pages.BLOCKS)):
        pairs = pairs_of(count, seed=count).to(dtype)
        pages.copy_pages(ours, pairs.to(DEVICE), to_host, blocks)
        reference.copy_pages(theirs, pairs, to_host)
        assert_equal(ours, theirs)


def test_round_trip_and_no_pairs_small() -> None:
    ours = build("small-4-layers", DEVICE)
    before = [plane.rows.clone() for group in ours.groups for plane in group.planes]
    there = torch.tensor([[3, 9], [17, 0]], device=DEVICE)
    back = torch.tensor([[20, 9], [21, 0]], device=DEVICE)
    pages.copy_pages(ours, there, to_host=True)
    pages.copy_pages(ours, back, to_host=False)
    pages.copy_pages(ours, there[:0], to_host=False)
    for plane, rows in zip((plane for group in ours.groups for plane in group.planes), before, strict=True):
        for source, copied in ((3, 20), (17, 21)):
            rows[copied * PAGE : (copied + 1) * PAGE] = rows[source * PAGE : (source + 1) * PAGE]
        assert torch.equal(plane.rows, rows)


def test_pages_beyond_two_gib() -> None:
    """Device pages and host pages whose byte offset does not fit 32 bits, both ways."""
    row_bytes = 1152
    last = 2**31 // (row_bytes * PAGE) + 2
    rows = torch.zeros((last + 1) * PAGE, row_bytes, dtype=torch.uint8, device=DEVICE)
    host = torch.empty((last + 1) * PAGE, row_bytes, dtype=torch.uint8, pin_memory=True)
    planes, _ = plan_planes([(0, "latent", rows)])
    layout = RowLayout.of([Group(0, (0,), planes, host)])
    data = noise(PAGE, row_bytes, seed=1)
    rows[last * PAGE :] = data.to(DEVICE)
    pages.copy_pages(layout, torch.tensor([[last, last]], device=DEVICE), to_host=True)
    torch.cuda.synchronize()
    assert torch.equal(host[last * PAGE :], data)
    pages.copy_pages(layout, torch.tensor([[last - 1, last]], device=DEVICE), to_host=False)
    assert torch.equal(rows[(last - 1) * PAGE : last * PAGE].cpu(), data)
    assert not rows[: (last - 1) * PAGE].any()


def test_a_captured_graph_follows_the_pairs() -> None:
    ours, theirs = build("kv", DEVICE), build("kv", "cpu")
    static = torch.full((9, 2), -1, dtype=torch.int64, device=DEVICE)
    pages.copy_pages(ours, static, to_host=False)  # builds the kernel, copies nothing
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pages.copy_pages(ours, static, to_host=True)
    for seed in range(3):
        pairs = pairs_of(9, seed)
        static.copy_(pairs)
        graph.replay()
        reference.copy_pages(theirs, pairs, to_host=True)
        assert_equal(ours, theirs)
