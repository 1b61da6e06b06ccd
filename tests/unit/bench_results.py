"""Results folders for the tests of the benchmark's report: numbers made up by simple rules."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

CONFIG = """
name = "made-up"
title = "Made up"
model = "glm52-shaped"
device_tokens = 270336
[[system]]
name = "no tier"
role = "baseline"
[[system]]
name = "stock HiSparse"
stock_hisparse = {}
[[system]]
name = "ours"
role = "ours"
launcher = "ours"
hisparse = { host_pool_gib = 24 }
[[system]]
name = "ours, no copies"
role = "oracle"
oracle_of = "ours"
launcher = "ours"
[[workload]]
name = "cold 32K"
dataset = "random-ids"
concurrency = [1, 8, 64]
[workload.flags]
random-input-len = 32768
random-output-len = 512
"""

RATES = {
    "no tier": {1: 100.0, 8: 600.0, 64: 610.0},
    "stock HiSparse": {1: 60.0, 8: 400.0, 64: 1500.0},
    "ours": {1: 99.9, 8: 597.0, 64: 2400.0},
    "ours, no copies": {64: 2500.0},
}
SAMPLES = [
    {"running": 8, "gen_tok_s": 0},
    *({"running": 64, "gen_tok_s": rate} for rate in (2450, 2460, 2470)),
]
ROLES = {"no tier": "baseline", "stock HiSparse": "other", "ours": "ours", "ours, no copies": "oracle"}


def line(system: str, concurrency: int, rate: float, **more: Any) -> dict[str, Any]:
    """A line as `bench_serving.run` writes it."""
    step = 1000 * concurrency / rate
    times = {"median": step, "mean": step, "p99": 1.5 * step}
    return {
        "system": system,
        "role": ROLES.get(system, "ours"),
        "oracle_of": "ours" if system.endswith("no copies") else "",
        "workload": "cold 32K",
        "concurrency": concurrency,
        "prompts": concurrency,
        "setup": "0123456789",
        "status": "ok",
        "completed": concurrency,
        "duration_s": 10.0,
        "output_tok_s": rate * 0.5,
        "decode_tok_s": rate,
        "most_running": min(8, concurrency) if system == "no tier" else concurrency,
        "bytes_to_device": 3.5e9 if system == "ours" else None,
        "bytes_to_host": 1e9 if system == "ours" else None,
        "hit_rate": 0.866 if system == "ours" and concurrency == 64 else None,
        "hot_rows": 4096 if system == "ours" else None,
        "cached_tokens": 0,
        "prompt_tokens": 32768 * concurrency,
        "retractions": 0.0,
        "tpot_ms": times,
        "itl_ms": times,
        "ttft_ms": {"median": 900.0 * concurrency, "mean": 900.0, "p99": 1000.0 * concurrency},
        "e2e_latency_ms": times,
        **more,
    }


def folder(path: Path, *more: dict[str, Any]) -> Path:
    """A results folder at `path`, with `more` lines at its end."""
    path.mkdir(parents=True, exist_ok=True)
    lines = [
        line(system, at_once, rate) for system, rates in RATES.items() for at_once, rate in rates.items()
    ]
    text = "".join(json.dumps(one) + "\n" for one in (*lines, *more))
    (path / "results.jsonl").write_text(text)
    samples = {"system": "ours", "workload": "cold 32K", "concurrency": 64, "samples": SAMPLES}
    (path / "samples.jsonl").write_text(json.dumps(samples) + "\n")
    (path / "config.json").write_text(json.dumps(tomllib.loads(CONFIG)))
    environment = {
        "gpus": [{"name": "NVIDIA H200"}],
        "versions": {"sglang": "0.5.23"},
        "commit": "abcdef123456",
    }
    (path / "environment.json").write_text(json.dumps(environment))
    return path
