"""engines.Staged on streams that run in any order their events allow: no order may change what is copied."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from sglang_hisparse.kernels import build as build_kernels
from sglang_hisparse.kernels import engines, reference
from sglang_hisparse.tier.layout import PAGE, Group, RowLayout
from tests.cpu.test_copy_plan import assert_equal, build, move


class FakeStream:
    """Work that has been issued: functions, and marks (stream, position) to wait for."""

    all: list[FakeStream] = []  # noqa: RUF012
    current: FakeStream

    def __init__(self, _device: object = None, priority: int = 0) -> None:
        self.work: list[Any] = []
        self.priority = priority
        self.done = 0
        self.cuda_stream = len(FakeStream.all)
        FakeStream.all.append(self)

    def wait_event(self, event: FakeEvent) -> None:
        if event.mark is not None:
            self.work.append(event.mark)

    def wait_stream(self, other: FakeStream) -> None:
        self.work.append((other, len(other.work)))

    def synchronize(self) -> None:
        run_all(random.Random(0))


class FakeEvent:
    def __init__(self) -> None:
        self.mark: tuple[FakeStream, int] | None = None

    def record(self, stream: FakeStream) -> None:
        self.mark = (stream, len(stream.work))


def run_all(order: random.Random) -> None:
    """Run everything that was issued; which stream goes on is up to `order`."""
    while waiting := [stream for stream in FakeStream.all if stream.done < len(stream.work)]:
        ready = []
        for stream in waiting:
            step = stream.work[stream.done]
            if not isinstance(step, tuple) or step[0].done >= step[1]:
                ready.append(stream)
        stream = order.choice(ready)
        step = stream.work[stream.done]
        if not isinstance(step, tuple):
            step()
        stream.done += 1


@contextmanager
def on(stream: FakeStream) -> Any:
    before, FakeStream.current = FakeStream.current, stream
    yield
    FakeStream.current = before


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[FakeStream]:
    """Two streams to call from; torch's streams, events and pinned memory are replaced."""
    FakeStream.all = []
    FakeStream.current = FakeStream()
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: FakeStream.current)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return [FakeStream(), FakeStream()]


def staged_of(
    layout: RowLayout,
    monkeypatch: pytest.MonkeyPatch,
    total: float,
    piece: float,
    priority: int | None = None,
) -> engines.Staged:
    """Sizes are in pages; kernel and batches are put on the fake streams."""
    staging: list[RowLayout] = []

    def kernel(_planes: object, table: torch.Tensor, pairs: torch.Tensor, to_host: bool, *_: int) -> None:
        here = [g for g in staging[0].groups if g.host.data_ptr() in table[:, 0].tolist()]
        assert len(here) == len(table)
        some = RowLayout.of(Group(i, g.layers, g.planes, g.host) for i, g in enumerate(here))
        FakeStream.current.work.append(lambda: reference.copy_pages(some, pairs, to_host))

    def batch_copy(copies: torch.Tensor, begin: int, end: int, to_host: bool, handle: int) -> bool:
        assert 0 <= begin < end <= copies.shape[1]
        for host, stage, size in copies[:, begin:end].T.tolist():
            copy = (host, stage, size) if to_host else (stage, host, size)
            FakeStream.all[handle].work.append(lambda copy=copy: move(*copy))
        return True

    entries: dict[str, Callable[..., Any]] = {
        "copy_pages": kernel, "batch_copy": batch_copy, "batch_rects": batch_copy
    }  # fmt: skip
    monkeypatch.setattr(build_kernels, "kernel", lambda _source, function: entries[function])
    page_bytes = PAGE * sum(group.host_row_bytes for group in layout.groups)
    shape = engines.Staging(int(total * page_bytes), int(piece * page_bytes), priority=priority)
    staged = engines.Staged(layout, shape)
    staging.append(
        RowLayout.of(
            Group(g.index, g.layers, g.planes, buffer)
            for g, buffer in zip(layout.groups, staged.buffers, strict=True)
        )
    )
    return staged


RINGS = [(2, 1), (4, 2), (6, 3), (5, 1), (7, 2), (2, 0.5), (3, 0.34)]
"""Pages of the staging, and of a piece."""


@pytest.mark.parametrize("seed", range(14))
@pytest.mark.parametrize("priority", [None, -1])
def test_any_order_of_streams_copies_the_same(
    seed: int, priority: int | None, streams: list[FakeStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spills and restores in turn; the caller's streams wait for each other, as users of the same pages must."""
    ours, theirs = build("mixed"), build("mixed")
    total, piece = RINGS[seed % len(RINGS)]
    staged = staged_of(ours, monkeypatch, total, piece, priority)
    assert (staged.ring.pages, staged.ring.parts) == (max(1, int(piece)), round(1 / min(1, piece)))
    assert staged.ring.turns == int(total) // staged.ring.pages
    generator = torch.Generator().manual_seed(seed)
    previous = streams[0]
    for call in range(6):
        pairs = torch.stack([torch.randperm(n, generator=generator)[:9] for n in (12, 15)], dim=1)
        pairs[call, 0] = -1
        stream = streams[(call + seed) % 2]
        stream.wait_stream(previous)
        with on(stream):
            assert staged.copy(pairs, to_host=call % 2 == seed % 2)
        previous = stream
        reference.copy_pages(theirs, pairs, call % 2 == seed % 2)
    run_all(random.Random(seed))
    assert_equal(ours, theirs)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("to_host", [True, False])
def test_calls_on_streams_that_do_not_wait_share_the_staging(
    to_host: bool, seed: int, streams: list[FakeStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = build("mixed"), build("mixed")
    total, piece = RINGS[seed % len(RINGS)]
    staged = staged_of(ours, monkeypatch, total, piece)
    for number, stream in enumerate(streams):
        pairs = torch.stack([torch.arange(6), torch.arange(6).flip(0)], dim=1) + 6 * number
        with on(stream):
            staged.copy(pairs, to_host)
        reference.copy_pages(theirs, pairs, to_host)
    run_all(random.Random(seed))
    assert_equal(ours, theirs)


def test_the_kernel_has_the_priority_it_was_given(
    streams: list[FakeStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(FakeStream.all)
    staged_of(build("mixed"), monkeypatch, 2, 1)
    staged_of(build("mixed"), monkeypatch, 2, 1, priority=-2)
    assert [stream.priority for stream in FakeStream.all[before:]] == [0, 0, -2]
