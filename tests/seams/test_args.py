"""Arguments that do not work with the tier are refused at start, by name, with a value that works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench_serving import tiny_models
from sglang_hisparse.limits import host_limits

pytest.importorskip("sglang.srt.server_args", reason="SGLang is not installed")

QUEST = {"host_pool_gib": 0.1, "selector": "quest", "top_k": 512}


@pytest.fixture(scope="module")
def models() -> dict[str, Path]:
    return {name: tiny_models.ensure(name) for name in ("qwen3-tiny",)}


def resolve(model: Path, options: Any, **flags: Any) -> Any:
    """Resolve arguments with our hook around stock's own resolution; the resolved view."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.server_args import ServerArgs

    from sglang_hisparse.seams.args import resolve_arguments

    text = options if isinstance(options, str) else json.dumps(options)
    given: dict[str, Any] = {"device": "cpu", "dtype": "float32", "skip_tokenizer_init": True, **flags}
    args = ServerArgs(model_path=str(model), hisparse_config=text, **given)
    resolve_arguments(ServerArgs.resolve_once, args)
    return resolving_view(args)


def test_quest_sets_what_was_left_open(models: dict[str, Path]) -> None:
    args = resolve(models["qwen3-tiny"], QUEST)
    assert args.page_size == 64
    assert args.attention_backend == "torch_native"
    assert args.disable_prefill_cuda_graph
    assert not args.disable_radix_cache
    assert not args.disable_overlap_schedule


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('{"host_pool_gib": 1, "hot_row": 4096}', "unknown key 'hot_row'. Did you mean 'hot_rows'?"),
        ('{"host_pool_gib": 1,}', "is not JSON"),
        ({"host_pool_gib": -1}, "host_pool_gib must be a number from 0 to"),
        ({"host_pool_gib": 1, "top_k": 64}, 'top_k belongs to Quest; add "selector": "quest"'),
        ({"host_pool_gib": 1}, 'For an ordinary GQA model choose "selector": "quest"'),
    ],
)
def test_options_that_cannot_be(models: dict[str, Path], options: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        resolve(models["qwen3-tiny"], options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"enable_hisparse": True}, "Drop --enable-hisparse for the hybrid tier"),
        ({"enable_mixed_chunk": True}, "--enable-mixed-chunk: a mixed batch"),
        ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache: both would own host copies"),
        ({"page_size": 32}, "Use --page-size 64"),
        ({"pp_size": 2}, "--pp-size 2"),
        (
            {"speculative_algorithm": "NGRAM"},
            "--speculative-algorithm NGRAM: draft tokens are not tiered yet",
        ),
        ({"enable_streaming_session": True}, "--enable-streaming-session"),
        ({"disaggregation_mode": "decode"}, "--disaggregation-mode decode"),
        ({"attention_backend": "flex_attention"}, "Use --attention-backend torch_native"),
    ],
)
def test_flags_that_do_not_go_together(models: dict[str, Path], flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        resolve(models["qwen3-tiny"], QUEST, **flags)
    assert "--hisparse-config with host_pool_gib does not work with" in str(caught.value)
    assert message in str(caught.value)


def test_heat_is_for_one_rank(models: dict[str, Path]) -> None:
    options = QUEST | {"spill_order": "heat"}
    resolve(models["qwen3-tiny"], options)
    with pytest.raises(ValueError, match='"spill_order": "heat" with --tp-size 2: ranks read their counts'):
        resolve(models["qwen3-tiny"], options, tp_size=2)


@pytest.mark.parametrize(("flags", "ranks"), [({}, 1), ({"tp_size": 2}, 2)])
def test_host_pool_larger_than_the_machine(
    models: dict[str, Path], flags: dict[str, Any], ranks: int
) -> None:
    """Said before anything is loaded, with the limit that binds and a size that fits."""
    wanted = 1 << 20
    with pytest.raises(ValueError) as caught:
        resolve(models["qwen3-tiny"], {**QUEST, "host_pool_gib": wanted}, **flags)
    tightest = next(limit for limit in host_limits() if not limit.name.startswith("locked"))
    said = f"host_pool_gib {wanted:g} x {ranks} rank(s) of this host is more than the {tightest.name} leaves"
    assert said in str(caught.value)
    fits = float(str(caught.value).rpartition("A host_pool_gib that fits: ")[2])
    assert 0 <= fits <= tightest.free_gib / ranks
    resolve(models["qwen3-tiny"], {**QUEST, "host_pool_gib": fits / 2}, **flags)


class View:
    """Just what the checks of one model family read."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dsa_decode_backend": "trtllm"}, "Use --dsa-decode-backend flashmla_sparse"),
        ({"dsa_prefill_backend": "tilelang"}, "Use --dsa-prefill-backend flashmla_sparse"),
        ({"kv_cache_dtype": "fp4_e2m1"}, "Use bfloat16 or fp8_e4m3"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "Use --dsa-decode-backend flashmla_kv"),
        ({"dsa_decode_backend": "flashmla_kv"}, "Use --dsa-decode-backend flashmla_sparse"),
    ],
)
def test_dsa_backends_and_dtypes(change: dict[str, Any], message: str) -> None:
    from sglang_hisparse.seams.args import _check_dsa

    good = {
        "device": "cuda",
        "kv_cache_dtype": "bfloat16",
        "dsa_prefill_backend": "flashmla_sparse",
        "dsa_decode_backend": "flashmla_sparse",
    }
    _check_dsa(View(**good))
    with pytest.raises(ValueError) as caught:
        _check_dsa(View(**{**good, **change}))
    assert message in str(caught.value)


def test_dsa_needs_cuda() -> None:
    from sglang_hisparse.seams.args import _check_dsa

    with pytest.raises(ValueError, match="DSA runs on CUDA"):
        _check_dsa(View(device="cpu"))


@pytest.mark.parametrize(
    ("change", "selector", "message"),
    [
        ({}, "auto", "it has no sparse attention of its own"),
        ({"dsa": True}, "quest", "the model selects by its own indexer"),
        ({"is_hybrid_swa": True}, "quest", "sliding-window pools are not tiered"),
        ({"is_multimodal": True}, "quest", "Quest serves text generation only"),
        ({"is_generation": False}, "quest", "Quest serves text generation only"),
        ({"dsa": True, "index_kpool": 4}, "auto", "pooled index keys are not supported yet"),
    ],
)
def test_models_that_cannot_be_tiered(change: dict[str, Any], selector: str, message: str) -> None:
    from sglang_hisparse.config import HiSparseConfig
    from sglang_hisparse.seams.args import _check_model

    facts = {"is_hybrid_swa": False, "is_multimodal": False, "is_generation": True, "dsa": False} | change
    hf_config = View(architectures=["SomeForCausalLM"], index_kpool=facts.pop("index_kpool", 1))
    dsa = facts.pop("dsa")
    with pytest.raises(ValueError, match="SomeForCausalLM") as caught:
        _check_model(View(hf_config=hf_config, **facts), HiSparseConfig(1, selector=selector), dsa)
    assert message in str(caught.value)


def test_unfused_topk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_hisparse.seams.args import _check_dsa

    monkeypatch.setenv("SGLANG_DSA_FUSE_TOPK", "0")
    with pytest.raises(ValueError, match="Unset SGLANG_DSA_FUSE_TOPK"):
        _check_dsa(
            View(
                device="cuda",
                kv_cache_dtype="bfloat16",
                dsa_prefill_backend="flashmla_sparse",
                dsa_decode_backend="flashmla_sparse",
            )
        )


def test_quest_on_cuda_is_refused() -> None:
    from sglang_hisparse.seams.args import _check_quest

    with pytest.raises(ValueError, match="Quest has no CUDA kernels yet"):
        _check_quest(View(device="cuda", attention_backend=None))
