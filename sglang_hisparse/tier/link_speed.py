"""How fast the link between host and GPU is: page copies both ways, and the gather of random rows by resolve.

`python -m sglang_hisparse.tier.link_speed` measures every visible GPU for about a second, takes about 0.5 GiB of its
memory and 2 GiB of pinned host memory, and prints one JSON list. `sglang-hisparse check` runs it as a process of its
own, so that nothing of CUDA stays behind.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from sglang_hisparse.kernels.resolve import resolve
from sglang_hisparse.tier.host_pool import HostPool
from sglang_hisparse.tier.layout import PAGE, Group, HotTables, Plane

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Load:
    """What is moved. The defaults are those of a layer of GLM-5.2 in FP8: rows of 656 B, top-k 2,048."""

    copy_bytes: int = 1 << 28
    host_bytes: int = 2 * GIB
    requests: int = 16
    top_k: int = 2048
    row_bytes: int = 656
    seconds: float = 0.3


@dataclass(frozen=True, slots=True)
class Speed:
    """GB/s (1e9 bytes). `gather` is None where the kernel does not run: `error` says why."""

    device: str
    to_device: float
    to_host: float
    gather: float | None
    gather_row_bytes: int
    error: str = ""


def measure(device: torch.device, load: Load) -> Speed:
    """Copies and gathers on `device`, each for about `load.seconds`. Allocates and frees what it needs."""
    to_device, to_host = copy_speed(device, load)
    gather, error = None, ""
    try:
        gather = gather_speed(device, load)
    except Exception as problem:  # no nvcc, no memory, a kernel that does not build: all are findings here
        error = f"{type(problem).__name__}: {problem}".strip()[-400:]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return Speed(name, to_device, to_host, gather, load.row_bytes, error)


def copy_speed(device: torch.device, load: Load) -> tuple[float, float]:
    """(host to device, device to host) with the copy engine, from and to pinned memory."""
    host = torch.empty(load.copy_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = torch.empty(load.copy_bytes, dtype=torch.uint8, device=device)
    rates = []
    for target, source in ((there, host), (host, there)):
        taken, count = _repeat(device, load.seconds, partial(target.copy_, source, non_blocking=True))
        rates.append(count * load.copy_bytes / taken / 1e9)
    return rates[0], rates[1]


def gather_speed(device: torch.device, load: Load) -> float:
    """Random rows of a large host pool, fetched by resolve: a decode step in which every selection misses."""
    requests, k = load.requests, -(-load.top_k // PAGE) * PAGE
    pages = max(2, load.host_bytes // (PAGE * load.row_bytes))
    rows = torch.empty((requests * k + PAGE, load.row_bytes), dtype=torch.uint8, device=device)
    pool = HostPool(pages, [load.row_bytes], device)
    try:
        group = Group(0, (Plane(0, "kv", rows, pool.buffers[0]),))
        tables = HotTables.create(pages, requests, 1, requests, k, device)
        tables.page_map[1:] = -2 - torch.arange(pages, dtype=torch.int32, device=device)
        tables.hot_index.copy_(torch.arange(requests))
        tables.hot_rows.copy_(PAGE + torch.arange(requests * k).view(requests, k))
        tables.hot_len.fill_(k)
        request = torch.arange(requests, device=device)
        stats = torch.zeros(4, dtype=torch.int64, device=device)
        shape, slots = (requests, load.top_k), (PAGE, (pages + 1) * PAGE)
        selections = [torch.randint(*slots, shape, dtype=torch.int32, device=device) for _ in range(8)]
        turn, out = itertools.cycle(selections), torch.empty_like(selections[0])

        def step() -> None:
            resolve(tables, group, next(turn), request, 1, out, stats)

        step()  # builds the kernel
        _wait(device)
        taken, count = _repeat(device, load.seconds, step)
        missed = int(stats[2]) / (count + 2)  # a step, the two untimed ones included
        return missed * count * load.row_bytes / taken / 1e9
    finally:
        _wait(device)
        pool.close()


def _repeat(device: torch.device, seconds: float, step: Callable[[], Any]) -> tuple[float, int]:
    """Run `step` for at least `seconds`: (seconds taken, how often). One call before that is not timed."""
    step()
    _wait(device)
    began, count = time.perf_counter(), 0
    while True:
        for _ in range(4):
            step()
        _wait(device)
        count += 4
        taken = time.perf_counter() - began
        if taken >= seconds:
            return taken, count


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Measure every visible GPU and print the JSON list."""
    found = []
    for index in range(torch.cuda.device_count()):
        with torch.cuda.device(index):
            found.append(asdict(measure(torch.device("cuda", index), Load())))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
