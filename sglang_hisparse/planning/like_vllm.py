"""The arithmetic of vLLM's published concurrency calculator for GLM-5.3, for comparing with it.

Source: "HiSparse concurrency calculator" beside the post "GLM 5.3 Optimizations, Part 1: Hybrid HiSparse Offloading in
vLLM" (vllm.ai, 2026-09-08), file assets/interactive_pages/hisparse_concurrency_calculator.html of
vllm-project/vllm-project.github.io at 21fd986c. Floors, ceilings and constants as there:

    weights of a GPU  19.556 / TP + 684.167 / (DP x TP with expert parallel, else TP)   GiB
    KV in HBM         GPU GB x 1e9 / 2^30 x 0.92 - weights - 15, at least 0, in steps of 0.1 GiB
    a request         ceil(S / 64) blocks resident; with HiSparse ceil(S / 64) of index keys, 20 groups x
                      (ceil(hot rows / 64) + 2 retained), in blocks of the widest group

How it differs from our own plan: data-sheet gigabytes, 8 % and 15 GiB of HBM kept free, hot rows counted in full for
every request, index keys in blocks of the widest group, no prompt that has to fit HBM.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sglang_hisparse.capacity import GIB

MODEL = "GLM-5.3"
GPU_GB = {"H200": 141, "B200": 180, "B300": 288}
DENSE_GIB, EXPERT_GIB = 19.556, 684.167
USABLE, RESERVE_GIB = 0.92, 15
BLOCK_TOKENS, GROUPS, RETAINED = 64, 20, 2
HOT_ROWS, MAX_SEQUENCES = 4096, 1024
BLOCK_BYTES = {"fp8": (3_052_800, 184_320, 2_875_392), "bf16": (5_928_192, 294_912, 5_750_784)}
"""Bytes of a block of 64 tokens: resident without HiSparse, widest group with it, host."""


@dataclass(frozen=True, slots=True)
class LikeVllm:
    """The calculator's answer for one DP rank; `_total` for all."""

    kv_gib: float
    resident_requests: int
    tiered_requests: int
    resident_requests_total: int
    tiered_requests_total: int
    gain: float | None
    min_host_pool_gib: int
    host_pool_gib: float
    binding: str


def like_vllm(
    gpu: str,
    tp: int = 8,
    dp: int = 1,
    context: int = 81920,
    *,
    hot_rows: int = HOT_ROWS,
    kv_dtype: str = "fp8",
    host_pool_gib: float | None = None,
    max_running: int = MAX_SEQUENCES,
    expert_parallel: bool = True,
    weights_gib: float | None = None,
) -> LikeVllm:
    """What the page shows. host_pool_gib None: its "auto", the smallest pool. ValueError for another GPU."""
    if gpu not in GPU_GB:
        raise ValueError(f"--gpu {gpu}: the published calculator knows {', '.join(GPU_GB)}")
    if weights_gib is None:
        weights_gib = DENSE_GIB / tp + EXPERT_GIB / (dp * tp if expert_parallel else tp)
    kv_gib = (
        math.floor(max(0.0, GPU_GB[gpu] * 1e9 / GIB * USABLE - weights_gib - RESERVE_GIB) * 10 + 0.5) / 10
    )
    base_block, hi_block, host_block = BLOCK_BYTES[kv_dtype]
    blocks = math.ceil(context / BLOCK_TOKENS)
    base = min(max_running, int(kv_gib * GIB / base_block) // blocks)
    each = blocks + GROUPS * (math.ceil(hot_rows / BLOCK_TOKENS) + RETAINED)
    by_gpu = int(kv_gib * GIB / hi_block) // each
    wanted = min(max_running, by_gpu)
    smallest = math.ceil(wanted * blocks * host_block / GIB) if wanted > base else 0
    host_gib = smallest if host_pool_gib is None else host_pool_gib
    by_host = int(host_gib * GIB / host_block) // blocks
    tiered = max(base, min(wanted, by_host))
    bounds = {"device_pool": by_gpu, "host_pool": by_host, "request_slots": max_running}
    return LikeVllm(
        kv_gib=kv_gib,
        resident_requests=base,
        tiered_requests=tiered,
        resident_requests_total=base * dp,
        tiered_requests_total=tiered * dp,
        gain=tiered / base if base else None,
        min_host_pool_gib=smallest,
        host_pool_gib=host_gib,
        binding=min(bounds, key=lambda name: bounds[name]) if tiered > base else "device_pool",
    )
