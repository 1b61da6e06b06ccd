"""`resolve` and the fetch of what it listed, on the pool's device: CPU -> reference, CUDA -> `csrc/resolve.cuh`."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from sglang_hisparse.kernels import build, reference
from sglang_hisparse.kernels.reference import expand_blocks as expand_blocks
from sglang_hisparse.tier.layout import Group, HotTables

MAX_ENTRIES = 8192
"""Most entries of one request in one step (q * W) that the CUDA kernel takes."""

MAX_HOT_ROWS = 32768
"""Most hot rows of one request that the CUDA kernel takes."""

SM_BUDGET = 32
"""Thread blocks of one resolve while a request has several. Sixteen saturate PCIe 5 x16; a request has at most 8."""


@dataclass(frozen=True, slots=True)
class FetchShape:
    """Thread blocks of a fetch of listed rows. `paired`: clusters of two, so that they take both SMs of a pair."""

    blocks: int
    threads: int
    paired: bool


LISTED = FetchShape(4, 1024, True)
"""Four SMs, full: kernels beside a fetch that take one block an SM and all of its shared memory cannot share an SM with
a block of ours, however small it is. Two rows a warp are what four SMs need to saturate PCIe 5 x16; more SMs are not
faster where nothing runs beside them (docs/kernels.md)."""

LISTED_C2C = FetchShape(24, 1024, True)
"""Where CPU and GPU are one module (GH200, GB200), whose link is many times as fast. By the 15 GB/s that an SM fetches
over PCIe; not measured."""


def shape_on(gpu: str) -> FetchShape:
    """Thread blocks of a fetch on the GPU of this name, as torch gives it."""
    module = gpu.removeprefix("NVIDIA ").startswith(("GH", "GB"))
    return LISTED_C2C if module else LISTED


@functools.cache
def _shape_of(device: torch.device) -> FetchShape:
    return shape_on(torch.cuda.get_device_name(device))


@dataclass(frozen=True, slots=True, eq=False)
class MissList:
    """What a leader's resolve missed, for `fetch_listed`. On the KV device, written by resolve.

    rows   int32 [batch, entries, 2]: host row and device row of every missed slot that got a hot row
    count  int32 [batch]: how many there are
    """

    rows: torch.Tensor
    count: torch.Tensor

    @staticmethod
    def bytes(batch: int, entries: int) -> int:
        """Device memory of a list for `batch` requests of `entries` entries each."""
        return 4 * batch * (2 * entries + 1)

    @classmethod
    def create(cls, batch: int, entries: int, device: torch.device | str) -> MissList:
        """For `batch` requests of `entries` entries each."""
        return cls(
            torch.zeros(batch, entries, 2, dtype=torch.int32, device=device),
            torch.zeros(batch, dtype=torch.int32, device=device),
        )


def blocks_for(batch: int) -> int:
    """Thread blocks that serve one request when `batch` requests are resolved: 1, 2, 4 or 8 within the budget."""
    blocks = 8
    while blocks > 1 and blocks * batch > SM_BUDGET:
        blocks //= 2
    return blocks


def resolve(
    tables: HotTables,
    group: Group,
    selection: torch.Tensor,
    request: torch.Tensor,
    rows_per_request: int,
    out: torch.Tensor | None = None,
    stats: torch.Tensor | None = None,
    *,
    read_rows: bool = True,
    misses: MissList | None = None,
    heat: torch.Tensor | None = None,
    blocks: int | None = None,
) -> torch.Tensor:
    """See `reference.resolve` for the arguments, the result and what is written.

    blocks  thread blocks a request (CUDA; default `blocks_for`)

    On CUDA: one launch on the current stream, no host synchronisation; CUDA-graph safe once the kernel is built
    (`prepare`) and while the tensors stay where they are. The kernel reads host rows over the link, so the caller
    orders it after whatever wrote them. RuntimeError where q * W > 8192, where tables and selection need more shared
    memory than the GPU has, or where `out` is `selection` (several blocks read it).
    """
    if selection.device.type != "cuda":
        return reference.resolve(
            tables, group, selection, request, rows_per_request, out, stats,
            read_rows=read_rows, misses=misses, heat=heat,
        )  # fmt: skip
    if out is None:
        out = torch.empty_like(selection)
    prepare()(
        tables.page_map, tables.hot_index, tables.hot_rows, tables.hot_len, tables.hot_slot, tables.hot_stamp,
        tables.clock, group.index, group.plane_table, read_rows, selection, request, rows_per_request, out,
        selection.new_empty(0, dtype=torch.int64) if stats is None else stats,
        selection.new_empty(0) if heat is None else heat,
        selection.new_empty(0, 1, 2) if misses is None else misses.rows,
        selection.new_empty(0) if misses is None else misses.count,
        blocks_for(len(request)) if blocks is None else blocks,
    )  # fmt: skip
    return out


def fetch_listed(
    group: Group,
    misses: MissList,
    batch: int,
    *,
    follows_resolve: bool = False,
    shape: FetchShape | None = None,
) -> None:
    """See `reference.fetch_listed`.

    follows_resolve  the launch before it on this stream is the resolve that filled the list, whose end it need not wait
                     for to be launched
    shape            thread blocks (default: by the GPU, `shape_on`)

    On CUDA: one launch on the current stream, no host synchronisation; CUDA-graph safe once built.
    """
    if misses.count.device.type != "cuda":
        reference.fetch_listed(group, misses, batch)
        return
    shape = shape or _shape_of(misses.count.device)
    prepare_listed()(
        group.plane_table, misses.rows, misses.count, batch, shape.blocks, shape.threads, shape.paired, follows_resolve,
    )  # fmt: skip


def prepare() -> Any:
    """Build the CUDA kernels, or load them from SGLang's JIT cache, and return resolve."""
    return build.kernel("resolve", "resolve")


def prepare_listed() -> Any:
    """The same, and return the fetch of listed rows."""
    return build.kernel("resolve", "fetch_listed")
