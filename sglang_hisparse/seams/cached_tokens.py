"""`meta_info.cached_tokens_details`: how much of a prefix hit was in HBM, and how much came from the host tier.

Counted when a request is admitted, before its prefix is brought back: a page counts as host where it had no device
page then. A request that is retracted keeps what its first admission found, as SGLang's own numbers do. SGLang's
`cached_tokens_total{cache_source="host"}` and the cache report of its benchmark follow from it.
"""

from __future__ import annotations

from typing import Any

from sglang_hisparse.config import PAGE
from sglang_hisparse.seams.runtime import runtime
from sglang_hisparse.tier.host_tier import HostTier

_HOST_HIT = "hisparse_host_hit_tokens"
"""Attribute on SGLang's request: it outlives ours, which ends with its row."""


def remember_hit(req: Any, tier: HostTier, pages: list[int]) -> None:
    """`req` is admitted with `pages` as its prefix; the first admission counts."""
    if not hasattr(req, _HOST_HIT):
        device = tier.residency.device
        setattr(req, _HOST_HIT, sum(device[page] < 0 for page in pages) * PAGE)


def split_by_tier(result: dict[str, Any] | None, streamer: Any, req: Any) -> dict[str, Any] | None:
    """After SGLang's details of a request: tokens that were on the host move from `device` to `host`."""
    if result is None or runtime.tier is None:
        return result
    host = min(getattr(req, _HOST_HIT, 0), result["device"])
    return {**result, "device": result["device"] - host, "host": result["host"] + host} if host else result
