"""Benchmark aid: the place where a dummy model's decode selections are replaced by a trace.

The replacement stands behind the indexer's paged top-k, ahead of everything that reads a selection, so stock without a
tier, stock HiSparse and our tier see the same positions: as slots where the top-k is fused, as positions where it is
not. Selections of all leaders are made at a forward's first leader, inside its CUDA graph: a handful of small kernels
a step, and one `where` a leader.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.srt.configs.model_config import dsa_layer_skips_topk, get_dsa_index_topk
from sglang.srt.runtime_context import get_parallel

from sglang_hisparse.benchmark_aids import NO_COPY, REPLAY
from sglang_hisparse.seams.resident import resident_graph
from sglang_hisparse.seams.runtime import runtime
from sglang_hisparse.selectors.replay import SelectionReplay, slots_of

logger = logging.getLogger(__name__)


def build_replay(runner: Any) -> None:
    """Build the traces once the pools of the target's runner exist, before graphs are captured."""
    aids, rank = runtime.aids, get_parallel().tp_rank
    if runner.is_draft_worker or runtime.replay is not None:
        return
    if aids.no_copy and rank == 0:
        logger.warning(f"BENCHMARK AID: missed rows are not copied ({NO_COPY}), outputs are meaningless")
    if aids.replay is None:
        return
    config, layers = runner.model_config.hf_config, runner.model_config.num_hidden_layers
    requests = runner.req_to_token_pool.req_to_token
    if runtime.quest is not None:
        top_k, leaders = 0, list(range(layers))
    else:
        top_k = get_dsa_index_topk(config)
        leaders = [layer for layer in range(layers) if not dsa_layer_skips_topk(config, layer)]
    runtime.replay = SelectionReplay(
        aids.replay, top_k, len(leaders), requests.shape[0], requests.device, runtime.quest
    )
    _decode.begin(runtime.replay, leaders, requests)
    if rank == 0:
        logger.warning(
            f"BENCHMARK AID: selections are replayed ({REPLAY}), outputs are meaningless. "
            f"{aids.replay}, {runtime.replay.as_dict()}"
        )


class _Decode:
    """Selections of the decode step that is being run or captured."""

    def begin(self, replay: SelectionReplay, leaders: list[int], req_to_token: torch.Tensor) -> None:
        """Set up for a model whose `leaders` are the layers with an indexer of their own."""
        self.replay, self.req_to_token = replay, req_to_token
        self.group_of = {layer: group for group, layer in enumerate(leaders)}
        self.last_group = len(leaders)

    def selection(self, layer: int, batch: Any, positions: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """(int32 [R, k] for `layer`, bool [R] whether to use it). The layers of a forward come in order, so one that
        is not behind the last starts the next forward."""
        group = self.group_of[layer]
        if group <= self.last_group:
            chosen, self.replayed = self.replay.select(batch.req_pool_indices, batch.seq_lens)
            if not positions:
                chosen = slots_of(chosen, batch.req_pool_indices, self.req_to_token)
                if runtime.tier is not None and resident_graph():
                    chosen = runtime.tier.rows_of(chosen)
            self.chosen = chosen
        self.last_group = group
        return self.chosen[group], self.replayed


_decode = _Decode()


def replay_topk(
    result: torch.Tensor,
    indexer: Any,
    forward_batch: Any,
    layer_id: int,
    q_fp8: Any,
    weights: Any,
    metadata: Any,
) -> torch.Tensor:
    """After the indexer's paged top-k: int32 [rows, k], a decode batch's rows from the trace. CUDA-graph safe."""
    if runtime.replay is None or not forward_batch.forward_mode.is_decode():
        return result
    if layer_id not in _decode.group_of:
        return result
    chosen, replayed = _decode.selection(layer_id, forward_batch, metadata.force_unfused_topk)
    rows = result[: len(replayed)]  # below them, rows that only fill up the batch
    torch.where(replayed.unsqueeze(1), chosen, rows, out=rows)
    return result
