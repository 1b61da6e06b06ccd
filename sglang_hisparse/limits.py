"""How much host memory this process may take: the machine, its cgroup, the locked-memory limit."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Limit:
    """`free_gib` could be taken now under the limit called `name`."""

    name: str
    free_gib: float


def _meminfo(root: Path) -> Iterator[Limit]:
    text = (root / "proc/meminfo").read_text()
    if found := re.search(r"^MemAvailable:\s+(\d+) kB", text, re.M):
        yield Limit("available RAM of the machine", int(found[1]) * 1024 / GIB)


def _cgroup(root: Path) -> Iterator[Limit]:
    for limit_file, use_file in (
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, use = root / limit_file, root / use_file
        if limit.exists() and use.exists() and (text := limit.read_text().strip()) != "max":
            most = int(text)
            if most < 1 << 60:
                yield Limit(f"cgroup limit /{limit_file}", (most - int(use.read_text())) / GIB)


def host_limits(root: Path = Path("/"), locked: int | None = None) -> list[Limit]:
    """Every limit that applies, tightest first. `locked` is RLIMIT_MEMLOCK in bytes (None: ask the system).

    Locked memory binds only a process that is neither root nor has CAP_IPC_LOCK, and the CUDA driver's pinned
    pages do not count against it on the hosts seen; it is listed so that a failed registration can name it.
    """
    limits = [*_meminfo(root), *_cgroup(root)]
    if locked is None:
        locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if locked not in (resource.RLIM_INFINITY, -1):
        limits.append(Limit("locked memory (ulimit -l)", locked / GIB))
    return sorted(limits, key=lambda limit: limit.free_gib)


def check_host_pool(wanted_gib: float, ranks: int, limits: list[Limit], keep_gib: float = 2.0) -> None:
    """ValueError where `ranks` pools of `wanted_gib` GiB do not fit under every limit but locked memory."""
    for limit in limits:
        if limit.name.startswith("locked memory"):
            continue
        most = max(0.0, (limit.free_gib - keep_gib) / ranks)
        if wanted_gib > most:
            raise ValueError(
                f"host_pool_gib {wanted_gib:g} x {ranks} rank(s) of this host is more than the {limit.name} leaves: "
                f"{limit.free_gib:.1f} GiB, of which {keep_gib:g} GiB stay free. "
                f"A host_pool_gib that fits: {int(most * 10) / 10:g}"
            )
