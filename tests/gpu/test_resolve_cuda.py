"""The CUDA resolve kernels equal the torch reference bit for bit: rows, bytes, tables, lists and counters.

`-k small` is the subset that sanitize.sh runs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
import torch

from sglang_hisparse.kernels import resolve
from sglang_hisparse.tier.layout import PAGE, Group, HotTables, Plane

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

DEVICE = "cuda"
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
REQUESTS, TABLES = 8, 4
LEASES = {1: 2, 3: 0, 4: 3, 6: 1}  # request row -> table; rows 0, 2, 5 and 7 lease nothing


@dataclass(frozen=True)
class Case:
    name: str
    q: int
    width: int
    hot_rows: int
    planes: tuple[int, ...]  # row bytes of the planes of one layer
    layers: int = 1
    pages: int = 600
    steps: int = 6


CASES = [
    Case("small", q=1, width=48, hot_rows=64, planes=(656,), pages=12, steps=5),
    Case("small-4-layers", q=3, width=33, hot_rows=190, planes=(656,), layers=4, pages=12, steps=5),
    Case("small-odd", q=1, width=1, hot_rows=1, planes=(16,), pages=3, steps=5),
    Case("fp8-2k", q=1, width=2048, hot_rows=2048, planes=(656,)),
    Case("fp8-4k-4-layers", q=1, width=2048, hot_rows=4096, planes=(656,), layers=4),
    Case("bf16-4k-q2", q=2, width=2048, hot_rows=4096, planes=(1152,)),
    Case("fp8-8k-4-layers-q3", q=3, width=2048, hot_rows=8192, planes=(656,), layers=4),
    Case("bf16-8k-q4", q=4, width=2048, hot_rows=8192, planes=(1152,)),
    Case("kv-32k", q=1, width=2048, hot_rows=32768, planes=(256, 512)),
]


class Twin:
    """The same pool twice: `cuda` for the kernel, `cpu` for the reference. Host rows are shared.

    Pages change their place at random between steps. Selections keep part of the step before, repeat entries,
    and hold every kind of entry that selects nothing.
    """

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case = case
        self.random = torch.Generator().manual_seed(seed)
        self.request_dtype = torch.int32 if seed % 2 else torch.int64
        hot_pages = -(-TABLES * case.hot_rows // PAGE)
        device_rows = (1 + case.pages + hot_pages) * PAGE
        buffers = [
            (layer, f"plane{i}", self.bytes(device_rows, row_bytes))
            for layer in range(case.layers)
            for i, row_bytes in enumerate(case.planes)
        ]
        # Several layers: their host rows side by side. Else every plane has its own, as in a server.
        together = self.bytes(case.pages * PAGE, case.layers * sum(case.planes)).pin_memory()
        host = together.split(list(case.planes * case.layers), dim=1)
        if case.layers == 1:
            host = [rows.contiguous().pin_memory() for rows in host]
        self.cpu_group, self.cpu = self.pool(buffers, host, "cpu")
        self.cuda_group, self.cuda = self.pool(buffers, host, DEVICE)
        self.stats, self.heat, self.misses = {}, {}, {}
        for device in ("cpu", DEVICE):
            self.stats[device] = torch.zeros(4, dtype=torch.int64, device=device)
            self.heat[device] = torch.zeros(case.pages + 1, dtype=torch.int32, device=device)
            self.misses[device] = resolve.MissList.create(REQUESTS + 2, case.q * case.width, device)
        self.reads = True  # resolve reads what is missed; else, with `lists`, another launch does
        self.lists = False
        hot = torch.randperm(TABLES * case.hot_rows, generator=self.random) + (1 + case.pages) * PAGE
        hot_len = [case.hot_rows, max(case.hot_rows - 13, 0), max(case.width // 2, 1), 0]
        for tables in (self.cpu, self.cuda):
            tables.hot_rows.copy_(hot.view(TABLES, case.hot_rows))
            tables.hot_len.copy_(torch.tensor(hot_len).clamp(max=case.hot_rows))
            for request, t in LEASES.items():
                tables.hot_index[request] = t
        self.previous = self.uniform(case.q * case.width)
        self.move_pages(torch.arange(1, case.pages + 1))

    def pool(self, buffers, host, device) -> tuple[Group, HotTables]:
        case = self.case
        planes = tuple(
            Plane(layer, name, buffer.to(device, copy=True), rows)
            for (layer, name, buffer), rows in zip(buffers, host, strict=True)
        )
        return Group(0, planes), HotTables.create(case.pages, REQUESTS, 1, TABLES, case.hot_rows, device)

    def integers(self, low: int, high: int, size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.randint(low, high, (size,), generator=self.random, dtype=dtype)

    def bytes(self, rows: int, row_bytes: int) -> torch.Tensor:
        return self.integers(0, 256, rows * row_bytes, torch.uint8).view(rows, row_bytes)

    def uniform(self, size: int) -> torch.Tensor:
        return self.integers(0, (self.case.pages + 1) * PAGE, size)

    def move_pages(self, pages: torch.Tensor) -> None:
        """Give every page a new place: 4 of 6 spilled (any host page), one resident, one nowhere."""
        kind = self.integers(0, 6, len(pages))
        host = -2 - self.integers(0, self.case.pages, len(pages))
        value = torch.where(kind > 1, host, torch.where(kind == 1, pages.to(torch.int32), -1))
        for tables in (self.cpu, self.cuda):
            tables.page_map[pages.to(tables.page_map.device)] = value.to(tables.page_map.device)

    def requests(self) -> torch.Tensor:
        """All request rows in random order, and two padded ones."""
        order = torch.randperm(REQUESTS + 2, generator=self.random) - 2
        return order.clamp(min=-1).to(self.request_dtype)

    def select(self, rows: int) -> torch.Tensor:
        kept = self.previous[self.integers(0, len(self.previous), rows * self.case.width, torch.int64)]
        fresh = self.uniform(rows * self.case.width)
        odd = torch.tensor([-1, INT32_MIN, INT32_MAX, (self.case.pages + 1) * PAGE, -64], dtype=torch.int32)
        odd = odd[self.integers(0, len(odd), rows * self.case.width, torch.int64)]
        kind = self.integers(0, 20, rows * self.case.width)
        selection = torch.where(kind == 0, odd, torch.where(kind < 14, kept, fresh))
        self.previous = selection[selection >= 0][: 4 * self.case.width]
        if not len(self.previous):
            self.previous = self.uniform(4)
        return selection.view(rows, self.case.width)

    def run(self, selection: torch.Tensor, request: torch.Tensor, out=None, blocks=None) -> torch.Tensor:
        """Resolve, and fetch what it listed and left, on the device of `selection`."""
        device = "cpu" if selection.device.type == "cpu" else DEVICE
        tables, group = (self.cpu, self.cpu_group) if device == "cpu" else (self.cuda, self.cuda_group)
        misses = self.misses[device] if self.lists else None
        out = resolve.resolve(
            tables,
            group,
            selection,
            request,
            self.case.q,
            out,
            self.stats[device],
            read_rows=self.reads,
            misses=misses,
            heat=self.heat[device],
            blocks=blocks,
        )
        if misses is not None and not self.reads:
            # The first launch may begin before resolve ends, those behind it are ordinary.
            first, *behind = group.planes
            shape = resolve.FetchShape(3, 96, False)
            resolve.fetch_listed(Group(0, (first,)), misses, len(request), follows_resolve=True, shape=shape)
            if behind:
                resolve.fetch_listed(Group(0, tuple(behind)), misses, len(request))
        return out

    def check(self, selection: torch.Tensor, request: torch.Tensor, out: torch.Tensor) -> None:
        """`out` of the kernel, and everything it wrote, against the reference run now on the CPU twin."""
        assert torch.equal(out.cpu(), self.run(selection, request))
        assert torch.equal(self.heat[DEVICE].cpu(), self.heat["cpu"])
        if self.lists:
            ours, theirs = self.misses[DEVICE], self.misses["cpu"]
            assert torch.equal(ours.count.cpu(), theirs.count)
            for row, count in enumerate(theirs.count.tolist()):
                assert torch.equal(ours.rows[row, :count].cpu(), theirs.rows[row, :count])
        for field in fields(HotTables):
            assert torch.equal(getattr(self.cuda, field.name).cpu(), getattr(self.cpu, field.name)), (
                field.name
            )
        for ours, theirs in zip(self.cuda_group.planes, self.cpu_group.planes, strict=True):
            assert torch.equal(ours.rows.cpu(), theirs.rows), (ours.layer, ours.name)
        assert torch.equal(self.stats[DEVICE].cpu(), self.stats["cpu"])

    def step(self, blocks: int | None = None) -> None:
        request = self.requests()
        selection = self.select(len(request) * self.case.q)
        out = self.run(selection.to(DEVICE), request.to(DEVICE), blocks=blocks)
        self.check(selection, request, out)
        self.move_pages(
            1 + torch.randperm(self.case.pages, generator=self.random)[: 1 + self.case.pages // 10]
        )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_step_of_a_trace_equals_the_reference(case: Case) -> None:
    twin = Twin(case, seed=CASES.index(case))
    for step in range(case.steps):
        twin.step(blocks=(None, 1, 2, 4, 8)[step % 5])
    resident, hot, missed, overflow = twin.stats["cpu"].tolist()
    assert resident and missed and overflow
    assert hot or case.hot_rows == 1


@pytest.mark.parametrize("stamps", [1, 3, 300, 70_000, 2**31], ids=lambda n: f"small-{n}")
def test_any_table_contents(stamps: int) -> None:
    """Victims by (age, entry) whatever the stamps."""
    twin = Twin(Case("tables", q=1, width=512, hot_rows=1500, planes=(16,), pages=40), seed=stamps % 7)
    shape = twin.cpu.hot_slot.shape
    low = INT32_MIN if stamps == 2**31 else 0
    # A table caches a slot once; it may cache slots of pages that were freed or are resident.
    slots = torch.randperm(41 * PAGE, generator=twin.random)[: shape[-1]].to(torch.int32).expand(shape)
    slot = torch.where(twin.integers(0, 3, shape.numel()).view(shape) == 0, -1, slots)
    stamp = twin.integers(low, stamps, shape.numel(), torch.int64).to(torch.int32).view(shape)
    for tables in (twin.cpu, twin.cuda):
        tables.hot_slot.copy_(slot)
        tables.hot_stamp.copy_(stamp)
        tables.clock.fill_(1)
    for _ in range(3):
        twin.step()


def test_resident_selections_read_and_write_no_hot_table_small() -> None:
    twin = Twin(CASES[0])
    twin.cuda.page_map[:] = twin.cpu.page_map[:] = torch.arange(twin.case.pages + 1, dtype=torch.int32)
    twin.step()
    assert twin.stats["cpu"][1:].tolist() == [0, 0, 0] and not twin.cuda.clock.any()


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[8]], ids=lambda case: case.name)
def test_listed_rows_come_apart(case: Case, reads: bool) -> None:
    """Resolve fetches nothing, launches behind it do; or it fetches all, and the list is only kept."""
    twin = Twin(case)
    twin.reads, twin.lists = reads, True
    for _ in range(3):
        twin.step()
    assert twin.stats["cpu"][2] > 0


def test_without_bytes_small() -> None:
    twin = Twin(CASES[1])
    twin.reads = False
    for _ in range(3):
        twin.step()
    assert twin.stats["cpu"][2] > 0


@pytest.mark.parametrize("case", [CASES[4], CASES[7]], ids=lambda case: case.name)
def test_a_captured_graph_follows_selections_and_page_map(case: Case) -> None:
    twin = Twin(case)
    padded = torch.full((REQUESTS + 2,), -1, dtype=twin.request_dtype)
    request = padded.to(DEVICE)
    selection = torch.zeros(len(padded) * case.q, case.width, dtype=torch.int32, device=DEVICE)
    out = torch.empty_like(selection)

    twin.reads, twin.lists = False, True

    def launch() -> None:
        twin.run(selection, request, out)

    launch()  # padded rows only: builds the kernel and changes nothing
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for _ in range(case.steps):
        ids, slots = twin.requests(), twin.select(len(padded) * case.q)
        request.copy_(ids)
        selection.copy_(slots)
        graph.replay()
        twin.check(slots, ids, out)
        twin.move_pages(1 + torch.randperm(case.pages, generator=twin.random)[:60])


def test_rows_beyond_two_gib() -> None:
    """Device rows and host rows whose byte offset does not fit 32 bits."""
    row_bytes, hot_rows, width = 656, 64, 48
    pages = 2**31 // (row_bytes * PAGE) + 8
    rows = torch.zeros((pages + 1) * PAGE, row_bytes, dtype=torch.uint8, device=DEVICE)
    host = torch.empty(pages * PAGE, row_bytes, dtype=torch.uint8, pin_memory=True)
    host[-PAGE:] = torch.arange(PAGE * row_bytes).remainder(251).to(torch.uint8).view(PAGE, row_bytes)
    group = Group(0, (Plane(0, "latent", rows, host),))
    tables = HotTables.create(pages, 1, 1, 1, hot_rows, DEVICE)
    tables.page_map[1] = -2 - (pages - 1)
    tables.page_map[2] = pages
    tables.hot_index[0] = 0
    tables.hot_len[0] = hot_rows
    last = len(rows) - 1
    tables.hot_rows[0] = torch.arange(last, last - hot_rows, -1)
    assert (last - hot_rows) * row_bytes > 2**31 and (len(host) - PAGE) * row_bytes > 2**31

    offsets = torch.randperm(PAGE)[:width]
    selection = torch.cat([PAGE + offsets, torch.tensor([2 * PAGE + 5])]).to(torch.int32).view(1, -1)
    out = resolve.resolve(
        tables, group, selection.to(DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE), 1
    )
    assert out.cpu().tolist() == [[*range(last, last - width, -1), pages * PAGE + 5]]
    assert torch.equal(rows[out[0, :width].long()].cpu(), host[-PAGE:][offsets])
    assert not rows[: last - width + 1].any()


def test_limits_are_refused_with_numbers_small() -> None:
    twin = Twin(CASES[0])
    request = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    wide = torch.zeros(1, resolve.MAX_ENTRIES + 1, dtype=torch.int32, device=DEVICE)
    with pytest.raises(RuntimeError, match="8193 entries"):
        resolve.resolve(twin.cuda, twin.cuda_group, wide, request, 1)
    narrow = torch.zeros(1, 4, dtype=torch.int32, device=DEVICE)
    with pytest.raises(RuntimeError, match="not 1 requests of 2"):
        resolve.resolve(twin.cuda, twin.cuda_group, narrow, request, 2)
    with pytest.raises(RuntimeError, match="out must be other memory"):
        resolve.resolve(twin.cuda, twin.cuda_group, narrow, request, 1, narrow)
    with pytest.raises(RuntimeError, match="1, 2, 4 or 8 blocks, not by 3"):
        resolve.resolve(twin.cuda, twin.cuda_group, narrow, request, 1, blocks=3)
    with pytest.raises(RuntimeError, match="17 planes; the kernels take at most 16"):
        many = Group(0, twin.cuda_group.planes * 17)
        resolve.resolve(twin.cuda, many, narrow, request, 1)
    with pytest.raises(RuntimeError, match=r"the list of misses holds 1 requests of 2 rows"):
        few = resolve.MissList.create(1, 2, DEVICE)
        resolve.resolve(twin.cuda, twin.cuda_group, narrow, request, 1, misses=few)
    with pytest.raises(RuntimeError, match=r"[Dd]type|DType"):
        resolve.resolve(twin.cuda, twin.cuda_group, narrow.long(), request, 1)
    for shape, message in (
        ((3, 64, True), "in pairs an even number; got 3"),
        ((4, 48, False), "48 threads a block; whole warps"),
        ((4, 2048, False), "at most 1024"),
    ):
        with pytest.raises(RuntimeError, match=message):
            resolve.fetch_listed(twin.cuda_group, few, 1, shape=resolve.FetchShape(*shape))
    with pytest.raises(RuntimeError, match="2 requests of a list of 1"):
        resolve.fetch_listed(twin.cuda_group, few, 2)
