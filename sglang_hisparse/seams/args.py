"""Arguments: our JSON in `--hisparse-config`, what we set where the operator left it open, and what we refuse.

Everything is refused here, at start and by name: nothing unsupported reaches graph capture or a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sglang_hisparse.config import PAGE, HiSparseConfig, selects_us
from sglang_hisparse.limits import check_host_pool, host_limits
from sglang_hisparse.seams.benchmark_args import check_aids, check_model
from sglang_hisparse.seams.runtime import runtime

logger = logging.getLogger(__name__)

UNSUPPORTED_FLAGS: dict[str, str] = {
    "enable_hierarchical_cache": "both would own host copies of the prefix cache",
    "enable_lmcache": "both would own host copies of the prefix cache",
    "enable_flexkv": "both would own host copies of the prefix cache",
    "enable_unified_cache_external_linker": "both would own host copies of the prefix cache",
    "enable_unified_memory": "its pools are one byte buffer without a page map",
    "enable_page_major_kv_layout": "rows of a layer have to lie side by side",
    "enable_kv_cache_sharding": "its pages are striped over ranks",
    "enable_dsa_cache_layer_split": "layers are split over ranks",
    "enable_prefill_cp": "prefill writes KV on several ranks",
    "enable_mixed_chunk": "a mixed batch reads decode rows on the prefill path",
    "enable_two_batch_overlap": "two half batches would share one set of hot rows in flight",
    "enable_pdmux": "prefill and decode would change the page map at the same time",
    "enable_streaming_session": "a session keeps its row between requests",
    "enable_session_radix_cache": "a session keeps its row between requests",
    "enable_memory_saver": "a released KV pool would leave host copies of another one",
    "enable_nvidia_megakernel": "its fused kernels write KV past the pool",
    "prefill_only_disable_kv_cache": "there is no KV to tier",
    "swa_prefix_tails": "sliding-window pools are not tiered",
    "is_embedding": "there is no decode",
}
"""Flags that cannot be on together with the tier, with the reason."""

UNSUPPORTED_VALUES: dict[str, tuple[tuple[Any, ...], str]] = {
    "speculative_algorithm": ((None, "NONE"), "draft tokens are not tiered yet"),
    "disaggregation_mode": (("null", None), "KV that arrives from another server is not tiered yet"),
    "dllm_algorithm": ((None,), "it rewrites KV that is sealed"),
    "pp_size": ((1,), "layers of other stages have no index group here"),
    "dcp_size": ((1,), "rows are spread over ranks"),
    "attn_cp_size": ((1,), "prefill writes KV on several ranks"),
    "dwdp_size": ((1,), "not tried"),
    "radix_cache_backend": (("auto", None, "unified", "radix"), "the backend may own host copies"),
}
"""Arguments with the values that work together with the tier, and the reason."""

DSA_BACKENDS = {
    "dsa_prefill_backend": ("flashmla_sparse", "flashmla_kv", "flashmla_auto"),
    "dsa_decode_backend": ("flashmla_sparse", "flashmla_kv"),
}
DSA_DTYPES = ("auto", "bfloat16", "bf16", "fp8_e4m3")


def refuse(what: str, why: str, instead: str) -> ValueError:
    """An argument error in the house form."""
    return ValueError(f"--hisparse-config with host_pool_gib does not work with {what}: {why}. {instead}")


def resolve_arguments(original: Callable[..., None], server_args: Any) -> None:
    """Around SGLang's argument resolution: read our options before it, check the result after it."""
    done = getattr(server_args, "_resolution_finished", False)
    aids = runtime.aids = check_aids(server_args)
    if not selects_us(server_args.hisparse_config):
        original(server_args)
        if not done:
            check_model(server_args, aids, quest=False)
        return
    config = HiSparseConfig.from_json(server_args.hisparse_config)
    if not done:
        if server_args.enable_hisparse:
            raise refuse(
                "--enable-hisparse",
                "that is stock SGLang's own HiSparse, an alternative to this package",
                "Drop --enable-hisparse for the hybrid tier, or host_pool_gib for stock's",
            )
        _check_flags(server_args)  # stock would complain of what we choose below, not of these
        _set_open(server_args, config)
    original(server_args)
    if not done:
        _check_resolved(server_args, config)
        check_model(server_args, aids, quest=config.selector == "quest")
    runtime.config = replace(config, resident_graphs=_resident_graphs(server_args, config))


