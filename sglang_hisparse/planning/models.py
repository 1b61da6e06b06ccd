"""What planning must know of a model, read from its config.json.

Row layouts and index keys are those of SGLang 0.5.23's pools; bytes are of one token unless the name says otherwise.

    MLA latent row     bf16 (rank + rope) x 2; fp8 rank + rank / 128 x 4 (scales) + rope x 2 (stays bf16)
                       calculate_mla_kv_cache_dim: 1,152 and 656 B for rank 512, rope 64
    K and V of a head  2 x head_dim x 2 (bf16) or x 1 (fp8)
    DSA index key      128 + 4 B a selecting layer, divided by `index_kpool` and rounded up
    QSA index key      indexer_head_dim x 2 / indexer_compress_ratio a selecting layer
    Quest bounds       minimum and maximum of the keys of 64 tokens: 1/64 of the KV bytes
    linear attention   the state of a request: heads x dim x dim x 4 B, and a short convolution, a layer
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_hisparse.planning.config_json import Config, Fields, attention_layers, skips_selection
from sglang_hisparse.planning.known_models import KNOWN
from sglang_hisparse.planning.weights import weight_bytes

KV_DTYPES = ("bf16", "fp8")
QUEST_TOP_K, QUEST_PAGE = 2048, 64
INDEX_HEAD_BYTES, SCALE_BYTES, SCALE_BLOCK = 132, 4, 128

QUEST_ON_CUDA = "Quest runs on the CPU only so far"
HYBRID = "models with linear-attention layers are not tiered so far"


@dataclass(frozen=True, slots=True)
class Model:
    """One model's facts.

    path                what --model-path takes
    family              dsa, qsa or quest: what selects
    heads, kv_heads     of attention; kv_heads 0: one latent row a layer, held by every tensor-parallel rank
    layers              layers that keep KV
    groups              index groups: how many of these layers share one selection, in order
    top_k               positions that one step of one request reads at most
    row_bytes           (bf16, fp8) KV of one token in one layer, of one KV head where there are KV heads
    index_bytes         index keys of one token, all layers; they stay in HBM, on every rank
    index_share         or: the part of the KV bytes that stays in HBM (Quest bounds)
    state_bytes         of one request, all ranks of an attention group together
    dense_bytes         weights that attention-parallel ranks share; expert_bytes: those of routed experts
    most_context        positions the model takes
    prefill_reads_host  prefill takes spilled rows from the host; otherwise a prompt has to fit HBM
    not_served          why this package does not serve it yet; empty where it does
    """

    name: str
    path: str
    family: str
    heads: int
    kv_heads: int
    layers: int
    groups: tuple[int, ...]
    top_k: int
    row_bytes: tuple[int, int]
    index_bytes: int
    index_share: float
    state_bytes: int
    dense_bytes: float
    expert_bytes: float
    most_context: int
    prefill_reads_host: bool
    not_served: str

    @property
    def default_dtype(self) -> str:
        """KV dtype where none is asked for: fp8 rows for DSA, whose quality is published with them."""
        return "fp8" if self.family == "dsa" and not self.state_bytes else "bf16"


def find_model(given: str) -> Model:
    """The model of a known name, a config.json or a folder that holds one. ValueError that names --model."""
    path = Path(given)
    file = path / "config.json" if path.is_dir() else path
    names = {name.lower(): name for name in KNOWN}
    if not file.is_file():
        if name := names.get(given.rpartition("/")[2].lower().removesuffix("-fp8")):
            return read_model(KNOWN[name].config, name, KNOWN[name].path)
        near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.4)
        hint = f" Did you mean {names[near[0]]}?" if near else ""
        raise ValueError(
            f"--model {given}: no known name, and no config.json at {file}.{hint} Known names: {', '.join(KNOWN)}"
        )
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--model {given}: {file} cannot be read as JSON ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"--model {given}: {file} holds no JSON object")
    name = path.name if path.is_dir() else path.parent.name or given
    return read_model(config, name, str(path if path.is_dir() else path.parent))


def read_model(config: Config, name: str, path: str) -> Model:
    """The facts in `config`. ValueError that names --model and the field for a model that cannot be planned."""
    text: Config = {**config, **(config.get("text_config") or {})}
    fields = Fields(text, name)
    for key, family in (("compress_ratios", "DeepSeek-V4"), ("sparse_attention_config", "MiniMax-M3")):
        if text.get(key):
            raise ValueError(f"--model {name}: {family} ({key}) is not planned; DSA, QSA and GQA models are")
    layers = attention_layers(text, fields("num_hidden_layers"))
    if not layers:
        raise ValueError(f"--model {name}: no layer that keeps KV (num_hidden_layers, layer_types)")
    if text.get("index_topk"):
        return _dsa(fields, layers, path)
    if text.get("indexer_budget"):
        return _qsa(fields, layers, path)
    if text.get("kv_lora_rank"):
        raise ValueError(
            f"--model {name}: latent attention without an indexer (index_topk): nothing selects rows"
        )
    return _quest(fields, layers, path)


def _dsa(fields: Fields, layers: list[int], path: str) -> Model:
    text, rank, rope = fields.config, fields("kv_lora_rank"), fields("qk_rope_head_dim")
    groups: list[int] = []
    for layer in layers:
        if groups and skips_selection(text, layer):
            groups[-1] += 1
        else:
            groups.append(1)
    pool = fields("index_kpool", default=1)
    state = state_bytes(fields, layers)
    return _model(
        fields,
        path,
        family="dsa",
        kv_heads=0,
        groups=tuple(groups),
        layers=len(layers),
        top_k=fields("index_topk"),
        row_bytes=((rank + rope) * 2, rank + rank // SCALE_BLOCK * SCALE_BYTES + rope * 2),
        index_bytes=-(-INDEX_HEAD_BYTES // pool) * len(groups),
        state_bytes=state,
        not_served=HYBRID if state else ("pooled index keys are not tiered so far" if pool > 1 else ""),
    )


def _qsa(fields: Fields, layers: list[int], path: str) -> Model:
    ratio = fields("indexer_compress_ratio")
    return _model(
        fields,
        path,
        family="qsa",
        kv_heads=fields("num_key_value_heads"),
        groups=(1,) * len(layers),
        layers=len(layers),
        top_k=fields("indexer_budget") + ratio - 1,  # the newest positions of the open block come on top
        row_bytes=(4 * fields("head_dim"), 2 * fields("head_dim")),
        index_bytes=fields("indexer_head_dim") * 2 // ratio * len(layers),
        state_bytes=state_bytes(fields, layers),
        not_served="QSA is not tiered so far",
    )


def _quest(fields: Fields, layers: list[int], path: str) -> Model:
    heads = fields("num_attention_heads")
    head_dim = fields("head_dim", default=fields("hidden_size") // heads)
    state = state_bytes(fields, layers)
    sliding = "sliding_attention" in (fields.config.get("layer_types") or ())
    return _model(
        fields,
        path,
        family="quest",
        kv_heads=fields("num_key_value_heads", default=heads),
        groups=(1,) * len(layers),
        layers=len(layers),
        top_k=QUEST_TOP_K,
        row_bytes=(4 * head_dim, 2 * head_dim),
        index_share=1 / QUEST_PAGE,
        state_bytes=state,
        prefill_reads_host=True,
        not_served="sliding-window layers are not tiered" if sliding else HYBRID if state else QUEST_ON_CUDA,
    )


def _model(
    fields: Fields,
    path: str,
    *,
    index_bytes: int = 0,
    index_share: float = 0.0,
    prefill_reads_host: bool = False,
    **facts: Any,
) -> Model:
    dense, expert = weight_bytes(fields)
    return Model(
        name=fields.name,
        path=path,
        heads=fields("num_attention_heads"),
        index_bytes=index_bytes,
        index_share=index_share,
        dense_bytes=dense,
        expert_bytes=expert,
        most_context=fields("max_position_embeddings", default=1 << 20),
        prefill_reads_host=prefill_reads_host,
        **facts,
    )


def state_bytes(fields: Fields, layers: list[int]) -> int:
    """Recurrent state of one request over all linear-attention layers: fp32 state, bf16 convolution window."""
    linear = fields("num_hidden_layers") - len(layers)
    if not linear:
        return 0
    kda = fields.config.get("linear_attn_config") or {}
    if kda or fields.config.get("linear_num_heads"):
        heads = kda.get("num_heads") or fields("linear_num_heads")
        dim = kda.get("head_dim") or fields("linear_head_dim")
        values, channels = heads * dim * dim, 3 * heads * dim
    else:
        keys, heads = fields("linear_num_key_heads"), fields("linear_num_value_heads")
        key_dim, dim = fields("linear_key_head_dim"), fields("linear_value_head_dim")
        values, channels = heads * dim * key_dim, 2 * keys * key_dim + heads * dim
    window = (kda.get("short_conv_kernel_size") or fields("linear_conv_kernel_dim", default=4)) - 1
    return int(linear * (values * 4 + channels * window * 2))
