"""Quest on SGLang's torch-native backend (CPU): select pages, resolve their rows, attend to them in torch.

Decode attends to at most top_k positions; prefill is dense and takes spilled rows straight from the host. A query
row's arithmetic does not depend on how its prompt is cut into chunks: queries are processed in blocks of `BLOCK`
positions that start at a multiple of it, filled up with zeros, so that every block has one shape.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch.nn.functional import pad, scaled_dot_product_attention

from sglang_hisparse.seams.runtime import runtime

BLOCK = 256


class QuestAttnBackend(TorchNativeAttnBackend):
    """Attention over the rows that Quest selects. Not graph-safe."""

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> torch.Tensor:
        self._write(k, v, layer, forward_batch, save_kv_cache)
        heads, dim = layer.tp_q_head_num, layer.qk_head_dim
        query = q.view(-1, heads, dim)
        out = query.new_empty((query.shape[0], heads, layer.v_head_dim))
        start = 0
        batch = zip(
            forward_batch.req_pool_indices.tolist(),
            forward_batch.seq_lens.tolist(),
            forward_batch.extend_seq_lens.tolist(),
            strict=True,
        )
        for row, length, count in batch:
            slots = self.req_to_token_pool.req_to_token[row, :length].long()
            keys, values = (_filled(x, length) for x in self._rows(layer, slots, query.dtype))
            prefix = length - count
            for low in range(prefix // BLOCK * BLOCK, length, BLOCK):
                first, last = max(low, prefix), min(low + BLOCK, length)
                rows, inside = (
                    slice(start + first - prefix, start + last - prefix),
                    slice(first - low, last - low),
                )
                block = query.new_zeros((BLOCK, heads, dim))
                block[inside] = query[rows]
                mask = torch.ones((BLOCK, low + BLOCK), dtype=torch.bool).tril(low)
                out[rows] = _attend(block, keys[: low + BLOCK], values[: low + BLOCK], layer.scaling, mask)[
                    inside
                ]
            start += count
        return out.view(-1, heads * layer.v_head_dim)

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> torch.Tensor:
        tier, bounds, quest = runtime.tier, runtime.bounds, runtime.quest
        assert tier is not None and bounds is not None and quest is not None
        self._write(k, v, layer, forward_batch, save_kv_cache)
        heads, dim = layer.tp_q_head_num, layer.qk_head_dim
        query = q.reshape(-1, heads, dim)
        requests = forward_batch.req_pool_indices
        selection = torch.full((query.shape[0], quest.top_k), -1, dtype=torch.int32)
        counts = []
        for i, (row, length) in enumerate(
            zip(requests.tolist(), forward_batch.seq_lens.tolist(), strict=True)
        ):
            slots = self.req_to_token_pool.req_to_token[row, :length].long()
            positions = bounds.select(layer.layer_id, query[i], slots, quest)
            if runtime.replay is not None:
                positions = runtime.replay.quest_positions(layer.layer_id, row, length, positions)
            chosen = slots[positions]
            selection[i, : chosen.numel()] = chosen
            counts.append(chosen.numel())
        resolved = tier.resolve(layer.layer_id, selection, requests)
        tier.wait_for_rows(layer.layer_id)
        rows = resolved.long()
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        out = query.new_empty((query.shape[0], heads, layer.v_head_dim))
        for i, count in enumerate(counts):
            mine = rows[i, :count]
            out[i : i + 1] = _attend(query[i : i + 1], keys[mine], values[mine], layer.scaling, None)
        return out.view(-1, heads * layer.v_head_dim)

    def _write(self, k: Any, v: Any, layer: Any, forward_batch: Any, save: bool) -> None:
        if save and k is not None:
            self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc), k, v)

    def _rows(self, layer: Any, slots: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
        """K and V of one request at `slots`, wherever they are: [n, kv_heads, head_dim] each."""
        assert runtime.tier is not None
        buffers = (
            self.token_to_kv_pool.get_key_buffer(layer.layer_id),
            self.token_to_kv_pool.get_value_buffer(layer.layer_id),
        )
        staged = runtime.tier.read_rows(layer.layer_id, slots)
        return [
            rows.view(buffer.dtype).view(-1, *buffer.shape[1:]).to(dtype)
            for rows, buffer in zip(staged, buffers, strict=True)
        ]


def _filled(rows: torch.Tensor, length: int) -> torch.Tensor:
    """[length, ...] with rows of zeros up to a multiple of `BLOCK`."""
    return pad(rows, (0, 0, 0, 0, 0, -length % BLOCK))


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float, mask: torch.Tensor | None
) -> torch.Tensor:
    """query [n, heads, d], keys and values [m, kv_heads, d] -> [n, heads, d_v]."""
    out = scaled_dot_product_attention(
        query.movedim(0, 1)[None],
        keys.to(query.dtype).movedim(0, 1)[None],
        values.to(query.dtype).movedim(0, 1)[None],
        attn_mask=mask,
        scale=scaling,
        enable_gqa=query.shape[1] != keys.shape[1],
    )
    return out[0].movedim(0, 1)


def register_quest(backends: dict[str, Any]) -> None:
    """Offer Quest behind stock's name: `torch_native` builds it where the tier runs Quest."""
    stock = backends["torch_native"]

    def torch_native_or_quest(runner: Any) -> Any:
        return QuestAttnBackend(runner) if runtime.quest is not None else stock(runner)

    backends["torch_native"] = torch_native_or_quest
