"""From what was observed of one run to one line of the results."""

from __future__ import annotations

import time
from typing import Any

from .points import Point
from .sampler import Sampler
from .timeline import decode_rate

_DROPPED = {"server_info", "itls", "ttfts", "generated_texts", "errors", "cached_tokens_details"}
"""Keys of stock's result that are large, private to the machine, or told otherwise."""

_COUNTERS = (
    "bytes_to_device",
    "bytes_to_host",
    "pages_cleaned",
    "pages_spilled",
    "pages_restored",
    "selected_resident",
    "selected_hot",
    "selected_missed",
    "deferred_admissions",
    "retractions",
)


def common(point: Point) -> dict[str, Any]:
    """What every line says of itself."""
    return {
        "system": point.system.name,
        "role": point.system.role,
        "oracle_of": point.system.oracle_of,
        "workload": point.workload.name,
        "concurrency": point.concurrency,
        "prompts": point.workload.prompts(point.concurrency),
        "setup": point.fingerprint,
        "at": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def failed(point: Point, error: str) -> dict[str, Any]:
    """The line of a run that gave no numbers."""
    return common(point) | {"status": "failed", "error": error[-4000:]}


def measured(point: Point, raw: dict[str, Any], sampler: Sampler) -> dict[str, Any]:
    """The line of a run: stock's numbers, the tier's counters, and the decode throughput."""
    wanted = point.workload.prompts(point.concurrency) * int(point.workload.flags.get("gsp-num-turns", 1))
    errors = sorted({error for error in raw.get("errors", ()) if error})
    good = [place for place, error in enumerate(raw["errors"]) if not error and raw["ttfts"][place] > 0]
    decode = decode_rate(
        [raw["ttfts"][place] for place in good], [raw["itls"][place] for place in good], point.concurrency
    )
    line = common(point) | {
        "status": "ok" if raw["completed"] >= wanted else "partial",
        "completed": raw["completed"],
        "duration_s": round(raw["duration"], 3),
        "output_tok_s": round(raw["output_throughput"], 2),
        "total_tok_s": round(raw["total_throughput"], 2),
        "decode_tok_s": round(decode[0], 2)
        if decode and point.workload.flags.get("gsp-num-turns", 1) == 1
        else None,
        "decode_s": round(decode[1], 3) if decode else None,
        "most_running": sampler.most_running(),
        "most_usage": sampler.most("usage"),
        "cached_tokens": (raw.get("cache_report") or {}).get("total_cached_tokens"),
        "prompt_tokens": (raw.get("cache_report") or {}).get("total_prompt_tokens"),
        **{name: sampler.change(name) for name in _COUNTERS},
        "hit_rate": _hit_rate(sampler),
        **_options(sampler.info),
    }
    for short in ("ttft", "tpot", "itl", "e2e_latency"):
        line[f"{short}_ms"] = {
            kind: round(raw[f"{kind}_{short}_ms"], 3) for kind in ("median", "mean", "p99")
        }
    if errors:
        line["error"] = "\n".join(errors)[:2000]
    line["client"] = {key: value for key, value in raw.items() if key not in _DROPPED}
    return line


def _hit_rate(sampler: Sampler) -> float | None:
    """Share of the selected spilled rows that were already in HBM; None where nothing was spilled."""
    hot, missed = sampler.change("selected_hot"), sampler.change("selected_missed")
    if hot is None or missed is None or hot + missed == 0:
        return None
    return round(hot / (hot + missed), 5)


def _options(info: dict[str, Any]) -> dict[str, Any]:
    """Size of the pools, as the server has them."""
    states = info.get("internal_states") or [{}]
    tier = states[0].get("hisparse") or {}
    options, capacity = tier.get("options") or {}, tier.get("capacity") or {}
    return {
        "device_tokens": capacity.get("device_tokens", info.get("max_total_num_tokens")),
        "logical_tokens": capacity.get("logical_tokens"),
        "hot_rows": 64 * capacity["hot_max_pages"] if "hot_max_pages" in capacity else None,
        "host_pool_gib": options.get("host_pool_gib"),
    }
