"""`copy_pages` on the device of the pool: CPU -> reference, CUDA -> `csrc/copy_pages.cuh`."""

from __future__ import annotations

import torch

from sglang_hisparse.kernels import build, reference
from sglang_hisparse.tier.layout import RowLayout

BLOCKS = 32
"""Thread blocks a copy may occupy. Sixteen saturate PCIe 5 x16 (docs: design, measured limits); the rest of
the GPU stays with the forward that runs beside the copy."""

_PAGE_TYPES = {torch.int32: "int32_t", torch.int64: "int64_t"}


def copy_pages(layout: RowLayout, pairs: torch.Tensor, to_host: bool, blocks: int = BLOCKS) -> None:
    """See `reference.copy_pages`. `pairs` must be on the KV device.

    On CUDA: one launch on the current stream for all groups and planes, at most `blocks` thread blocks, no
    host synchronisation; CUDA-graph safe once built (`prepare`). Bytes written to the host are visible to the
    CPU after an event behind the launch.
    """
    if layout.device.type != "cuda":
        reference.copy_pages(layout, pairs, to_host)
        return
    prepare(to_host, pairs.dtype)(layout.copy_table, pairs, blocks)


def prepare(to_host: bool, pairs_dtype: torch.dtype = torch.int64):
    """Build (or load from SGLang's JIT cache) the kernel of one direction, and return it."""
    if pairs_dtype not in _PAGE_TYPES:
        raise ValueError(f"pairs must be int32 or int64, got {pairs_dtype}")
    return build.kernel(
        "copy_pages", f"hisparse::CopyPages<{str(to_host).lower()}, {_PAGE_TYPES[pairs_dtype]}>::run"
    )
