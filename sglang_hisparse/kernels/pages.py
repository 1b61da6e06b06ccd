"""`copy_pages` on the device of the pool: CPU -> reference, CUDA -> `csrc/copy_pages.cuh`."""

from __future__ import annotations

from typing import Any

import torch

from sglang_hisparse.kernels import build, reference
from sglang_hisparse.tier.layout import RowLayout

BLOCKS = 8
"""Thread blocks, one an SM, that a copy may occupy; the rest of the GPU stays with the forward beside it."""


def copy_pages(layout: RowLayout, pairs: torch.Tensor, to_host: bool, blocks: int = BLOCKS) -> None:
    """See `reference.copy_pages`. `pairs` must be on the KV device.

    On CUDA: one launch on the current stream for all groups and planes, at most `blocks` thread blocks, no
    host synchronisation; CUDA-graph safe once built (`prepare`). Bytes written to the host are visible to the
    CPU after an event behind the launch.
    """
    if layout.device.type != "cuda":
        reference.copy_pages(layout, pairs, to_host)
        return
    prepare()(layout.plane_table, layout.group_table, pairs, to_host, blocks)


def prepare() -> Any:
    """Build the CUDA kernel, or load it from SGLang's JIT cache, and return it."""
    return build.kernel("copy_pages", "copy_pages")
