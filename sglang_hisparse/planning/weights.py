"""Bytes of a model's weights, counted from its shapes. An estimate: `--weights-gib` replaces it.

Counted: projections of attention, of its indexer and of linear attention, dense and shared MLPs, routers, routed
experts, embeddings, the n-gram table. Left out: norms, biases, a vision tower, the draft layer (not loaded without
speculative decoding). FP8 weights take 1 B and a float32 scale for each 128 x 128 block; embeddings and routers
stay bf16.
"""

from __future__ import annotations

from sglang_hisparse.planning.config_json import Fields, attention_layers, skips_selection

FP8_BYTES = 1 + 4 / (128 * 128)
DTYPE_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}


def weight_bytes(fields: Fields) -> tuple[float, float]:
    """(dense bytes, bytes of routed experts), without the draft layer."""
    config = fields.config
    plain = DTYPE_BYTES.get(str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"), 2.0)
    quantized = str((config.get("quantization_config") or {}).get("quant_method", "")) == "fp8"
    width = FP8_BYTES if quantized else plain
    hidden, layers = fields("hidden_size"), fields("num_hidden_layers")
    experts = fields("n_routed_experts", "num_experts", "num_local_experts", default=0)
    sparse = max(0, layers - fields("first_k_dense_replace", default=0)) if experts else 0
    dense = fields("intermediate_size", default=0) * 3 * hidden * (layers - sparse)
    expert = 3 * hidden * fields("moe_intermediate_size", default=0)
    with_kv = attention_layers(config, layers)
    for layer in with_kv:
        dense += _attention(fields, hidden)
        if config.get("index_topk") and not skips_selection(config, layer):
            dense += _dsa_indexer(fields, hidden)
    dense += (layers - len(with_kv)) * _linear_attention(fields, hidden)
    shared = fields("n_shared_experts", default=0) * expert
    dense += sparse * (shared or 3 * hidden * fields("shared_expert_intermediate_size", default=0))
    routers = sparse * hidden * experts
    embeddings = fields("vocab_size", default=0) * hidden * (1 if config.get("tie_word_embeddings") else 2)
    tables = fields("ngram_vocab_size_base", default=0) * fields("ple_embed_dim", default=0)
    return (dense + tables) * width + (embeddings + routers) * max(
        2.0, plain
    ), sparse * experts * expert * width


def _attention(fields: Fields, hidden: int) -> int:
    heads = fields("num_attention_heads")
    if not (rank := fields("kv_lora_rank", default=0)):
        dim = fields("head_dim", default=hidden // heads)
        return hidden * dim * 2 * (heads + fields("num_key_value_heads", default=heads))
    nope, rope, value = fields("qk_nope_head_dim"), fields("qk_rope_head_dim"), fields("v_head_dim")
    if query_rank := fields("q_lora_rank", default=0):
        query = hidden * query_rank + query_rank * heads * (nope + rope)
    else:
        query = hidden * heads * (nope + rope)
    return query + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden


def _dsa_indexer(fields: Fields, hidden: int) -> int:
    heads, dim = fields("index_n_heads"), fields("index_head_dim")
    return fields("q_lora_rank", default=hidden) * heads * dim + hidden * (dim + heads)


def _linear_attention(fields: Fields, hidden: int) -> int:
    """Gated delta net: q, k, v, gate and output. KDA: the same with equal heads."""
    kda = fields.config.get("linear_attn_config") or {}
    if kda or fields.config.get("linear_num_heads"):
        heads = kda.get("num_heads") or fields("linear_num_heads")
        return 5 * hidden * int(heads) * int(kda.get("head_dim") or fields("linear_head_dim"))
    if not fields("linear_num_value_heads", default=0):
        return 0
    keys = fields("linear_num_key_heads") * fields("linear_key_head_dim")
    return hidden * (2 * keys + 3 * fields("linear_num_value_heads") * fields("linear_value_head_dim"))
