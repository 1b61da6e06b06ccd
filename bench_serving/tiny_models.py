"""Small checkpoints with seeded weights, written on first use.

    python -m bench_serving.tiny_models NAME [--out DIR]

Real checkpoints of these families are hundreds of GB. These keep the row layouts and the shapes that the
kernels insist on, and shrink everything else. Weights are random but scaled so that attention is sharp: the
greedy output depends on rows thousands of tokens back, hence a wrong row in the tier changes the output.

They say nothing about the locality of a trained model's selections: use synthetic traces for performance.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import tiny_tokenizer
from .cache import written_once

RECIPE_VERSION = 1
"""Raise it when the same recipe comes to write other numbers, so that cached checkpoints are made anew."""

VOCAB = 2048

Tensor = tuple[str, tuple[int, ...], float]
"""Name, shape, and the standard deviation; a shape of one dimension is a norm and holds the number itself."""


@dataclass(frozen=True)
class Recipe:
    """What one checkpoint consists of: `config.json`, the tensors in order, and their element type."""

    config: dict[str, Any]
    tensors: Callable[[dict[str, Any]], Iterator[Tensor]]
    dtype: str

    def fingerprint(self) -> str:
        """Ten hex digits that change with anything written."""
        plan = [RECIPE_VERSION, self.config, self.dtype, list(self.tensors(self.config))]
        return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:10]


def _projection(name: str, rows: int, columns: int, gain: float = 1.0) -> Tensor:
    """A matrix that turns inputs of unit variance into outputs of standard deviation `gain`."""
    return f"{name}.weight", (rows, columns), gain * columns**-0.5


def _mlp(prefix: str, hidden: int, width: int) -> Iterator[Tensor]:
    yield _projection(f"{prefix}.gate_proj", width, hidden)
    yield _projection(f"{prefix}.up_proj", width, hidden)
    yield _projection(f"{prefix}.down_proj", hidden, width)


def _ends(config: dict[str, Any]) -> Iterator[Tensor]:
    hidden = config["hidden_size"]
    yield "model.embed_tokens.weight", (VOCAB, hidden), 1.0
    yield "model.norm.weight", (hidden,), 1.0
    yield _projection("lm_head", VOCAB, hidden, gain=4.0)


def _layer_norms(prefix: str, hidden: int) -> Iterator[Tensor]:
    yield f"{prefix}.input_layernorm.weight", (hidden,), 1.0
    yield f"{prefix}.post_attention_layernorm.weight", (hidden,), 1.0


def _gqa_tensors(config: dict[str, Any]) -> Iterator[Tensor]:
    """Llama's tensors, and Qwen3's two head norms where the model has them. Attention logits deviate by 4."""
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    normed = config["model_type"] == "qwen3"
    yield from _ends(config)
    for layer in range(config["num_hidden_layers"]):
        attention = f"model.layers.{layer}.self_attn"
        yield from _layer_norms(f"model.layers.{layer}", hidden)
        yield _projection(f"{attention}.q_proj", queries, hidden, gain=1.0 if normed else 2.0)
        yield _projection(f"{attention}.k_proj", keys, hidden, gain=1.0 if normed else 2.0)
        if normed:
            yield f"{attention}.q_norm.weight", (head,), 2.0
            yield f"{attention}.k_norm.weight", (head,), 2.0
        yield _projection(f"{attention}.v_proj", keys, hidden)
        yield _projection(f"{attention}.o_proj", hidden, queries, gain=2.0)
        yield from _mlp(f"model.layers.{layer}.mlp", hidden, config["intermediate_size"])


def selects(config: dict[str, Any], layer: int) -> bool:
    """Whether a DSA layer has an indexer of its own, by `index_topk_freq` and `index_skip_topk_offset`."""
    return max(layer - config.get("index_skip_topk_offset", 1) + 1, 0) % config.get("index_topk_freq", 1) == 0


def _mla_attention(config: dict[str, Any], prefix: str, indexer: bool) -> Iterator[Tensor]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    query_rank, rank, rope = config["q_lora_rank"], config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
    yield _projection(f"{prefix}.q_a_proj", query_rank, hidden)
    yield f"{prefix}.q_a_layernorm.weight", (query_rank,), 1.0
    yield _projection(f"{prefix}.q_b_proj", heads * (nope + rope), query_rank, gain=4.0)
    yield _projection(f"{prefix}.kv_a_proj_with_mqa", rank + rope, hidden)
    yield f"{prefix}.kv_a_layernorm.weight", (rank,), 1.0
    yield _projection(f"{prefix}.kv_b_proj", heads * (nope + value), rank)
    yield _projection(f"{prefix}.o_proj", hidden, heads * value, gain=2.0)
    if indexer:
        index_heads, index_head = config["index_n_heads"], config["index_head_dim"]
        yield _projection(f"{prefix}.indexer.wq_b", index_heads * index_head, query_rank)
        yield _projection(f"{prefix}.indexer.wk", index_head, hidden)
        yield f"{prefix}.indexer.k_norm.weight", (index_head,), 1.0
        yield f"{prefix}.indexer.k_norm.bias", (index_head,), 0.0
        yield _projection(f"{prefix}.indexer.weights_proj", index_heads, hidden)


def _draft_tensors(config: dict[str, Any], prefix: str) -> Iterator[Tensor]:
    """The multi-token prediction layer: always a mixture of experts in SGLang, always with an indexer."""
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        yield f"{prefix}.{norm}.weight", (hidden,), 1.0
    yield _projection(f"{prefix}.eh_proj", hidden, 2 * hidden)
    yield from _layer_norms(prefix, hidden)
    yield from _mla_attention(config, f"{prefix}.self_attn", indexer=True)
    yield _projection(f"{prefix}.mlp.gate", config["n_routed_experts"], hidden)
    yield f"{prefix}.mlp.gate.e_score_correction_bias", (config["n_routed_experts"],), 0.0
    yield from _mlp(f"{prefix}.mlp.shared_experts", hidden, width * config["n_shared_experts"])
    for expert in range(config["n_routed_experts"]):
        yield from _mlp(f"{prefix}.mlp.experts.{expert}", hidden, width)


def _dsa_tensors(config: dict[str, Any]) -> Iterator[Tensor]:
    yield from _ends(config)
    layers = config["num_hidden_layers"]
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        yield from _layer_norms(prefix, config["hidden_size"])
        yield from _mla_attention(config, f"{prefix}.self_attn", indexer=selects(config, layer))
        yield from _mlp(f"{prefix}.mlp", config["hidden_size"], config["intermediate_size"])
    if config["num_nextn_predict_layers"]:
        yield from _draft_tensors(config, f"model.layers.{layers}")


_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "pad_token_id": tiny_tokenizer.PAD,
    "bos_token_id": tiny_tokenizer.BOS,
    "eos_token_id": tiny_tokenizer.EOS,
    "rope_theta": 1e6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}

_GQA = _COMMON | {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 512,
    "max_position_embeddings": 32768,
}

# FlashMLA wants 64 query heads and rows of 512 + 64; the indexer 128 wide keys and 2,048 selected tokens.
_DSA = _COMMON | {
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 256,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_topk": 2048,
    "index_head_dim": 128,
    "intermediate_size": 512,
    "max_position_embeddings": 131072,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}

RECIPES: dict[str, Recipe] = {
    "qwen3-tiny": Recipe(
        _GQA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}, _gqa_tensors, "float32"
    ),
    "llama-tiny": Recipe(
        _GQA | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False},
        _gqa_tensors,
        "float32",
    ),
    "glm52-tiny": Recipe(
        _DSA
        | {
            "architectures": ["GlmMoeDsaForCausalLM"],
            "model_type": "glm_moe_dsa",
            "num_hidden_layers": 8,
            "first_k_dense_replace": 8,
            "num_nextn_predict_layers": 1,
            "index_n_heads": 32,
            "index_topk_freq": 4,
            "index_skip_topk_offset": 3,
            "indexer_rope_interleave": True,
        },
        _dsa_tensors,
        "bfloat16",
    ),
    "dsv32-tiny": Recipe(
        _DSA
        | {
            "architectures": ["DeepseekV32ForCausalLM"],
            "model_type": "deepseek_v32",
            "num_hidden_layers": 4,
            "first_k_dense_replace": 4,
            "num_nextn_predict_layers": 0,
            "index_n_heads": 64,
        },
        _dsa_tensors,
        "bfloat16",
    ),
}


def cache_folder() -> Path:
    """Where checkpoints are kept: `$XDG_CACHE_HOME/sglang_hisparse/models`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sglang_hisparse" / "models"


