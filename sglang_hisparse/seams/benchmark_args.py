"""Benchmark aids among the arguments: refused, by name, wherever outputs could be taken for real."""

from __future__ import annotations

import os
from typing import Any

from sglang_hisparse.benchmark_aids import NO_COPY, REPLAY, BenchmarkAids
from sglang_hisparse.config import selects_us

NOT_REPLAYED: dict[str, tuple[tuple[Any, ...], str]] = {
    "speculative_algorithm": ((None, "NONE"), "verified tokens would keep their own selections"),
    "enable_mixed_chunk": ((False, None), "decode rows of a mixed batch would keep their own selections"),
    "enable_two_batch_overlap": ((False, None), "two half batches would share one set of selections"),
    "enable_pdmux": ((False, None), "two batches would share one set of selections"),
}
"""Arguments that do not go together with a replay: the values that do, and the reason."""


def check_aids(server_args: Any) -> BenchmarkAids:
    """The aids of this process's environment. ValueError, by name, where these arguments do not allow them."""
    aids = BenchmarkAids.of(os.environ)
    for name in aids.names():
        load_format = getattr(server_args.load_format, "value", server_args.load_format)
        if load_format != "dummy":
            raise ValueError(
                f"{name} is a benchmark aid that makes outputs meaningless: it needs --load-format dummy, not "
                f"{load_format}. Unset {name} to serve a real model"
            )
    if aids.replay is not None:
        for argument, (allowed, why) in NOT_REPLAYED.items():
            value = getattr(server_args, argument, allowed[0])
            if value not in allowed:
                flag = "--" + argument.replace("_", "-")
                raise ValueError(f"{REPLAY} does not work with {flag}: {why}. Leave {flag} out")
    if aids.no_copy and not selects_us(server_args.hisparse_config):
        raise ValueError(
            f"{NO_COPY} is about the host tier, which --hisparse-config with host_pool_gib switches on. The same for "
            "stock's --enable-hisparse is SGLANG_DEBUG_HISPARSE_SKIP_IO=1"
        )
    return aids


def check_model(server_args: Any, aids: BenchmarkAids, quest: bool) -> None:
    """ValueError where the model has no selection that could be replayed, or the replay would never start."""
    from sglang.srt.arg_groups.overrides import model_config_of
    from sglang.srt.configs.model_config import is_deepseek_dsa

    if aids.replay is None:
        return
    model = model_config_of(server_args)
    if not quest and (not is_deepseek_dsa(model.hf_config) or getattr(model.hf_config, "index_kpool", 1) > 1):
        raise ValueError(
            f"{REPLAY}: the model {', '.join(model.hf_config.architectures or ['?'])} has no selection that is "
            "replayed; a DSA model (DeepSeek-V3.2, GLM-5.x) has, and Quest"
        )
    if aids.replay.context >= model.context_len:
        raise ValueError(
            f"{REPLAY}: context {aids.replay.context} is not below the context length {model.context_len}, so the "
            f"replay would never start; {model.context_len - 1} or less works"
        )
