"""Models with the real attention dimensions of a published one, few layers and few experts, and no weights.

    python -m bench_serving.large_shapes NAME [--layers N] [--out DIR]

Only `config.json` and a tokenizer are written: SGLang fills the weights in by itself (`--load-format dummy`). What a
step reads and moves is then that of the real model per layer: query heads, latent and rope width, indexer, hidden
size, and which layers select. What the model says means nothing, and its selections have no locality: replace them by
a trace (`SGLANG_HISPARSE_BENCH_REPLAY`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import tiny_models, word_tokenizer
from .cache import written_once

GIB = 1 << 30

# zai-org/GLM-5.2: 78 layers, 256 experts of which 8 a token. Everything else is as published.
_GLM52: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "vocab_size": 154880,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "head_dim": 64,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_topk": 2048,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
    "indexer_rope_interleave": True,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 0,
    "max_position_embeddings": 202752,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "rope_theta": 1e6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
}

SHAPES: dict[str, dict[str, Any]] = {
    "glm52-shaped": _GLM52,
    # Without any expert, for a host that lacks kernels for a mixture of them.
    "glm52-shaped-dense": _GLM52 | {"first_k_dense_replace": 78},
}

KV_ROW = {"bf16": 1152, "fp8": 656}
"""Bytes of one token in one layer's KV pool: 576 bfloat16, or 512 fp8 + 4 float32 scales + 64 bfloat16."""

INDEX_ROW = 132
"""Bytes of one token's index key in a layer that selects: 128 fp8 and one float32 scale."""


@dataclass(frozen=True)
class Footprint:
    """What a model of this shape needs. `kv` and `index` are bytes a token over all layers."""

    weights_gib: float
    kv: dict[str, int]
    index: int
    selecting: tuple[int, ...]

    def line(self) -> str:
        """For people."""
        return (
            f"weights {self.weights_gib:.1f} GiB (bf16); a token has {self.kv['bf16']:,} B of KV in bf16 or "
            f"{self.kv['fp8']:,} B in fp8, and {self.index:,} B of index keys; layers that select: "
            f"{', '.join(map(str, self.selecting))}"
        )


def shape(name: str, layers: int | None = None) -> dict[str, Any]:
    """The `config.json` called `name`, with its number of layers replaced where `layers` is given."""
    if name not in SHAPES:
        raise SystemExit(f"no shape {name!r}; there are {', '.join(SHAPES)}")
    return SHAPES[name] | ({} if layers is None else {"num_hidden_layers": layers})


def footprint(config: dict[str, Any]) -> Footprint:
    """Sizes by the tensors that SGLang creates; biases and norms are left out (below 0.1 %)."""
    hidden, heads, layers = config["hidden_size"], config["num_attention_heads"], config["num_hidden_layers"]
    query, latent, rope = config["q_lora_rank"], config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
    attention = hidden * query + query * heads * (nope + rope) + hidden * (latent + rope)
    attention += latent * heads * (nope + value) + heads * value * hidden
    indexer = query * config["index_n_heads"] * config["index_head_dim"]
    indexer += hidden * (config["index_head_dim"] + config["index_n_heads"])
    experts = config["n_routed_experts"] + config["n_shared_experts"]
    dense = min(config["first_k_dense_replace"], layers)
    expert = 3 * hidden * config["moe_intermediate_size"]
    mlp = dense * 3 * hidden * config["intermediate_size"] + (layers - dense) * experts * expert
    selecting = tuple(layer for layer in range(layers) if tiny_models.selects(config, layer))
    parameters = layers * attention + len(selecting) * indexer + mlp + 2 * config["vocab_size"] * hidden
    kv = {dtype: row * layers for dtype, row in KV_ROW.items()}
    return Footprint(2 * parameters / GIB, kv, INDEX_ROW * len(selecting), selecting)


def ensure(name: str, layers: int | None = None, out: Path | None = None) -> Path:
    """The folder of `name` (`out`, or a cached one), written now if it is not there."""
    config = shape(name, layers)
    digest = hashlib.sha256(json.dumps([2, config], sort_keys=True).encode()).hexdigest()[:10]
    target = out or tiny_models.cache_folder() / f"{name}-{digest}"

    def write(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        word_tokenizer.write(folder, config["vocab_size"])

    return written_once(target, "config.json", write)


def main(argv: list[str] | None = None) -> None:
    """Write one shape; print its folder and its sizes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=sorted(SHAPES))
    parser.add_argument("--layers", type=int, help="number of layers (default: the shape's)")
    parser.add_argument("--out", type=Path, help="folder to write (default: a cached one)")
    options = parser.parse_args(argv)
    print(ensure(options.name, options.layers, options.out))
    print(footprint(shape(options.name, options.layers)).line())


if __name__ == "__main__":
    main()