def recipe(name: str) -> Recipe:
    """The recipe called `name`; SystemExit that names the ones there are."""
    if name not in RECIPES:
        raise SystemExit(f"no tiny model {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]


def write(name: str, folder: Path) -> None:
    """Write the checkpoint `name` into the empty `folder`. Needs torch, safetensors and tokenizers."""
    import torch
    from safetensors.torch import save_file

    plan = recipe(name)
    dtype = getattr(torch, plan.dtype)
    weights = {}
    for tensor, shape, scale in plan.tensors(plan.config):
        if len(shape) == 1:
            router = "correction" in tensor  # stays float32, as the stock loader declares it
            weights[tensor] = torch.full(shape, scale, dtype=torch.float32 if router else dtype)
            continue
        # A seed for each tensor: adding a tensor leaves the others as they were. Uniform numbers, because the
        # normal ones torch draws depend on the vector instructions of the machine.
        seed = int.from_bytes(hashlib.sha256(tensor.encode()).digest()[:6], "big")
        edge = scale * 3**0.5
        drawn = torch.empty(shape).uniform_(-edge, edge, generator=torch.Generator().manual_seed(seed))
        weights[tensor] = drawn.to(dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = plan.config | {"torch_dtype": plan.dtype, "dtype": plan.dtype}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    generation = {"bos_token_id": tiny_tokenizer.BOS, "eos_token_id": tiny_tokenizer.EOS, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    tiny_tokenizer.write(folder, VOCAB)


def ensure(name: str, out: Path | None = None) -> Path:
    """The folder of checkpoint `name`, written now if it is not there; two processes may do so at once.

    `out` names the folder itself; left out, it is one in `cache_folder()` whose name changes with the recipe.
    """
    target = out or cache_folder() / f"{name}-{recipe(name).fingerprint()}"
    return written_once(target, "config.json", lambda folder: write(name, folder))


def main(argv: list[str] | None = None) -> None:
    """Write one checkpoint and print its folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path, help="folder to write (default: a cached one)")
    options = parser.parse_args(argv)
    print(ensure(options.name, options.out))


if __name__ == "__main__":
    main()
