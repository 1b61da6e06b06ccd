"""Page copies between the tiers: CPU -> reference, CUDA -> one of three paths.

kernel   csrc/copy_pages.cuh on a few SMs, which a forward beside it misses
staged   copy engines between the host and a staging in HBM, a short kernel between staging and planes
strided  copy engines straight between the host and the planes, row by row
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from sglang_hisparse.kernels import build, engines, reference
from sglang_hisparse.tier.layout import RowLayout

Path = Literal["kernel", "staged", "strided"]

PATHS: tuple[Path, ...] = ("kernel", "staged", "strided")

BLOCKS, THREADS = 8, 1024
"""Thread blocks, one an SM, that the kernel may occupy; the rest of the GPU stays with the forward beside it."""


@dataclass(frozen=True, slots=True)
class Way:
    """How pages are copied in one direction; `blocks` and `threads` are of path `kernel`, `staging` of `staged`."""

    path: Path
    blocks: int = BLOCKS
    threads: int = THREADS
    staging: engines.Staging = engines.STAGING


SPILL, RESTORE = Way("staged"), Way("staged")
"""How a server copies pages to the host, and back. A kernel that writes to the host backs up into everything else that
runs: eight blocks reach 87 % of the link and cost a step beside them 322 %, two reach 84 % and cost 13 %; staged, 88 %
and 4 %."""


class PageCopies:
    """Copies whole pages of one layout. Owns what its ways need (staging, streams), for its lifetime.

    On CUDA, constructing it builds the kernels and allocates the staging, which both directions share where they use
    the same. Not for graphs.
    """

    def __init__(self, layout: RowLayout, spill: Way = SPILL, restore: Way = RESTORE) -> None:
        self.layout, self._ways = layout, {True: spill, False: restore}
        self._engines: dict[Way | engines.Staging, engines.Staged | engines.Strided] = {}
        if layout.device.type == "cuda":
            prepare()
            for way in (spill, restore):
                if way.path == "staged" and way.staging not in self._engines:
                    self._engines[way.staging] = engines.Staged(layout, way.staging)
                elif way.path == "strided":
                    self._engines[way] = engines.Strided(layout)

    def copy(self, pairs: torch.Tensor, to_host: bool) -> bool:
        """See `reference.copy_pages`; `pairs` int [n, 2] is on the CPU, best pinned.

        Behind everything issued on the current stream so far, and ahead of everything issued there later. No host
        synchronisation. Bytes written to the host are visible to the CPU after an event behind the call. Returns
        whether the driver took the copies as batches, or a kernel makes them.
        """
        way = self._ways[to_host]
        engine = self._engines.get(way.staging if way.path == "staged" else way)
        if engine is not None:
            return engine.copy(pairs, to_host)
        on_device = pairs.to(self.layout.device, non_blocking=True)
        copy_pages(self.layout, on_device, to_host, way.blocks, way.threads)
        return True


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


def staging_bytes(page_bytes: float, spill: Way = SPILL, restore: Way = RESTORE) -> int:
    """HBM that the ways take on a CUDA device; `page_bytes`: one page, all layers of this rank."""
    stagings = {way.staging for way in (spill, restore) if way.path == "staged"}
    return sum(staging.bytes(int(page_bytes)) for staging in stagings) if page_bytes >= 1 else 0


def prepare() -> Any:
    """Build the CUDA kernel, or load it from SGLang's JIT cache, and return it."""
    return build.kernel("copy_pages", "copy_pages")