def _resident_graphs(server_args: Any, config: HiSparseConfig) -> bool:
    """`resident_graphs` as it holds: where it is left open, on wherever nothing speaks against it. Every process of a
    server comes to the same answer."""
    from sglang.srt.arg_groups.overrides import resolving_view

    if config.resident_graphs is not None:
        return config.resident_graphs
    if config.selector == "quest" or config.spill_order == "heat":
        return False
    try:
        _check_resident(resolving_view(server_args))
    except ValueError as error:
        logger.info(f"HiSparse leaves resident_graphs off: {error}")
        return False
    return True


def _set_open(server_args: Any, config: HiSparseConfig) -> None:
    """Choose what the operator left open; say so. Runs before the record is sealed."""
    chosen: dict[str, Any] = {}
    if server_args.page_size is None:
        chosen["page_size"] = PAGE
    if config.selector == "quest":
        if server_args.attention_backend is None:
            chosen["attention_backend"] = "torch_native"
    else:
        fp8 = str(server_args.kv_cache_dtype).startswith("fp8")
        if server_args.dsa_decode_backend is None:
            chosen["dsa_decode_backend"] = "flashmla_kv" if fp8 else "flashmla_sparse"
        if server_args.dsa_prefill_backend is None and not fp8:
            chosen["dsa_prefill_backend"] = "flashmla_sparse"
    if not server_args.disable_prefill_cuda_graph:
        chosen["disable_prefill_cuda_graph"] = True
    for name, value in chosen.items():
        setattr(server_args, name, value)
    shown = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in chosen.items())
    if shown:
        logger.info(f"HiSparse chose: {shown} (prefill CUDA graphs cannot look up prefix rows)")


def _check_flags(args: Any) -> None:
    for name, why in UNSUPPORTED_FLAGS.items():
        if getattr(args, name, None):
            flag = "--" + name.replace("_", "-")
            raise refuse(flag, why, f"Drop {flag}, or the host tier")
    for name, (allowed, why) in UNSUPPORTED_VALUES.items():
        value = getattr(args, name, allowed[0])
        if value not in allowed:
            flag, works = "--" + name.replace("_", "-"), [a for a in allowed if a is not None]
            raise refuse(f"{flag} {value}", why, f"Leave it out{f' or use {works[0]}' if works else ''}")


