"""Findings about the link between host and GPUs: its width, and how fast it is.

The speed is measured by a process of its own (`tier/link_speed.py`): a GPU in a bad state then fails that process and
not the check, and no CUDA context stays behind.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from sglang_hisparse.commands.finding import OK, WARN, Finding
from sglang_hisparse.commands.machine import query_gpus

SLOW_GBS = 20.0
"""Copies below this are slower than PCIe 4 x16; PCIe 5 x16 gives about 55."""

LIMIT_S = 300.0
"""Seconds for the measurement, the first build of the kernel included."""

_LANES = "nvidia-smi -q -d PCIE shows its lanes: reseat the card, or ask whoever runs the machine"
_MEASURE = [sys.executable, "-m", "sglang_hisparse.tier.link_speed"]


def widths() -> Iterator[Finding]:
    """PCIe lanes of every GPU that has less than it could. (Its generation drops while idle, so it says nothing.)"""
    for index, now, most in query_gpus("index,pcie.link.width.current,pcie.link.width.max"):
        if now.isdigit() and most.isdigit() and int(now) < int(most):
            yield Finding(f"link GPU {index}", WARN, f"{now} PCIe lanes", f"{most} PCIe lanes", _LANES)


def speeds() -> Iterator[Finding]:
    """Copies both ways and gathers, a second a GPU. Nothing where there is no GPU."""
    if not list(query_gpus("index")):
        return
    if importlib.util.find_spec("torch") is None:
        yield Finding("link", WARN, "not measured: torch is missing", "a measurement", "pip install torch")
        return
    try:
        done = subprocess.run(_MEASURE, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        found: list[dict[str, Any]] = json.loads(done.stdout) if done.returncode == 0 else []
        trouble = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
    except subprocess.TimeoutExpired:
        found, trouble = [], [f"no result within {LIMIT_S:g} s"]
    if not found:
        fix = f"run {' '.join(_MEASURE)} to see why; a server that runs may hold the memory that it needs"
        yield Finding("link", WARN, f"not measured: {trouble[0][-200:]}", "a measurement", fix)
    for index, speed in enumerate(found):
        yield _speed(index, speed)


def _speed(index: int, speed: dict[str, Any]) -> Finding:
    name = f"link GPU {index}"
    text = f"{speed['to_device']:.1f} GB/s to the device, {speed['to_host']:.1f} GB/s back"
    if speed["gather"] is None:
        fix = "the kernels need nvcc and the pinned packages: see the findings above"
        return Finding(name, WARN, f"{text}; gather: {speed['error']}", "a gather that runs", fix)
    text += f", {speed['gather']:.1f} GB/s gathering random rows of {speed['gather_row_bytes']} B"
    if min(speed["to_device"], speed["to_host"]) < SLOW_GBS:
        fix = (
            "run under `numactl --cpunodebind` and `--membind` of the GPU's node; if that changes nothing, "
            + _LANES
        )
        return Finding(name, WARN, text, f"{SLOW_GBS:g} GB/s each way", fix)
    return Finding(name, OK, text)
