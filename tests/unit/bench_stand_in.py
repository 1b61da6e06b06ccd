"""Stands in for stock's client: writes one result as `sglang.bench_serving --output-details` does.

STAND_IN is the folder of the test: `runs` counts the runs, `plan.json` says what run n does besides: "fail" it,
"interrupt" the process RUNNER with SIGTERM, or "hang".
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path


def cli_main() -> None:
    parser = argparse.ArgumentParser()
    for name in (
        "output-file",
        "max-concurrency",
        "num-prompts",
        "gsp-prompts-per-group",
        "random-output-len",
    ):
        parser.add_argument(f"--{name}")
    options, _ = parser.parse_known_args()
    folder = Path(os.environ["STAND_IN"])
    with (folder / "runs").open("a") as file:
        file.write(json.dumps(sys.argv) + "\n")
    run = len((folder / "runs").read_text().splitlines())
    plan = json.loads((folder / "plan.json").read_text()) if (folder / "plan.json").exists() else {}
    what = plan.get(str(run), "")
    if what == "fail":
        print("no such prompt in /root/secret/place")
        sys.exit(3)
    if what in ("interrupt", "hang"):
        (folder / "hanging").write_text(str(os.getpid()))
    if what == "interrupt":
        for _ in range(2):  # an impatient user
            os.kill(int(os.environ["RUNNER"]), signal.SIGTERM)
    if what in ("interrupt", "hang"):
        time.sleep(60)
    count = int(options.num_prompts or options.gsp_prompts_per_group)
    times = {
        f"{kind}_{name}_ms": 10.0 for kind in ("median", "mean", "p99") for name in ("ttft", "tpot", "itl")
    }
    times |= {f"{kind}_e2e_latency_ms": 100.0 for kind in ("median", "mean", "p99")}
    errors = {"partial": "connection reset", "none": "connection refused"}
    result = times | {
        "completed": 0 if what == "none" else count - (what == "partial"),
        "duration": 2.0,
        "output_throughput": 100.0,
        "total_throughput": 1000.0,
        "cache_report": {"total_cached_tokens": 5, "total_prompt_tokens": 50},
        "server_info": {"model_path": "/root/secret/place"},
        "ttfts": [0.5] * count,
        "itls": [[0.01] * 9] * count,
        "errors": [errors.get(what, "") if what == "none" or not place else "" for place in range(count)],
        "generated_texts": ["1 2 3"] * count,
    }
    Path(options.output_file).write_text(json.dumps(result) + "\n")
