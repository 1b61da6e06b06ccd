"""The CUDA page copies equal the torch reference in both directions, for any groups and planes, by every path.

`-k small` is the subset that sanitize.sh runs.
"""

from __future__ import annotations

import pytest
import torch

from sglang_hisparse.kernels import engines, pages, reference
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

PATHS = pytest.mark.parametrize("path", pages.PATHS)


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


def pages_of_staging(
    layout: RowLayout, total: int, piece: float, priority: int | None = None
) -> engines.Staging:
    """A staging of so many pages, in pieces of so many."""
    page_bytes = PAGE * sum(group.host_row_bytes for group in layout.groups)
    return engines.Staging(total * page_bytes, int(piece * page_bytes), priority=priority)


def copies_by(
    path: pages.Path, layout: RowLayout, staging: engines.Staging = engines.STAGING
) -> pages.PageCopies:
    way = pages.Way(path, staging=staging)
    return pages.PageCopies(layout, way, way)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("to_host", [True, False], ids=["to-host", "to-device"])
def test_equals_the_reference(shape: str, dtype: torch.dtype, to_host: bool) -> None:
    ours, theirs = build(shape, DEVICE), build(shape, "cpu")
    # From whole pages to slices of two rows.
    for count, blocks, threads in (
        (1, 1, 1024),
        (7, 3, 256),
        (33, pages.BLOCKS, 1024),
        (9, 264, 256),
        (5, 132, 64),
    ):
        pairs = pairs_of(count, seed=count).to(dtype)
        pages.copy_pages(ours, pairs.to(DEVICE), to_host, blocks, threads)
        reference.copy_pages(theirs, pairs, to_host)
        assert_equal(ours, theirs)


@PATHS
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("to_host", [True, False], ids=["to-host", "to-device"])
@pytest.mark.parametrize("default_stream", [True, False], ids=["default-stream", "own-stream"])
def test_every_path_equals_the_reference(
    path: pages.Path, shape: str, to_host: bool, default_stream: bool
) -> None:
    ours, theirs = build(shape, DEVICE), build(shape, "cpu")
    copies = copies_by(path, ours)
    stream = torch.cuda.default_stream() if default_stream else torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    neighbours = torch.stack([torch.arange(20, 40), torch.arange(10, 30)], dim=1)
    with torch.cuda.stream(stream):
        for pairs in (pairs_of(1, 1), pairs_of(7, 7).to(torch.int32), pairs_of(33, 33), neighbours):
            copies.copy(pairs.pin_memory(), to_host)
            reference.copy_pages(theirs, pairs, to_host)
    assert_equal(ours, theirs)


@pytest.mark.parametrize(
    "total, piece, priority", [(2, 1, None), (4, 2, -1), (6, 2, None), (2, 0.5, None), (5, 0.5, -1)]
)
@pytest.mark.parametrize("shape", ["small-4-layers", "bf16"])
def test_more_pages_than_the_staging_holds(
    shape: str, total: int, piece: float, priority: int | None
) -> None:
    """33 pages through 2 to 10 slots, back and forth without a pause, on streams in turn: every piece is reused while
    the engines are slower than the kernel."""
    ours, theirs = build(shape, DEVICE), build(shape, "cpu")
    staged = engines.Staged(ours, pages_of_staging(ours, total, piece, priority))
    assert (staged.ring.slots, staged.ring.parts) == (total, round(1 / min(1, piece)))
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    previous = streams[1]
    for seed in range(30):
        pairs, to_host = pairs_of(33, seed), seed % 3 != 2
        stream = streams[seed % 2]
        stream.wait_stream(previous)  # pages of the last call may be read or written by this one
        with torch.cuda.stream(stream):
            staged.copy(pairs, to_host)
        previous = stream
        reference.copy_pages(theirs, pairs, to_host)
    assert_equal(ours, theirs)


