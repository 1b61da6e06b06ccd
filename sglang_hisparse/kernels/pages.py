"""Page copies between the tiers: CPU -> reference, CUDA -> one of three paths.

kernel   csrc/copy_pages.cuh on a few SMs, which a forward beside it misses
staged   copy engines between the host and a staging in HBM, a short kernel between staging and planes
strided  copy engines straight between the host and the planes, row by row
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from sglang_hisparse.kernels import build, engines, reference
from sglang_hisparse.tier.layout import RowLayout

Path = Literal["kernel", "staged", "strided"]

PATHS: tuple[Path, ...] = ("kernel", "staged", "strided")

PATH: Path = "kernel"
"""How a server copies pages."""

BLOCKS, THREADS = 8, 1024
"""Thread blocks, one an SM, that the kernel may occupy; the rest of the GPU stays with the forward beside it."""


class PageCopies:
    """Copies whole pages of one layout by one path. Owns what the path needs (staging, streams), for its lifetime.

    On CUDA, constructing it builds the kernels and allocates the staging. Not for graphs.
    """

    def __init__(self, layout: RowLayout, path: Path = PATH) -> None:
        self.layout, self.path = layout, path
        self._engines: engines.Staged | engines.Strided | None = None
        if layout.device.type == "cuda":
            prepare()
            if path == "staged":
                self._engines = engines.Staged(layout)
            elif path == "strided":
                self._engines = engines.Strided(layout)

    def copy(self, pairs: torch.Tensor, to_host: bool) -> None:
        """See `reference.copy_pages`; `pairs` int [n, 2] is on the CPU, best pinned.

        Behind everything issued on the current stream so far, and ahead of everything issued there later. No host
        synchronisation. Bytes written to the host are visible to the CPU after an event behind the call.
        """
        if self._engines is not None:
            self._engines.copy(pairs, to_host)
        else:
            copy_pages(self.layout, pairs.to(self.layout.device, non_blocking=True), to_host)


def copy_pages(
    layout: RowLayout, pairs: torch.Tensor, to_host: bool, blocks: int = BLOCKS, threads: int = THREADS
) -> None:
    """The path `kernel`, and the reference on the CPU. `pairs` must be on the KV device.

    On CUDA: one launch on the current stream for all groups and planes, at most `blocks` blocks of `threads`
    threads, no host synchronisation; CUDA-graph safe once built (`prepare`). Bytes written to the host are visible
    to the CPU after an event behind the launch.
    """
    if layout.device.type != "cuda":
        reference.copy_pages(layout, pairs, to_host)
        return
    prepare()(layout.plane_table, layout.group_table, pairs, to_host, blocks, threads)


def staging_bytes(page_bytes: float, path: Path = PATH) -> int:
    """HBM that `path` takes on a CUDA device; `page_bytes`: one page, all layers of this rank."""
    if path != "staged" or page_bytes <= 0:
        return 0
    return int(engines.staging_slots(int(page_bytes)) * page_bytes)


def prepare() -> Any:
    """Build the CUDA kernel, or load it from SGLang's JIT cache, and return it."""
    return build.kernel("copy_pages", "copy_pages")
