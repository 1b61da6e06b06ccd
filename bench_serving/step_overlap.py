"""What kernels of a decode step lose while rows are fetched beside them, from a trace of `step_profile`:
`python -m bench_serving.step_overlap TRACE.json.gz`.

Prints a timeline of one step (resolve, fetches from the list, attention), and for every kernel that ran both alone and
beside a fetch how long it took each way (medians). The first fetch of a step may be the leader's, beside which nothing
runs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .step_profile import ON_GPU, short_name

FETCHES = ("hisparse::listed_kernel",)
"""Kernels beside which others are looked at."""
SHOWN = ("hisparse::resolve_kernel", "hisparse::listed_kernel", "splitkv_mla")
"""Parts of names that the timeline shows; a step is counted by the first."""
ALONE, BESIDE = 0.02, 0.9
"""Shares of a kernel's time in which a fetch ran: below the first it was alone, above the second beside one."""

Event = dict[str, Any]


@dataclass(frozen=True)
class Overlap:
    """A kernel in one grid. Microseconds of one launch, and launches of both kinds in the trace."""

    name: str
    grid: str
    alone_us: float
    beside_us: float
    alone: int
    beside: int

    @property
    def lost_us(self) -> float:
        """In the whole trace."""
        return (self.beside_us - self.alone_us) * self.beside


def on_gpu(trace: Path) -> list[Event]:
    """Kernels and copies of a trace in the order of their starts."""
    with gzip.open(trace) as text:
        events = json.load(text)["traceEvents"]
    return sorted((e for e in events if e.get("cat") in ON_GPU), key=lambda e: float(e["ts"]))


def overlaps(events: Sequence[Event]) -> list[Overlap]:
    """Kernels seen alone and beside a fetch, those that lose most first."""
    fetches = [(e["ts"], e["ts"] + e["dur"]) for e in events if short_name(e["name"]).startswith(FETCHES)]
    times: dict[tuple[str, str], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for event in events:
        name, start, length = short_name(event["name"]), event["ts"], event["dur"]
        if name.startswith("hisparse::") or not length:
            continue
        inside = sum(max(0.0, min(start + length, b) - max(start, a)) for a, b in fetches) / length
        if inside < ALONE or inside > BESIDE:
            key = name, str(event.get("args", {}).get("grid", ""))
            times[key][inside > BESIDE].append(length)
    found = [
        Overlap(name, grid, statistics.median(alone), statistics.median(beside), len(alone), len(beside))
        for (name, grid), (alone, beside) in times.items()
        if alone and beside
    ]
    return sorted(found, key=lambda overlap: -overlap.lost_us)


def timeline(events: Sequence[Event], steps: int) -> list[str]:
    """From a resolve in the middle of a trace of `steps` steps to the same one a step later: microseconds from its
    start on, and lengths. ValueError where steps have no resolve."""
    starts = [i for i, e in enumerate(events) if SHOWN[0] in e["name"]]
    leaders = len(starts) // steps
    if not leaders or len(starts) <= leaders:
        raise ValueError(
            f"{len(starts)} resolve launches in {steps} steps: nothing was spilled, or only one was recorded"
        )
    first = (len(starts) - leaders) // 2 // leaders * leaders
    begin, end = starts[first], starts[first + leaders]
    zero = events[begin]["ts"]
    return [
        f"{e['ts'] - zero:9.0f} {e['dur']:6.0f} us  {short_name(e['name'])}"
        for e in events[begin : end + 1]
        if any(part in e["name"] for part in SHOWN)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="bench_serving.step_overlap", description=__doc__.split("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--steps", type=int, default=24, help="steps recorded, as step_profile was told (24)")
    options = parser.parse_args(argv)
    events = on_gpu(options.trace)
    print("\n".join(timeline(events, options.steps)))
    print("\nus alone   beside  launches      kernel, grid")
    for o in overlaps(events)[:25]:
        print(f"{o.alone_us:8.1f} {o.beside_us:8.1f} {o.alone:5} {o.beside:5}  {o.name} {o.grid}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
