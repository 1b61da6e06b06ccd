"""Building the tier once pools exist, and applying its journal right before every forward."""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.srt.runtime_context import get_schedule

from sglang_hisparse.config import PAGE
from sglang_hisparse.seams.apply import verify
from sglang_hisparse.seams.benchmark import build_replay
from sglang_hisparse.seams.lifecycle import RequestLifecycle, longest_prefill_of
from sglang_hisparse.seams.read_check import ENABLED as READ_CHECK
from sglang_hisparse.seams.read_check import ReadCheck
from sglang_hisparse.seams.runtime import runtime
from sglang_hisparse.seams.sizing import requests_at_once
from sglang_hisparse.tier.host_tier import HostTier

logger = logging.getLogger(__name__)


def build_tier(result: None, runner: Any) -> None:
    """After the pools of a model runner are wired, before graphs are captured."""
    build_replay(runner)
    if runtime.capacity is None or runner.is_draft_worker:
        return result
    assert runtime.config is not None and runtime.selector is not None
    verify()  # other plugins' hooks are in place by now
    pool, requests = runner.token_to_kv_pool, runner.req_to_token_pool
    device = torch.device(requests.req_to_token.device)
    tier = HostTier(
        config=runtime.config,
        capacity=runtime.capacity,
        selector=runtime.selector,
        buffers=pool.tier_buffers(),
        request_rows=requests.req_to_token.shape[0],
        device=device,
        copy_rows=not runtime.aids.no_copy,
        listed_batch=requests_at_once() if device.type == "cuda" else None,
    )
    chunk = get_schedule().chunked_prefill_size
    lifecycle = RequestLifecycle(tier, requests, chunk if chunk and chunk > 0 else None)
    requests.attach_aux_cache(lifecycle)
    runner.token_to_kv_pool_allocator.attach_tier(tier, lifecycle)
    runtime.tier = tier
    if READ_CHECK and runtime.selector.name == "dsa":
        runtime.read_check = ReadCheck(tier.layout, (tier.capacity.logical_pages + 1) * PAGE)
    return result


def before_forward(runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
    """On the forward stream, outside graphs: page map, leases and copies for this forward."""
    tier = runtime.tier
    if tier is None or runner.is_draft_worker or tier.nothing_to_do():
        return
    decodes = forward_batch.forward_mode.is_decode()
    tier.begin_forward(forward_batch.req_pool_indices_cpu if decodes else None)


def limit_input(result: tuple[Any, ...], worker: Any) -> tuple[Any, ...]:
    """A prompt that could never be prefilled is refused when it arrives: where prefill reads HBM only, or writes a
    prompt in one forward, the device pool has to hold it."""
    if runtime.tier is None:
        return result
    longest = longest_prefill_of(runtime.tier)
    if longest is None:
        return result
    values = list(result)
    longest_input = 5  # position of max_req_input_len in SGLang's worker info
    values[longest_input] = min(values[longest_input], longest * PAGE)
    return tuple(values)
