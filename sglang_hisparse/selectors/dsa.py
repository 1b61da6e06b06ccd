"""DSA (DeepSeek-V3.2, GLM-5.x): an indexer picks top-k tokens; some layers reuse the pick of the layer before.

Rows are the joint latent: bf16 576 x 2 = 1,152 B, or fp8 656 B (512 fp8, 4 fp32 scales, 64 bf16 rope).
"""

from __future__ import annotations

from sglang_hisparse.selectors.base import Selector, index_groups


def dsa_selector(index_topk: int, skips: list[bool]) -> Selector:
    """`skips[i]`: layer i reuses the selection of the layer before. Prefill reads HBM only."""
    return Selector("dsa", index_topk, index_groups(skips), prefill_reads_host=False)