def _check_resolved(server_args: Any, config: HiSparseConfig) -> None:
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view
    from sglang.srt.configs.model_config import is_deepseek_dsa

    args = resolving_view(server_args)
    _check_flags(args)
    if args.page_size != PAGE:
        raise refuse(
            f"--page-size {args.page_size}", f"pages of the tier have {PAGE} slots", f"Use --page-size {PAGE}"
        )
    model = model_config_of(server_args)
    dsa = is_deepseek_dsa(model.hf_config)
    _check_model(model, config, dsa)
    if dsa:
        _check_dsa(args)
        if config.resident_graphs:
            _check_resident(args)
    else:
        _check_quest(args)
    if config.spill_order == "heat" and args.tp_size > 1:
        raise refuse(
            f'"spill_order": "heat" with --tp-size {args.tp_size}',
            "ranks read their counts at different times and would spill different pages",
            'Leave spill_order out, or "spill_order": "position"',
        )
    ranks = -(-args.dp_size * args.tp_size // args.nnodes)
    check_host_pool(config.host_pool_gib, ranks, host_limits())


def _check_model(model: Any, config: HiSparseConfig, dsa: bool) -> None:
    names = ", ".join(model.hf_config.architectures or ["?"])
    if config.selector == "auto" and not dsa:
        raise refuse(
            f"the model {names}",
            "it has no sparse attention of its own that we tier (DSA: DeepSeek-V3.2, GLM-5.x)",
            'For an ordinary GQA model choose "selector": "quest"',
        )
    if config.selector == "quest" and dsa:
        raise refuse(
            f'"selector": "quest" on {names}', "the model selects by its own indexer", "Leave selector out"
        )
    if model.is_hybrid_swa:
        raise refuse(
            f"the model {names}", "sliding-window pools are not tiered", "Serve it without the host tier"
        )
    if config.selector == "quest" and (model.is_multimodal or not model.is_generation):
        raise refuse(
            f"the model {names}", "Quest serves text generation only", "Serve it without the host tier"
        )
    if getattr(model.hf_config, "index_kpool", 1) > 1:
        raise refuse(
            f"the model {names}", "pooled index keys are not supported yet", "Serve it without the host tier"
        )


def _check_dsa(args: Any) -> None:
    from sglang.srt.environ import envs

    if not str(args.device).startswith("cuda"):
        raise refuse(f"--device {args.device}", "DSA runs on CUDA", "Use a CUDA device")
    for name, allowed in DSA_BACKENDS.items():
        value = getattr(args, name)
        if value is not None and value not in allowed:
            flag = "--" + name.replace("_", "-")
            raise refuse(
                f"{flag} {value}",
                "it reads KV past the page map or was not tried",
                f"Use {flag} {allowed[0]}",
            )
    if args.kv_cache_dtype not in DSA_DTYPES:
        raise refuse(
            f"--kv-cache-dtype {args.kv_cache_dtype}", "its rows are not known", "Use bfloat16 or fp8_e4m3"
        )
    fp8 = str(args.kv_cache_dtype).startswith("fp8")
    if fp8 and args.dsa_decode_backend == "flashmla_sparse":
        raise refuse(
            "--dsa-decode-backend flashmla_sparse and fp8 KV",
            "it reads bf16 rows",
            "Use --dsa-decode-backend flashmla_kv",
        )
    if not fp8 and args.dsa_decode_backend == "flashmla_kv":
        raise refuse(
            "--dsa-decode-backend flashmla_kv and bf16 KV",
            "it reads fp8 rows",
            "Use --dsa-decode-backend flashmla_sparse",
        )
    if not envs.SGLANG_DSA_FUSE_TOPK.get():
        raise refuse(
            "SGLANG_DSA_FUSE_TOPK=0",
            "unfused top-k gives positions, the tier resolves slots",
            "Unset SGLANG_DSA_FUSE_TOPK",
        )


def _check_resident(args: Any) -> None:
    from sglang.srt.environ import envs

    option, without = '"resident_graphs": true', "or leave resident_graphs out"
    if args.dsa_topk_backend != "sgl-kernel":
        raise refuse(
            f"{option} and --dsa-topk-backend {args.dsa_topk_backend}",
            "its top-k reads another page table",
            f"Use --dsa-topk-backend sgl-kernel, {without}",
        )
    if not envs.SGLANG_OPT_USE_TOPK_V2.get():
        raise refuse(
            f"{option} and SGLANG_OPT_USE_TOPK_V2=0",
            "the older top-k reads another page table",
            f"Unset SGLANG_OPT_USE_TOPK_V2, {without}",
        )
    if args.attn_dp_size > 1:  # also where --enable-dp-attention was given
        raise refuse(
            f"{option} and --attn-dp-size {args.attn_dp_size}",
            "ranks with other requests would replay another graph, and their collectives would not meet",
            f"Drop --attn-dp-size, {without}",
        )
    if args.enable_return_indexer_topk:
        raise refuse(
            f"{option} and --enable-return-indexer-topk",
            "selections are device rows there",
            f"Drop --enable-return-indexer-topk, {without}",
        )


def _check_quest(args: Any) -> None:
    if args.device != "cpu":
        raise refuse(
            f'"selector": "quest" on --device {args.device}',
            "Quest has no CUDA kernels yet",
            "Use --device cpu",
        )
    for name in ("attention_backend", "prefill_attention_backend", "decode_attention_backend"):
        value = getattr(args, name, None)
        if value not in (None, "torch_native"):
            flag = "--" + name.replace("_", "-")
            raise refuse(f"{flag} {value}", "Quest extends torch_native", f"Use {flag} torch_native")
