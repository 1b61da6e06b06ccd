"""`resolve` on the device of the pool: CPU -> reference, CUDA -> `csrc/resolve.cuh`."""

from __future__ import annotations

from typing import Any

import torch

from sglang_hisparse.kernels import build, reference
from sglang_hisparse.kernels.reference import expand_blocks as expand_blocks
from sglang_hisparse.tier.layout import Group, HotTables

MAX_ENTRIES = 8192
"""Most entries of one request in one step (q * W) that the CUDA kernel takes."""

MAX_HOT_ROWS = 32768
"""Most hot rows of one request that the CUDA kernel takes."""


def resolve(
    tables: HotTables,
    group: Group,
    selection: torch.Tensor,
    request: torch.Tensor,
    rows_per_request: int,
    out: torch.Tensor | None = None,
    stats: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `reference.resolve` for the arguments, the result and what is written.

    On CUDA: one launch on the current stream, one block a request, no host synchronisation; CUDA-graph safe
    once the kernel is built (`prepare`) and while the tensors stay where they are. The kernel reads host rows
    over PCIe, so the caller orders it after whatever wrote them. RuntimeError where q * W > 8192, or less on
    GPUs with less shared memory than Hopper, and where a request may have more than 32768 hot rows.
    """
    if selection.device.type != "cuda":
        return reference.resolve(tables, group, selection, request, rows_per_request, out, stats)
    if out is None:
        out = torch.empty_like(selection)
    prepare()(
        tables.page_map,
        tables.hot_index,
        tables.hot_rows,
        tables.hot_len,
        tables.hot_slot,
        tables.hot_stamp,
        tables.clock,
        group.index,
        group.plane_table,
        group.host.data_ptr(),
        group.host_row_bytes,
        selection,
        request,
        rows_per_request,
        out,
        stats if stats is not None else selection.new_empty(0, dtype=torch.int64),
    )
    return out


def prepare() -> Any:
    """Build the CUDA kernel, or load it from SGLang's JIT cache, and return it."""
    return build.kernel("resolve", "hisparse::Resolve::run")
