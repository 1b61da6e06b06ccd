"""`bench_serving/configs/cpu_demo.toml` as a user runs it: real servers, stock's own client, a report at the end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "bench_serving" / "configs" / "cpu_demo.toml"


def test_the_demo_measures_both_systems_and_reports(tmp_path: Path) -> None:
    out = tmp_path / "results"
    command = [sys.executable, "-m", "bench_serving.run", str(CONFIG), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    lines = [json.loads(text) for text in (out / "results.jsonl").read_text().splitlines()]
    assert [(x["workload"], x["concurrency"], x["system"]) for x in lines] == [
        (workload, level, system)
        for workload, level in (("cold", 1), ("cold", 8), ("shared prefix", 8))
        for system in ("stock", "ours")
    ]
    for line in lines:
        assert line["status"] == "ok" and line["completed"] == line["prompts"]
        assert line["client"]["total_input_tokens"] == line["prompts"] * (
            2800 if line["workload"] == "cold" else 2560
        )
        assert line["ttft_ms"]["median"] > 0 and line["tpot_ms"]["median"] > 0 and line["decode_tok_s"] > 0
        assert line["device_tokens"] == 8192
    at_once = {
        line["system"]: line for line in lines if (line["workload"], line["concurrency"]) == ("cold", 8)
    }
    assert at_once["ours"]["bytes_to_device"] > 0 and 0 < at_once["ours"]["hit_rate"] < 1
    assert at_once["stock"]["bytes_to_device"] is None
    shared = [line for line in lines if line["workload"] == "shared prefix"]
    assert all(line["cached_tokens"] > 0.7 * line["prompt_tokens"] for line in shared)

    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0 and "0 of 6 runs to make" in again.stderr
    report = [sys.executable, "-m", "bench_serving.report", str(out)]
    subprocess.run(report, cwd=ROOT, check=True, timeout=120)
    assert {"throughput-cold.svg", "interactivity-cold.svg", "hit-rate.svg"} <= {
        x.name for x in out.glob("*.svg")
    }
    assert "### Where ours is worst" in (out / "report.md").read_text()
    for path in out.rglob("*"):
        if path.is_file():
            assert not re.search(rf"/root\b|/tmp\b|/home\b|{re.escape(str(ROOT))}", path.read_text()), path
