"""A second set of decode graphs, for forwards whose requests have all their pages in HBM.

    graph      the fused top-k maps positions by     selections come out as    then
    tiered     SGLang's page table                   slots                     resolve, followers' rows
    resident   a table of device pages               device rows               nothing

The indexer reads its keys by SGLang's own table in both. The table of device pages is made at the head of a resident
graph, in one launch, from the page map as it is when the graph is replayed. SGLang captures a decode graph for every
label that it is given here, and asks before every replay which one to take.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.model_executor.runner_utils.capture_mode import get_capture_attention_variant

from sglang_hisparse.seams.runtime import runtime

RESIDENT, TIERED = "hisparse_resident", "hisparse_tiered"


class ResidencyGraphs:
    """SGLang's interface of graph variants."""

    capture_labels = (RESIDENT, TIERED)
    """In the order of capture. Both share a memory pool: the tiered one needs what the resident one does, and more."""

    def select(self, forward_batch: Any) -> str:
        """The graph for a forward that `before_forward` has prepared."""
        tier = runtime.tier
        if tier is None or not tier.nothing_spilled:
            return TIERED
        tier.count_resident(forward_batch.seq_lens_cpu)
        return RESIDENT


@dataclasses.dataclass
class _Capture:
    """The resident graph that is being captured (or warmed up)."""

    table: torch.Tensor | None = None
    mapped: bool = False
    """a selection was mapped to device rows since the last leader"""


_capture = _Capture()


def resident_graph() -> bool:
    """True while a resident graph is captured. Replays run no Python, and eager forwards resolve."""
    return get_capture_attention_variant() == RESIDENT


def graph_variants(found: Any, hf_config: Any) -> Any:
    """After stock's choice of variants, which on CUDA has none for DSA."""
    wanted = runtime.tier is not None and runtime.config is not None and runtime.config.resident_graphs
    return ResidencyGraphs() if wanted and found is None else found


def make_device_table(result: None, runner: Any, attn_backend: Any, forward_batch: Any) -> None:
    """After stock's own work at the head of a graph: the table for this forward."""
    _capture.table, _capture.mapped = None, False  # the memory of the last graph's belongs to the next graph
    if runtime.tier is not None and resident_graph():
        _capture.table = runtime.tier.device_table_of(attn_backend.forward_metadata.real_page_table)
    return result


def map_topk(
    original: Callable[..., torch.Tensor], logits: torch.Tensor, lengths: Any, topk: int, attn_metadata: Any
) -> torch.Tensor:
    """Around the fused top-k of decode: int32 [rows, topk] slots, or device rows in a resident graph."""
    if runtime.tier is None or not resident_graph():
        return original(logits, lengths, topk, attn_metadata)
    assert _capture.table is not None, "the table is made at the head of the graph"
    _capture.mapped = True
    on_device = dataclasses.replace(attn_metadata, real_page_table=_capture.table)
    return original(logits, lengths, topk, on_device)


def check_mapped(layer: int) -> None:
    """Before a leader reads: RuntimeError where its selection took another way and holds slots."""
    if not _capture.mapped:
        raise RuntimeError(
            f"HiSparse: the selection of layer {layer} did not come from SGLang's fused top-k for decode, so that "
            'decode graphs without resolve would read wrong rows. Set "resident_graphs": false in --hisparse-config'
        )
    _capture.mapped = False
