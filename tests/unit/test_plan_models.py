"""Shapes: bytes a token of every known model, config.json files, and models that cannot be planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench_serving.tiny_models import RECIPES
from sglang_hisparse.planning.config_json import skips_selection
from sglang_hisparse.planning.footprint import fetch_ns, kv_heads, token_bytes, weights_of_gpu
from sglang_hisparse.planning.gpus import GPUS, find_gpu
from sglang_hisparse.planning.known_models import KNOWN
from sglang_hisparse.planning.models import Model, find_model, read_model

GIB = 1 << 30
DENSE = {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8}


@pytest.mark.parametrize(
    ("name", "dtype", "kv", "index", "groups"),
    [
        ("DeepSeek-V3.2", "bf16", 70272, 8052, 61),
        ("DeepSeek-V3.2", "fp8", 40016, 8052, 61),
        ("GLM-5.1", "bf16", 89856, 10296, 78),
        ("GLM-5.1", "fp8", 51168, 10296, 78),
        ("GLM-5.2", "fp8", 51168, 2772, 21),
        ("GLM-5.3", "bf16", 89856, 2772, 21),
        ("GLM-5.3-Flash", "bf16", 11264, 363, 11),
        ("Qwen3.8-Flash-Next", "bf16", 24576, 768, 12),
        ("Qwen3-30B-A3B", "bf16", 96 * 1024, 1536, 48),
        ("Llama-3-8B", "bf16", 128 * 1024, 2048, 32),
        ("Llama-3-8B", "fp8", 64 * 1024, 1024, 32),
    ],
)
def test_published_bytes_a_token(name: str, dtype: str, kv: int, index: int, groups: int) -> None:
    """Published or computed from published shapes, on one GPU; Quest bounds are 1/64 of the KV (QwenQuest: 1,536 B)."""
    model = find_model(name)
    token = token_bytes(model, 1, dtype)
    assert (token.kv, token.host, token.index) == (kv, kv, index)
    assert len(model.groups) == groups and sum(model.groups) == model.layers


def test_shared_selections_of_glm() -> None:
    """Layers 0, 1, 2, 6, 10, ..., 74 of 78 select."""
    config = KNOWN["GLM-5.2"].config
    assert [i for i in range(78) if not skips_selection(config, i)] == [0, 1, *range(2, 78, 4)]
    assert find_model("GLM-5.2").groups == (1, 1, *(4,) * 19)


@pytest.mark.parametrize(
    ("fields", "selecting"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"index_topk_freq": 4}, [0, 1, 5]),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, [0, 1, 2, 6]),
        ({"index_topk_pattern": "FSSFSSFS", "index_topk_freq": 2}, [0, 3, 6]),
        ({"indexer_types": ["full", "shared", "full"], "index_topk_pattern": "S"}, [0, 2, 3, 4, 5, 6, 7]),
        ({"cli_factor": 3, "index_topk_pattern": "S"}, [0, 3, 6]),
        ({"index_topk_freq": None, "index_skip_topk_offset": None, "cli_factor": None}, list(range(8))),
    ],
)
def test_which_layers_select(fields: dict[str, Any], selecting: list[int]) -> None:
    assert [i for i in range(8) if not skips_selection(fields, i)] == selecting


@pytest.mark.parametrize(
    ("name", "gigabytes", "within"),
    [
        ("DeepSeek-V3.2", 671 + 4, 0.01),  # 671 G parameters, embeddings in bf16
        ("GLM-5.3", 755.6 - 10.4, 0.01),  # the checkpoint less its draft layer: 256 experts and one layer
        ("Qwen3.8-Flash-Next", 2 * 176, 0.01),
        ("Qwen3-30B-A3B", 2 * 30.5, 0.01),
        ("Llama-3-8B", 2 * 8.03, 0.01),
    ],
)
def test_weights_counted_from_shapes(name: str, gigabytes: float, within: float) -> None:
    model = find_model(name)
    assert (model.dense_bytes + model.expert_bytes) / 1e9 == pytest.approx(gigabytes, rel=within)


def test_weights_are_those_of_the_published_calculator() -> None:
    """19.556 dense and 684.167 GiB of experts; these include the draft layer, one of 76 with experts."""
    model = find_model("GLM-5.3")
    assert model.expert_bytes / GIB * 76 / 75 == pytest.approx(684.167, rel=1e-4)
    assert model.dense_bytes / GIB == pytest.approx(19.556, rel=0.03)


def test_recurrent_state() -> None:
    """36 gated-delta layers, 48 heads of 128 x 128 fp32: 113 MB; 34 KDA layers of 64 heads: 143 MB; windows beside."""
    assert find_model("Qwen3.8-Flash-Next").state_bytes == pytest.approx(113e6, rel=0.03)
    assert find_model("GLM-5.3-Flash").state_bytes == pytest.approx(143e6, rel=0.04)
    assert find_model("GLM-5.2").state_bytes == 0


def test_kv_heads_of_a_rank_and_latent_rows() -> None:
    """Fewer heads than ranks: each rank keeps one. A latent row is on every rank."""
    llama, glm = find_model("Llama-3-8B"), find_model("GLM-5.2")
    assert [kv_heads(llama, tp) for tp in (1, 2, 4, 8, 16, 32)] == [8, 4, 2, 1, 1, 1]
    assert token_bytes(llama, 16, "bf16") == token_bytes(llama, 8, "bf16")
    assert token_bytes(glm, 1, "fp8") == token_bytes(glm, 64, "fp8")


def test_weights_spread_with_dp_attention() -> None:
    glm = find_model("GLM-5.2")
    assert weights_of_gpu(glm, 8, 8) == (glm.dense_bytes + glm.expert_bytes) / 8
    assert weights_of_gpu(glm, 8, 1) == glm.dense_bytes + glm.expert_bytes / 8


@pytest.mark.parametrize("name", ["GLM-5.2", "glm-5.2", "zai-org/GLM-5.2", "zai-org/GLM-5.2-FP8"])
def test_known_names_in_any_spelling(name: str) -> None:
    assert find_model(name).name == "GLM-5.2"


def test_what_is_served() -> None:
    assert {name for name in KNOWN if not find_model(name).not_served} == {
        "DeepSeek-V3.2",
        "GLM-5.1",
        "GLM-5.2",
        "GLM-5.3",
    }


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("form", ["file", "folder"])
def test_config_json(tmp_path: Path, recipe: str, form: str) -> None:
    folder = tmp_path / recipe
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(RECIPES[recipe].config))
    model = find_model(str(folder if form == "folder" else folder / "config.json"))
    config = RECIPES[recipe].config
    assert (model.name, model.path, model.layers) == (recipe, str(folder), config["num_hidden_layers"])
    if "index_topk" in config:
        assert (model.family, model.row_bytes, model.kv_heads) == ("dsa", (1152, 656), 0)
    else:
        assert (model.family, model.row_bytes, model.kv_heads) == ("quest", (256, 128), 2)


def test_config_with_a_text_part_and_layer_types() -> None:
    text = {
        **KNOWN["Qwen3.8-Flash-Next"].config,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    }
    model = read_model({"architectures": ["X"], "text_config": {**text, "num_hidden_layers": 4}}, "x", "x")
    assert (model.layers, model.family) == (1, "qsa")


def test_sliding_windows_are_planned_but_not_served() -> None:
    assert "sliding" in read_model({**DENSE, "layer_types": ["sliding_attention"] * 4}, "x", "x").not_served


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"--model x: its config\.json has no whole number num_hidden_layers"),
        ({"num_hidden_layers": 4}, r"no whole number num_attention_heads"),
        ({"num_hidden_layers": "4"}, r"no whole number num_hidden_layers"),
        ({"num_hidden_layers": -1}, r"no whole number num_hidden_layers"),
        ({**DENSE, "num_hidden_layers": 0}, r"no layer that keeps KV"),
        ({**DENSE, "layer_types": ["linear_attention"] * 4}, r"no layer that keeps KV"),
        ({**DENSE, "kv_lora_rank": 512}, r"without an indexer \(index_topk\)"),
        ({**DENSE, "index_topk": 2048}, r"no whole number kv_lora_rank"),
        ({**DENSE, "compress_ratios": [4]}, r"DeepSeek-V4 \(compress_ratios\) is not planned"),
        ({**DENSE, "sparse_attention_config": {"sparse_block_size": 128}}, r"MiniMax-M3"),
    ],
)
def test_models_that_cannot_be_planned(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_model(config, "x", "x")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "GLM-5.22",
            r"--model GLM-5\.22: no known name.*Did you mean GLM-5\.2\? Known names: DeepSeek-V3\.2, GLM-5\.1",
        ),
        ("/nowhere", r"--model /nowhere: no known name, and no config\.json at /nowhere\."),
    ],
)
def test_unknown_model(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_model(given)


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_file_that_is_no_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(
        ValueError, match=r"--model .*config\.json (cannot be read as JSON|holds no JSON object)"
    ):
        find_model(str(tmp_path))


def test_gpus() -> None:
    assert find_gpu("h200") is GPUS["H200"]
    with pytest.raises(
        ValueError, match=r"--gpu H2000: not known\. Did you mean H200\? Known GPUs: H200, B200, B300, GH200"
    ):
        find_gpu("H2000")


@pytest.mark.parametrize(("row", "gbps"), [(656, 25), (1152, 38), (2624, 50)])
def test_gathered_rows_reach_what_was_measured(row: int, gbps: float) -> None:
    """From a 24 GiB pool: 656 B at 25 GB/s, 1,152 B at 38; longer rows come to the link's own limit."""
    assert row / GPUS["H200"].row_time_ns(row) == pytest.approx(gbps, rel=0.01)


def test_a_fetch_reads_one_row_a_plane() -> None:
    glm: Model = find_model("GLM-5.2")
    gpu = GPUS["H200"]
    assert fetch_ns(glm, token_bytes(glm, 8, "fp8"), gpu) == pytest.approx(78 * gpu.row_time_ns(656))
    quest: Model = find_model("Llama-3-8B")
    token = token_bytes(quest, 1, "bf16")
    rows = 2 * quest.layers  # K and V
    assert fetch_ns(quest, token, gpu) == pytest.approx(rows * gpu.row_time_ns(token.host / rows))
