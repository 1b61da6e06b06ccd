"""Where a decode step's time goes, by kernel: `python -m bench_serving.step_profile CONFIG.toml --out DIR`.

    --only SYSTEM     these systems only; may be repeated (default: all of the configuration, one after the other)
    --at N            requests at once; may be repeated (default: 1 and 8)
    --prompt-tokens N length of the random prompts (default 32,768)
    --steps N         decode steps to record (default 24)

Recording makes a step longer (every kernel of a graph is time-stamped), so compare columns, not their sum with a
benchmark's TPOT. DIR gets one `SYSTEM-N.txt` a recording and the profiler's own trace beside it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import document, parse, slug
from .models import resolve
from .points import points, server_for
from .prompts import random_prompts
from .serving import Server

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of trace events that keep the GPU busy."""


@dataclass(frozen=True)
class Recording:
    """GPU work of `steps` steps. Times in microseconds a step."""

    steps: int
    step_us: float
    busy_us: float
    """time in which at least one kernel or copy ran"""
    kernels: dict[str, tuple[float, float]]
    """name: launches a step, time a step"""

    @classmethod
    def of(cls, events: Iterable[dict[str, Any]], steps: int) -> Recording:
        """From a trace's events. ValueError where nothing ran on the GPU."""
        work = sorted((e["ts"], e["dur"], e["name"]) for e in events if e.get("cat") in ON_GPU)
        if not work:
            raise ValueError("the trace has no GPU work; was anything running while it was recorded?")
        kernels: dict[str, list[float]] = defaultdict(list)
        busy, covered = 0.0, work[0][0]
        for start, length, name in work:
            kernels[short_name(name)].append(length)
            busy += max(0.0, start + length - max(start, covered))
            covered = max(covered, start + length)
        return cls(
            steps,
            (covered - work[0][0]) / steps,
            busy / steps,
            {name: (len(found) / steps, sum(found) / steps) for name, found in kernels.items()},
        )

    def table(self, count: int = 60) -> str:
        """For people: the kernels that take most, in order."""
        ordered = sorted(self.kernels.items(), key=lambda item: -item[1][1])
        lines = [f"{self.step_us:9.1f} us a step, GPU busy {self.busy_us:.1f}; {self.steps} steps"]
        lines += [f"{us:9.1f} us {launches:7.1f} x  {name}" for name, (launches, us) in ordered[:count]]
        return "\n".join(lines)


def short_name(name: str) -> str:
    """A kernel's name without return type, arguments and most template parameters."""
    name = re.sub(r"^void ", "", name)
    name = re.sub(r"\((?!anonymous).*$", "", name)
    return name if len(name) <= 110 else name[:70] + " ... " + name[-35:]


def record(server: Server, at: int, prompt_tokens: int, steps: int, vocab: int, out: Path) -> Recording:
    """Decode `at` requests, record `steps` of their steps into `out`."""
    prompts = random_prompts([prompt_tokens] * at, vocab, seed=at)
    server.flush()
    before, logged = set(out.iterdir()), len(server.log())
    call = threading.Thread(target=server.generate, args=(prompts, 1024))
    call.start()
    while running(server.log()[logged:]) < at:
        time.sleep(0.2)
    time.sleep(0.5)
    server.call("/start_profile", {"output_dir": str(out), "num_steps": steps, "activities": ["GPU"]})
    call.join()
    traces = sorted(path for path in set(out.iterdir()) - before if path.name.endswith(".json.gz"))
    with gzip.open(traces[0]) as text:
        return Recording.of(json.load(text)["traceEvents"], steps)


def running(log: str) -> int:
    """Requests that decode, by the last line that the scheduler logged about decoding."""
    found = re.findall(r"Decode batch.*?#running-req: (\d+)", log)
    return int(found[-1]) if found else 0


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="bench_serving.step_profile", description=__doc__.split("\n")[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[], metavar="SYSTEM")
    parser.add_argument("--at", action="append", type=int, default=[], metavar="N")
    parser.add_argument("--prompt-tokens", type=int, default=32768, metavar="N")
    parser.add_argument("--steps", type=int, default=24, metavar="N")
    options = parser.parse_args(argv)
    config = parse(document(options.config))
    model = resolve(config.model, config.layers)
    options.out.mkdir(parents=True, exist_ok=True)
    for system in {point.system.name: point.system for point in points(config, options.only)}.values():
        server = server_for(config, model, system, options.out / f"{system.slug}.log")
        with server:
            for at in options.at or (1, 8):
                found = record(server, at, options.prompt_tokens, options.steps, model.vocab, options.out)
                (options.out / f"{slug(system.name)}-{at}.txt").write_text(found.table(200) + "\n")
                print(f"== {system.name}, {at} at once\n{found.table()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
