"""Host memory for pools that a GPU reads at random: in huge pages where the kernel gives them."""

from __future__ import annotations

import contextlib
import mmap
import re
from pathlib import Path

import torch

HUGE_PAGE = 2 << 20


def host_bytes(size: int, huge: bool = True) -> torch.Tensor:
    """Zeros, uint8 [size], at a multiple of 2 MiB; pageable, released with the last tensor that shares it.

    With `huge` the kernel is asked for pages of 2 MiB instead of 4 KiB: fewer faults when it is touched or pinned, and
    fewer addresses to translate. It may decline (/sys/kernel/mm/transparent_hugepage/enabled says "never", or memory
    is in pieces); then the pages are small and everything else is the same.
    """
    mapping = mmap.mmap(-1, size + HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    first = -torch.frombuffer(mapping, dtype=torch.uint8).data_ptr() % HUGE_PAGE
    # Not a slice of the whole: torch calls a tensor pinned if the first byte of its storage is. It keeps the mapping.
    return torch.frombuffer(mapping, dtype=torch.uint8, offset=first, count=size)


def huge_bytes(smaps: Path = Path("/proc/self/smaps_rollup")) -> int:
    """Bytes of this process's memory that are in huge pages now; 0 where the kernel does not say."""
    with contextlib.suppress(OSError):
        found = re.search(r"^AnonHugePages:\s+(\d+) kB", smaps.read_text(), re.MULTILINE)
        if found:
            return int(found.group(1)) << 10
    return 0
