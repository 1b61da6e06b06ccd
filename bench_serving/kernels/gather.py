"""`gather_rows`: nothing but the gather, the ceiling; and an empty kernel, the floor."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch


@functools.cache
def prepare() -> Any:
    """Build csrc/gather.cuh, or load it from SGLang's JIT cache."""
    from sglang.kernels.jit.utils import load_jit

    return load_jit(
        "hisparse_bench_gather",
        cuda_files=[str(Path(__file__).parent / "csrc" / "gather.cuh")],
        cuda_wrappers=[
            ("gather", "hisparse_bench::Gather::run"),
            ("empty", "hisparse_bench::Empty::run"),
        ],
    )


def gather_rows(
    host: torch.Tensor, device_rows: torch.Tensor, source: torch.Tensor, target: torch.Tensor, blocks: int
) -> None:
    """device_rows[target] = host[source]: uint8 rows of the same length, int32 ids on the device, pinned host."""
    if device_rows.device.type == "cuda":
        prepare()["gather"](host.data_ptr(), device_rows, source, target, blocks)
    else:
        device_rows[target.long()] = host[source.long()]


def empty(device: torch.device) -> Any:
    """A launch that does nothing, ready to be captured."""
    if device.type != "cuda":
        return lambda: None
    return functools.partial(prepare()["empty"], torch.empty(1, device=device))