def test_a_way_for_each_direction() -> None:
    """There by the kernel and back through the staging, at once."""
    ours, theirs = build("small-4-layers", DEVICE), build("small-4-layers", "cpu")
    small = pages_of_staging(ours, 4, 2, priority=-1)
    copies = pages.PageCopies(ours, pages.Way("kernel", 4, 256), pages.Way("staged", staging=small))
    with torch.cuda.stream(torch.cuda.Stream()):
        for seed in range(6):
            pairs, to_host = pairs_of(20, seed), seed % 2 == 0
            copies.copy(pairs.pin_memory(), to_host)
            reference.copy_pages(theirs, pairs, to_host)
    assert_equal(ours, theirs)


@PATHS
def test_copies_keep_their_place_in_the_stream(path: pages.Path) -> None:
    """Rows that a slow kernel ahead writes are what is copied; rows written behind the copies are not."""
    ours = build("small-4-layers", DEVICE)
    copies = copies_by(path, ours, pages_of_staging(ours, 4, 2))
    pairs = torch.stack([torch.arange(16), torch.arange(16).flip(0)], dim=1)
    back = torch.stack([torch.arange(16, 32), torch.arange(16).flip(0)], dim=1)
    planes = [plane.rows for group in ours.groups for plane in group.planes]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for value in range(1, 30):
            torch.cuda._sleep(200_000)
            for rows in planes:
                rows[: 16 * PAGE].fill_(value)
            copies.copy(pairs, to_host=True)
            for rows in planes:
                rows[: 16 * PAGE].fill_(255)
            copies.copy(back, to_host=False)
            wrong = torch.stack([(rows[16 * PAGE : 32 * PAGE] != value).sum() for rows in planes])
            assert not wrong.any(), value
    stream.synchronize()
    for group in ours.groups:
        assert (group.host[: 16 * PAGE] == 29).all()


def test_the_driver_takes_batches() -> None:
    """Else the staged and the strided path issue their copies one by one, which works but is slow."""
    if int(torch.version.cuda.split(".")[0]) < 13:
        pytest.skip("a batch needs CUDA 13")
    ours = build("bf16", DEVICE)
    with torch.cuda.stream(torch.cuda.Stream()):
        for engine in (engines.Staged(ours), engines.Strided(ours)):
            assert engine.copy(pairs_of(9, 1), to_host=True)
            assert engine.copy(pairs_of(9, 2), to_host=False)
    torch.cuda.synchronize()


def test_engines_without_copies_small() -> None:
    """Nothing to copy, by an empty list and by pairs that are all switched off."""
    ours, theirs = build("small", DEVICE), build("small", "cpu")
    nothing = torch.zeros((0, 2), dtype=torch.int64)
    for path in pages.PATHS:
        copies = copies_by(path, ours)
        for to_host in (True, False):
            copies.copy(nothing, to_host)
            copies.copy(torch.tensor([[-1, 3], [4, -1]]), to_host)
    torch.cuda.synchronize()
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


@PATHS
def test_pages_beyond_two_gib(path: pages.Path) -> None:
    """Device pages and host pages whose byte offset does not fit 32 bits, both ways."""
    row_bytes = 1152
    last = 2**31 // (row_bytes * PAGE) + 2
    rows = torch.zeros((last + 1) * PAGE, row_bytes, dtype=torch.uint8, device=DEVICE)
    host = torch.empty((last + 1) * PAGE, row_bytes, dtype=torch.uint8, pin_memory=True)
    planes, _ = plan_planes([(0, "latent", rows)])
    layout = RowLayout.of([Group(0, (0,), planes, host)])
    data = noise(PAGE, row_bytes, seed=1)
    rows[last * PAGE :] = data.to(DEVICE)
    copies = copies_by(path, layout)
    copies.copy(torch.tensor([[last, last]]), to_host=True)
    torch.cuda.synchronize()
    assert torch.equal(host[last * PAGE :], data)
    copies.copy(torch.tensor([[last - 1, last]]), to_host=False)
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
