"""Planning against the SGLang that serves: bytes a token as its pools count them, layers that select, launch flags."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang.srt.server_args", reason="SGLang is not installed")

from sglang_hisparse.planning.config_json import skips_selection
from sglang_hisparse.planning.footprint import kv_heads, token_bytes
from sglang_hisparse.planning.inputs import Inputs
from sglang_hisparse.planning.known_models import KNOWN
from sglang_hisparse.planning.launch import launch_flags
from sglang_hisparse.planning.models import find_model, read_model
from sglang_hisparse.planning.plan import make_plan
from tests.unit.plan_cases import inputs

DSA = [name for name in KNOWN if find_model(name).family == "dsa" and not find_model(name).state_bytes]
GQA = [name for name in KNOWN if find_model(name).family == "quest"]


def stock_bytes(monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, attention_tp: int) -> tuple[int, int]:
    """(bytes of a token with index keys, of these index keys) as SGLang's own pool configuration counts them."""
    import torch
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.cp import utils as cp
    from sglang.srt.mem_cache import kv_cache_configurator
    from sglang.srt.model_executor import pool_configurator
    from sglang.srt.model_executor.pool_configurator import DefaultPoolConfigurator

    config = dict(KNOWN[name].config)
    model = find_model(name)
    dsa = model.family == "dsa"
    hf = SimpleNamespace(architectures=["GlmMoeDsaForCausalLM" if dsa else "LlamaForCausalLM"], **config)
    head_dim = config.get("head_dim", 0)
    heads = SimpleNamespace(get_total_num_kv_heads=lambda: model.kv_heads, is_draft_model=False)
    model_config = SimpleNamespace(
        hf_config=hf,
        hf_text_config=hf,
        kv_lora_rank=config.get("kv_lora_rank"),
        qk_rope_head_dim=config.get("qk_rope_head_dim"),
        head_dim=head_dim,
        v_head_dim=head_dim,
        get_num_kv_heads=lambda tp, dcp=1: ModelConfig.get_num_kv_heads(heads, tp, dcp),
    )
    kvc: Any = SimpleNamespace(
        model_config=model_config,
        kv_cache_dtype=torch.float8_e4m3fn if dtype == "fp8" else torch.bfloat16,
        kv_cache_dtype_str="auto",
        use_mla_backend=dsa,
        is_draft_worker=False,
        mambaish_config=None,
        layer_info=SimpleNamespace(start_layer=0, end_layer=model.layers),
        server_args=SimpleNamespace(enable_hisparse=False),
    )
    memory = SimpleNamespace(
        enable_hisparse=False, enable_hierarchical_cache=False, enable_unified_cache_external_linker=False
    )
    parallel = SimpleNamespace(attn_tp_size=attention_tp, attn_dcp_size=1)
    kernel = SimpleNamespace(dsa_decode_backend="flashmla_kv", dsa_prefill_backend="flashmla_sparse")
    for module in (pool_configurator, kv_cache_configurator):
        monkeypatch.setattr(module, "get_memory", lambda: memory)
        monkeypatch.setattr(module, "get_parallel", lambda: parallel)
        monkeypatch.setattr(module, "get_exec", lambda: SimpleNamespace(kernel=kernel))
        monkeypatch.setattr(module, "get_disagg", lambda: SimpleNamespace(disaggregation_mode="null"))
    monkeypatch.setattr(cp, "is_glm_dsa_cache_layer_split_enabled", lambda runner: False)
    sizes = object.__new__(DefaultPoolConfigurator)
    sizes.kv_cache_dtype_str = kvc.kv_cache_dtype_str
    index = sizes._compute_dsa_indexer_cell_size(kvc=kvc, num_layers=model.layers) if dsa else 0
    return sizes._compute_cell_size(kvc, model.layers), index


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("name", DSA)
def test_dsa_bytes_are_those_of_the_pools(monkeypatch: pytest.MonkeyPatch, name: str, dtype: str) -> None:
    """And so what seams/sizing.py feeds: cell - index for both tiers, and index."""
    cell, index = stock_bytes(monkeypatch, name, dtype, 8)
    token = token_bytes(find_model(name), 8, dtype)
    assert (token.kv, token.host, token.index) == (cell - index, cell - index, index)


@pytest.mark.parametrize("attention_tp", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("name", GQA)
def test_gqa_bytes_are_those_of_the_pools(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, attention_tp: int
) -> None:
    """seams/sizing.py: bounds take 2 x cell x share of the keys / page size, and K and V are equally wide."""
    cell, _ = stock_bytes(monkeypatch, name, dtype, attention_tp)
    model = find_model(name)
    token = token_bytes(model, attention_tp, dtype)
    assert (token.kv, token.host, token.index) == (cell, cell, 2 * cell * 0.5 / 64)
    assert kv_heads(model, attention_tp) == max(1, model.kv_heads // attention_tp)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"index_topk_freq": 4},
        {"index_topk_freq": 4, "index_skip_topk_offset": 3},
        {"index_topk_freq": 3, "index_skip_topk_offset": 1},
        {"index_topk_pattern": "FSSFSSFS", "index_topk_freq": 2},
        {"indexer_types": ["full", "shared", "full", "shared", "shared"], "index_topk_pattern": "FS"},
        {"cli_factor": 3, "index_topk_freq": 2},
        {"index_topk_freq": None, "index_skip_topk_offset": None, "cli_factor": None},
    ],
)
def test_layers_that_select_are_stock_s(fields: dict[str, Any]) -> None:
    from sglang.srt.configs.model_config import dsa_layer_skips_topk

    hf: Any = SimpleNamespace(architectures=["GlmMoeDsaForCausalLM"], index_topk=2048, **fields)
    ours = [skips_selection(fields, layer) for layer in range(24)]
    assert ours == [dsa_layer_skips_topk(hf, layer) for layer in range(24)]


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("dp_attention", [False, True])
def test_launch_flags_are_stock_s(name: str, dp_attention: bool) -> None:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    case: Inputs = inputs(name, dp=4, dp_attention=dp_attention)
    args = parser.parse_args(launch_flags(make_plan(case)))
    assert (args.tp_size, args.dp_size, args.attn_dp_size) == ((8, 1, 4) if dp_attention else (8, 4, 1))
    assert not args.enable_dp_attention, "an older spelling"
    assert (args.context_length, args.mem_fraction_static) == (case.context, case.fraction)
    assert args.max_running_requests == case.max_running * (4 if dp_attention else 1)
    assert args.kv_cache_dtype == {"fp8": "fp8_e4m3", "bf16": "bfloat16"}[case.kv_dtype]


def test_state_is_what_stock_keeps_for_a_request() -> None:
    """KDA layers of GLM-5.3-Flash, by SGLang's own count."""
    from sglang.srt.configs.glm5_next import Glm5NextTextConfig
    from sglang.srt.runtime_context import get_parallel  # noqa: F401

    config = Glm5NextTextConfig(num_hidden_layers=45, index_topk=2048)
    kda = config.linear_attn_config
    assert len(kda["kda_layers"]) == 34 and len(kda["full_attn_layers"]) == 11
    text = {**KNOWN["GLM-5.3-Flash"].config, "linear_attn_config": kda}
    assert read_model(text, "x", "x").state_bytes == find_model("GLM-5.3-Flash").state_bytes
