"""The page copies equal the torch reference in both directions, for any planes, in the order of their stream.

`-k small` is the subset that sanitize.sh runs.
"""

from __future__ import annotations

import pytest
import torch

from sglang_hisparse.kernels import pages, reference
from sglang_hisparse.kernels.pages import PageCopies
from sglang_hisparse.tier.layout import PAGE, Group, Plane, RowLayout

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

DEVICE = "cuda"
DEVICE_PAGES, HOST_PAGES = 40, 50

SHAPES = {  # layers, row bytes of the planes of a layer
    "small": (1, (656,)),
    "small-5-layers": (5, (656,)),
    "bf16": (2, (1152,)),
    "kv": (4, (256, 512)),
    "small-chunk": (1, (16,)),
}


def noise(rows: int, row_bytes: int, seed: int) -> torch.Tensor:
    return torch.randint(
        0, 256, (rows, row_bytes), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def build(shape: str, device: str) -> RowLayout:
    """A pool full of noise, the same on every device."""
    layers, row_bytes = SHAPES[shape]
    groups = []
    for layer in range(layers):
        planes = []
        for i, size in enumerate(row_bytes):
            rows = noise(DEVICE_PAGES * PAGE, size, seed=layer * 10 + i).to(device)
            host = noise(HOST_PAGES * PAGE, size, seed=1000 + layer * 10 + i)
            planes.append(Plane(layer, f"plane{i}", rows, host.pin_memory() if device == DEVICE else host))
        groups.append(Group(layer, tuple(planes)))
    return RowLayout.of(groups)


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
    for p, r in zip(ours.planes, theirs.planes, strict=True):
        assert torch.equal(p.rows.cpu(), r.rows) and torch.equal(p.host, r.host), (p.layer, p.name)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("to_host", [True, False], ids=["to-host", "to-device"])
@pytest.mark.parametrize("default_stream", [True, False], ids=["default-stream", "own-stream"])
@pytest.mark.parametrize("most", [1, 7, pages.MOST_COPIES])
def test_equals_the_reference(
    shape: str, to_host: bool, default_stream: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MOST_COPIES", most)
    ours, theirs = build(shape, DEVICE), build(shape, "cpu")
    copies = PageCopies(ours)
    stream = torch.cuda.default_stream() if default_stream else torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    neighbours = torch.stack([torch.arange(20, 40), torch.arange(10, 30)], dim=1)
    with torch.cuda.stream(stream):
        for pairs in (pairs_of(1, 1), pairs_of(7, 7).to(torch.int32), pairs_of(33, 33), neighbours):
            copies.copy(pairs, to_host)
            reference.copy_pages(theirs, pairs, to_host)
    assert_equal(ours, theirs)


@pytest.mark.parametrize("shape", ["small-5-layers", "bf16"])
def test_back_and_forth_on_streams_in_turn(shape: str) -> None:
    ours, theirs = build(shape, DEVICE), build(shape, "cpu")
    copies = PageCopies(ours)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    previous = streams[1]
    for seed in range(30):
        pairs, to_host = pairs_of(33, seed), seed % 3 != 2
        stream = streams[seed % 2]
        stream.wait_stream(previous)  # pages of the last call may be read or written by this one
        with torch.cuda.stream(stream):
            copies.copy(pairs, to_host)
        previous = stream
        reference.copy_pages(theirs, pairs, to_host)
    assert_equal(ours, theirs)


def test_copies_keep_their_place_in_the_stream() -> None:
    """Rows that a slow kernel ahead writes are what is copied; rows written behind the copies are not."""
    ours = build("small-5-layers", DEVICE)
    copies = PageCopies(ours)
    pairs = torch.stack([torch.arange(16), torch.arange(16).flip(0)], dim=1)
    back = torch.stack([torch.arange(16, 32), torch.arange(16).flip(0)], dim=1)
    planes = [plane.rows for plane in ours.planes]
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
    for plane in ours.planes:
        assert (plane.host[: 16 * PAGE] == 29).all()


def test_the_driver_takes_batches() -> None:
    """Else copies are issued one by one, which works but is slow."""
    if int(torch.version.cuda.split(".")[0]) < 13:
        pytest.skip("a batch needs CUDA 13")
    copies = PageCopies(build("bf16", DEVICE))
    with torch.cuda.stream(torch.cuda.Stream()):
        assert copies.copy(pairs_of(9, 1), to_host=True)
        assert copies.copy(pairs_of(9, 2), to_host=False)
    torch.cuda.synchronize()


def test_nothing_to_copy_small() -> None:
    """By an empty list and by pairs that are all switched off."""
    ours, theirs = build("small", DEVICE), build("small", "cpu")
    copies = PageCopies(ours)
    for to_host in (True, False):
        copies.copy(torch.zeros((0, 2), dtype=torch.int64), to_host)
        copies.copy(torch.tensor([[-1, 3], [4, -1]]), to_host)
    assert_equal(ours, theirs)


def test_pages_beyond_two_gib() -> None:
    """Device pages and host pages whose byte offset does not fit 32 bits, both ways."""
    row_bytes = 1152
    last = 2**31 // (row_bytes * PAGE) + 2
    rows = torch.zeros((last + 1) * PAGE, row_bytes, dtype=torch.uint8, device=DEVICE)
    host = torch.empty((last + 1) * PAGE, row_bytes, dtype=torch.uint8, pin_memory=True)
    data = noise(PAGE, row_bytes, seed=1)
    rows[last * PAGE :] = data.to(DEVICE)
    copies = PageCopies(RowLayout.of([Group(0, (Plane(0, "latent", rows, host),))]))
    copies.copy(torch.tensor([[last, last]]), to_host=True)
    torch.cuda.synchronize()
    assert torch.equal(host[last * PAGE :], data)
    copies.copy(torch.tensor([[last - 1, last]]), to_host=False)
    assert torch.equal(rows[(last - 1) * PAGE : last * PAGE].cpu(), data)
    assert not rows[: (last - 1) * PAGE].any()
