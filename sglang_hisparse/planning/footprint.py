"""Bytes of one token, and of the weights, on one GPU of a model that is spread over several.

Tensor parallelism gives every rank its share of the KV heads, at least one (with fewer heads than ranks each head is
held several times: SGLang's get_num_kv_heads). A latent row has no heads: every rank holds all of it. With DP
attention the ranks of one attention group are tp / dp, and each group serves its own requests.
"""

from __future__ import annotations

from sglang_hisparse.capacity import TokenBytes
from sglang_hisparse.planning.gpus import Gpu
from sglang_hisparse.planning.models import KV_DTYPES, Model

ALIGNMENT = 16
"""Host rows are copied 16 bytes at a time."""


def kv_heads(model: Model, attention_tp: int) -> int:
    """KV heads of one rank; 1 for a latent row."""
    return max(1, model.kv_heads // attention_tp)


def planes(model: Model) -> int:
    """Buffers of a layer: K and V are separate, a latent row is one."""
    return 2 if model.kv_heads else 1


def token_bytes(model: Model, attention_tp: int, kv_dtype: str) -> TokenBytes:
    """What the server measures (seams/sizing.py), from the model's shapes: all layers, one rank."""
    row = model.row_bytes[KV_DTYPES.index(kv_dtype)] * kv_heads(model, attention_tp)
    padded = -(-row // planes(model) // ALIGNMENT) * ALIGNMENT * planes(model)
    kv = model.layers * row
    index = model.index_bytes + kv * model.index_share
    return TokenBytes(kv, model.layers * padded, int(index) if index == int(index) else index)


def weights_of_gpu(model: Model, tp: int, attention_tp: int) -> float:
    """Bytes of weights on one GPU: dense ones are split over the attention ranks, routed experts over all ranks."""
    return model.dense_bytes / attention_tp + model.expert_bytes / tp


def fetch_ns(model: Model, token: TokenBytes, gpu: Gpu) -> float:
    """Time of the link to fetch one missed token in all layers: a host row of every plane."""
    rows = sum(model.groups) * planes(model)
    return rows * gpu.row_time_ns(token.host / model.layers / planes(model))
