"""Look-ups in the page map on the device of the pool: CPU -> reference, CUDA -> `csrc/map_rows.cuh`.

On CUDA each is one launch on the current stream without a host synchronisation, CUDA-graph safe once the kernels are
built (`prepare`).
"""

from __future__ import annotations

from typing import Any

import torch

from sglang_hisparse.kernels import build, reference


def map_rows(page_map: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Slots -> device rows, see `reference.map_rows`."""
    if slots.device.type != "cuda":
        return reference.map_rows(page_map, slots)
    rows = torch.empty(slots.shape, dtype=slots.dtype, device=slots.device)
    prepare()(page_map, slots.reshape(-1), rows.view(-1))
    return rows


def map_pages(page_map: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """A page table of logical pages -> one of device pages, see `reference.map_pages`."""
    if table.device.type != "cuda":
        return reference.map_pages(page_map, table)
    mapped = torch.empty(table.shape, dtype=table.dtype, device=table.device)
    build.kernel("map_rows", "map_pages")(page_map, table.reshape(-1), mapped.view(-1))
    return mapped


def prepare() -> Any:
    """Build the CUDA kernels, or load them from SGLang's JIT cache, and return the one of `map_rows`."""
    return build.kernel("map_rows", "map_rows")
