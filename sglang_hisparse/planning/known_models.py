"""Published shapes: the fields of each checkpoint's config.json that planning reads, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FP8 = {"quant_method": "fp8"}


@dataclass(frozen=True, slots=True)
class Known:
    """`path`: repository of the checkpoint with these shapes. `source`: where the numbers were published."""

    path: str
    source: str
    config: Mapping[str, Any]


def _glm(**changes: Any) -> dict[str, Any]:
    """GLM-5, 5.1, 5.2 and 5.3 differ in the sharing of selections and in the positions they take."""
    return {
        "num_hidden_layers": 78,
        "hidden_size": 6144,
        "intermediate_size": 12288,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "num_attention_heads": 64,
        "q_lora_rank": 2048,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "index_topk": 2048,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "vocab_size": 154880,
        "max_position_embeddings": 1048576,
        "quantization_config": FP8,
    } | changes


SHARED = {"index_topk_freq": 4, "index_skip_topk_offset": 3}
"""Layers 0, 1, 2, 6, 10, ... 74 select, 21 of 78; the others reuse the selection before."""

KNOWN: dict[str, Known] = {
    "DeepSeek-V3.2": Known(
        "deepseek-ai/DeepSeek-V3.2",
        "config.json of the checkpoint; 61 layers, each with an indexer",
        {
            "num_hidden_layers": 61,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "first_k_dense_replace": 3,
            "num_attention_heads": 128,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "index_topk": 2048,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "vocab_size": 129280,
            "max_position_embeddings": 163840,
            "quantization_config": FP8,
        },
    ),
    "GLM-5.1": Known(
        "zai-org/GLM-5.1-FP8",
        "config.json of the checkpoint; vLLM #46189 (64 heads, 512 + 64); every layer selects",
        _glm(max_position_embeddings=202752),
    ),
    "GLM-5.2": Known("zai-org/GLM-5.2-FP8", "config.json of the checkpoint; SGLang #38007", _glm(**SHARED)),
    "GLM-5.3": Known(
        "zai-org/GLM-5.3",
        "as GLM-5.2 (SGLang #38007); the weights are FP8, 755,632,050,320 B with the draft layer",
        _glm(**SHARED),
    ),
    "GLM-5.3-Flash": Known(
        "zai-org/GLM-5.3-Flash",
        "SGLang 0.5.23 configs/glm5_next.py; llama.cpp #27752: 34 KDA and 11 DSA layers, no rope, pooled keys",
        {
            "num_hidden_layers": 45,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 288,
            "n_shared_experts": 1,
            "first_k_dense_replace": 3,
            "num_attention_heads": 64,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 256,
            "qk_rope_head_dim": 0,
            "v_head_dim": 256,
            "index_topk": 2048,
            "index_kpool": 4,
            "index_n_heads": 32,
            "index_head_dim": 128,
            "full_attention_interval": 4,
            "linear_num_heads": 64,
            "linear_head_dim": 128,
            "vocab_size": 154880,
            "max_position_embeddings": 1013760,
        },
    ),
    "Qwen3.8-Flash-Next": Known(
        "Qwen/Qwen3.8-Flash-Next",
        "config.json of the checkpoint; SGLang #36496: 176 G parameters, of which 51 G are the n-gram table",
        {
            "num_hidden_layers": 48,
            "hidden_size": 2560,
            "moe_intermediate_size": 640,
            "num_experts": 512,
            "shared_expert_intermediate_size": 640,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "indexer_n_heads": 4,
            "indexer_head_dim": 128,
            "indexer_budget": 2048,
            "indexer_compress_ratio": 4,
            "full_attention_interval": 4,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 48,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "ngram_vocab_size_base": 20_000_000,
            "ple_embed_dim": 2560,
            "vocab_size": 248320,
            "max_position_embeddings": 262144,
        },
    ),
    "Qwen3-30B-A3B": Known(
        "Qwen/Qwen3-30B-A3B-Thinking-2507",
        "config.json of the checkpoint; the HiSparse paper's Quest model (arXiv:2608.07009)",
        {
            "num_hidden_layers": 48,
            "hidden_size": 2048,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 151936,
            "max_position_embeddings": 262144,
        },
    ),
    "Llama-3-8B": Known(
        "meta-llama/Llama-3.1-8B-Instruct",
        "config.json of the checkpoint (3.1: the same shapes as 3.0 with 131,072 positions)",
        {
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
        },
    ),
}
