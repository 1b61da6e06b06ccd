"""Findings about the machine: CUDA compiler, GPUs, host memory, NUMA. Nothing here opens a CUDA context."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sglang_hisparse.commands.finding import BAD, OK, WARN, Finding
from sglang_hisparse.limits import host_limits

_KEEP_GIB = 2.0
_LEAST_CAPABILITY = 9.0


def compiler() -> Finding:
    """The nvcc that SGLang's JIT would use: $CUDA_HOME, $CUDA_PATH, PATH, /usr/local/cuda, in this order."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = str(Path(home, "bin", "nvcc")) if home else shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    text = output([nvcc, "--version"])
    if text is None:
        fix = "install the CUDA toolkit that torch was built for, and set CUDA_HOME to it"
        status = BAD if shutil.which("nvidia-smi") else WARN
        return Finding("nvcc", status, f"{nvcc} does not run", "nvcc: kernels are compiled at first use", fix)
    release = re.search(r"release ([\d.]+)", text)
    return Finding("nvcc", OK, f"{release[1] if release else 'unknown release'} ({nvcc})")


def gpus() -> Iterator[Finding]:
    """Name, memory and compute capability of every GPU, as nvidia-smi reports them."""
    rows = list(query_gpus("index,name,memory.total,memory.free,compute_cap"))
    if not rows:
        found = "nvidia-smi lists none" if shutil.which("nvidia-smi") else "nvidia-smi does not run"
        fix = "serve on a machine with an NVIDIA GPU; planning and the CPU tests need none"
        yield Finding("GPU", WARN, found, "an NVIDIA GPU and its driver", fix)
    for index, name, total, free, capability in rows:
        memory = f"{_gib(free)} of {_gib(total)} GiB free"
        text = f"{name}, {memory}, compute capability {capability}"
        if float(capability) < _LEAST_CAPABILITY:
            fix = "serve on Hopper or newer: SGLang's sparse attention kernels need it"
            yield Finding(f"GPU {index}", WARN, text, f"compute capability {_LEAST_CAPABILITY:g}", fix)
        else:
            yield Finding(f"GPU {index}", OK, text)


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


def numa(root: Path = Path("/")) -> Finding:
    """Memory nodes of the machine, and on which of them each GPU is: a host pool on another node is slower."""
    nodes = sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    if len(nodes) <= 1:
        return Finding("NUMA", OK, "one node")
    sizes = []
    for node in nodes:
        free = re.search(r"MemFree:\s+(\d+) kB", (node / "meminfo").read_text())
        sizes.append(f"{node.name} {int(free[1]) / (1 << 20):.0f} GiB free" if free else node.name)
    text = f"{len(nodes)} nodes: {', '.join(sizes)}"
    homes = [_node_of(root, bus) for _, bus in query_gpus("index,pci.bus_id")]
    if not homes or None in homes:
        return Finding("NUMA", OK, text)
    text += f"; GPUs are on {', '.join(f'node{home}' for home in homes)}"
    if shutil.which("numactl"):
        return Finding("NUMA", OK, f"{text}; SGLang binds every rank with numactl")
    fix = "install numactl: SGLang then binds every rank, and with it its host pool, to its GPU's node"
    return Finding("NUMA", WARN, f"{text}; numactl is missing", "ranks on their GPU's node", fix)


def _node_of(root: Path, bus: str) -> int | None:
    """NUMA node of the PCI device that nvidia-smi calls `00000000:0A:00.0`."""
    domain, _, rest = bus.lower().partition(":")
    path = root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node"
    node = int(path.read_text()) if path.exists() else -1
    return node if node >= 0 else None


def query_gpus(columns: str) -> Iterator[list[str]]:
    """One row a GPU of what nvidia-smi knows; none where it does not run."""
    text = output(["nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader,nounits"])
    for line in (text or "").splitlines():
        if line.strip():
            yield [cell.strip() for cell in line.split(",")]


def _gib(mebibytes: str) -> str:
    """nvidia-smi's MiB in GiB; `[N/A]` and the like as they are."""
    return f"{int(mebibytes) / 1024:.1f}" if mebibytes.isdigit() else mebibytes


def output(command: list[str]) -> str | None:
    """Standard output of a command, None when it is missing, hangs or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
