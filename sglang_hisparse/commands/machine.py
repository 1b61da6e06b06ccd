"""Findings about the machine: CUDA compiler, GPUs, host memory. Nothing here opens a CUDA context."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sglang_hisparse.commands.finding import BAD, OK, WARN, Finding
from sglang_hisparse.limits import host_limits

_QUERY = "index,name,memory.total,memory.free,compute_cap"
_KEEP_GIB = 2.0


def compiler() -> Finding:
    """The nvcc that SGLang's JIT would use: $CUDA_HOME, $CUDA_PATH, PATH, /usr/local/cuda, in this order."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = str(Path(home, "bin", "nvcc")) if home else shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    text = _output([nvcc, "--version"])
    if text is None:
        fix = "install the CUDA toolkit that torch was built for, and set CUDA_HOME to it"
        status = BAD if shutil.which("nvidia-smi") else WARN
        return Finding("nvcc", status, f"{nvcc} does not run", "nvcc: kernels are compiled at first use", fix)
    release = re.search(r"release ([\d.]+)", text)
    return Finding("nvcc", OK, f"{release[1] if release else 'unknown release'} ({nvcc})")


def gpus() -> Iterator[Finding]:
    """Name, memory and compute capability of every GPU, as nvidia-smi reports them."""
    text = _output(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"])
    rows = [[cell.strip() for cell in line.split(",")] for line in (text or "").splitlines() if line.strip()]
    if not rows:
        found = "nvidia-smi does not run" if text is None else "nvidia-smi lists none"
        fix = "serve on a machine with an NVIDIA GPU; planning and the CPU tests need none"
        yield Finding("GPU", WARN, found, "an NVIDIA GPU and its driver", fix)
    for index, name, total, free, capability in rows:
        memory = f"{_gib(free)} of {_gib(total)} GiB free"
        yield Finding(f"GPU {index}", OK, f"{name}, {memory}, compute capability {capability}")


def host_memory() -> Iterator[Finding]:
    """Every limit on host memory, tightest first, and the largest host pool that fits under it."""
    limits = host_limits()
    for limit in limits:
        if limit.name.startswith("locked memory"):
            yield Finding("locked memory", OK, f"{limit.free_gib:.3g} GiB (ulimit -l), not binding for CUDA")
            continue
        most = max(0.0, limit.free_gib - _KEEP_GIB)
        found = f"{limit.free_gib:.1f} GiB under the {limit.name}"
        if most >= 1:
            yield Finding("host memory", OK, f"{found}: host_pool_gib up to {int(most)} for one rank")
        else:
            fix = "free memory, or raise the container's memory limit (docker run --memory)"
            yield Finding("host memory", WARN, found, f"{_KEEP_GIB + 1:g} GiB for a host pool", fix)
    if not any(limit.name.startswith("locked memory") for limit in limits):
        yield Finding("locked memory", OK, "unlimited (ulimit -l)")


def _gib(mebibytes: str) -> str:
    """nvidia-smi's MiB in GiB; `[N/A]` and the like as they are."""
    return f"{int(mebibytes) / 1024:.1f}" if mebibytes.isdigit() else mebibytes


def _output(command: list[str]) -> str | None:
    """Standard output of a command, None when it is missing, hangs or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
