"""Changes of page map and leases on CUDA equal the reference, of any number, in the order of the stream."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from sglang_hisparse.kernels import reference
from sglang_hisparse.kernels.map_rows import map_rows
from sglang_hisparse.kernels.set_tables import set_entries, set_lease
from sglang_hisparse.tier.layout import PAGE, HotTables

pytest.importorskip("sglang.srt.server_args", reason="SGLang is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
PAGES, REQUESTS, GROUPS, TABLES = 5000, 700, 21, 3


def made(hot_rows: int) -> tuple[HotTables, HotTables]:
    """The same tables, with something in every entry, on the CPU and on the GPU."""
    tables = HotTables.create(PAGES, REQUESTS, GROUPS, TABLES, hot_rows, "cpu")
    for field in dataclasses.fields(tables):
        getattr(tables, field.name).random_(0, 1 << 20)
    copies = {field.name: getattr(tables, field.name).cuda() for field in dataclasses.fields(tables)}
    return tables, HotTables(**copies)


def assert_same(cpu: HotTables, gpu: HotTables) -> None:
    for field in dataclasses.fields(cpu):
        assert torch.equal(getattr(gpu, field.name).cpu(), getattr(cpu, field.name)), field.name


@pytest.mark.parametrize(
    ("pages", "requests"),
    [(0, 0), (1, 0), (0, 1), (1, 1), (479, 1), (480, 0), (480, 3), (300, 600), (5000, 700)],
)
def test_small_entries_equal_the_reference(pages: int, requests: int) -> None:
    cpu, gpu = made(PAGE)
    rng = random.Random(pages)
    of_pages = {page: rng.randrange(-900, 900) for page in rng.sample(range(PAGES + 1), pages)}
    of_requests = {row: rng.randrange(-1, TABLES) for row in rng.sample(range(REQUESTS), requests)}
    for tables in (cpu, gpu):
        set_entries(tables, of_pages, of_requests)
    assert_same(cpu, gpu)


@pytest.mark.parametrize(("hot_rows", "pages"), [(64, 1), (4096, 64), (4096, 33), (4096, 0), (32768, 512)])
@pytest.mark.parametrize("table", [0, TABLES - 1])
def test_small_leases_equal_the_reference(hot_rows: int, pages: int, table: int) -> None:
    cpu, gpu = made(hot_rows)
    for first in (hot_rows, min(pages, 32) * PAGE, 64, 0):
        leased = random.Random(first).sample(range(1, PAGES), pages)
        for tables in (cpu, gpu):
            set_lease(tables, table, first, leased)
        assert_same(cpu, gpu)


def test_what_a_table_does_not_have_is_refused() -> None:
    cpu, gpu = made(2 * PAGE)
    for pages, requests in (({PAGES + 1: 1}, {}), ({-1: 1}, {}), ({1: 1}, {REQUESTS: 1})):
        with pytest.raises(RuntimeError, match="of a table of"):
            set_entries(gpu, pages, requests)
    with pytest.raises(RuntimeError, match="in a table of 128 rows"):
        set_lease(gpu, 0, 0, [1, 2, 3])
    with pytest.raises(RuntimeError, match="table 3 of 3"):
        set_lease(gpu, TABLES, 0, [1])
    assert_same(cpu, gpu)


def test_changes_lie_between_the_forwards_of_their_stream() -> None:
    """Each look-up reads what was set before it, though the CPU is far ahead."""
    _, gpu = made(PAGE)
    stream = torch.cuda.Stream()
    slots = torch.arange(PAGE, 2 * PAGE, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        found = []
        for value in range(200):
            set_entries(gpu, {1: value}, {})
            found.append(map_rows(gpu.page_map, slots))
        assert not stream.query(), "the stream was done: this shows nothing"
    stream.synchronize()
    for value, rows in enumerate(found):
        assert torch.equal(rows, value * PAGE + slots - PAGE), value


def test_the_reference_in_torch_runs_on_the_gpu_too() -> None:
    cpu, gpu = made(4 * PAGE)
    reference.set_entries(gpu, {3: 4, 9: -7}, {1: 2})
    reference.set_lease(gpu, 1, PAGE, [5, 6])
    set_entries(cpu, {3: 4, 9: -7}, {1: 2})
    set_lease(cpu, 1, PAGE, [5, 6])
    assert_same(cpu, gpu)
