"""What all sections share: the device, the timer, the host buffer, sizes, and the lines that go to --out."""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .pool import GIB, HostBytes
from .timer import Timer, Times


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the measurements; `SMALL` is for rehearsals. Pools: name in GiB -> bytes."""

    k: int = 2048
    hot: int = 4096
    pages: int = 2048  # of a request: 128K tokens
    pools: dict[float, int] = field(default_factory=lambda: {0.3: 3 * GIB // 10, 6: 6 * GIB, 24: 24 * GIB})
    copy: int = GIB
    batches: tuple[int, ...] = (1, 4, 16, 64)
    blocks: tuple[int, ...] = (8, 16, 32, 64, 132)

    def misses(self, percent: float) -> int:
        return round(self.k * percent / 100)


SMALL = Sizes(
    k=32, hot=64, pages=16, pools={0.3: 3 << 20, 6: 4 << 20, 24: 6 << 20}, copy=1 << 20, batches=(1, 4),
    blocks=(8, 132),
)  # fmt: skip


class Bench:
    """One run. `line` writes and `attempt` survives; every section takes a Bench and nothing else."""

    def __init__(self, device: str, small: bool, out: Path) -> None:
        self.device, self.small = torch.device(device), small
        self.sizes = SMALL if small else Sizes()
        self.started = time.perf_counter()
        self.failures: list[str] = []
        self.timer = Timer(self.device, replays=1 if small else 20)
        self._out = out
        self._file: Path | None = None
        self._pool: HostBytes | None = None

    @property
    def pool(self) -> HostBytes:
        if self._pool is None:
            self.say("pinning the host buffer")
            self._pool = HostBytes(max(self.sizes.pools.values()), self.device)
            self.say(f"pinned {len(self._pool.buffer) / GIB:.1f} GiB in {self._pool.pin_seconds:.1f} s")
        return self._pool

    def generator(self, seed: int = 0) -> torch.Generator:
        return torch.Generator(device=self.device).manual_seed(seed)

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.started:6.1f} s] {text}", flush=True)

    def open(self, section: str, command: str) -> None:
        """Lines go to `section`.jsonl from now on; the first says what was run, and on what."""
        self._out.mkdir(parents=True, exist_ok=True)
        self._file = self._out / f"{section}.jsonl"
        self._file.write_text("", encoding="utf-8")
        cuda = self.device.type == "cuda"
        self.line(
            command=command,
            device=torch.cuda.get_device_name(self.device) if cuda else "cpu",
            torch=torch.__version__,
            small=self.small,
            events="in the graph" if self.timer.inside else "around the graph",
        )

    def line(self, **fields: Any) -> None:
        assert self._file is not None, "open a section first"
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")

    def timed(self, times: Times, moved: int, **fields: Any) -> None:
        """A line of one measurement that moved `moved` bytes over the link."""
        speed = {"bytes": moved, "gb_s": round(moved / times.median / 1e3, 2)} if moved else {}
        self.line(**fields, **times.as_dict(), **speed)

    def attempt(self, what: str, step: Callable[..., None], *given: Any, **named: Any) -> bool:
        """Run `step`; a failure is printed and counted, and the rest goes on."""
        try:
            step(*given, **named)
        except Exception as error:
            self.say(f"FAILED: {what}: {error}"[:300])
            if str(error) not in self.failures:
                traceback.print_exc()
            self.failures.append(str(error))
            self.line(failed=what, error=traceback.format_exc()[-2000:])
            return False
        return True


def main(name: str, description: str, sections: Mapping[str, Callable[[Bench], None]]) -> int:
    """Command line of one section, or of several: builds, runs, prints their tables last."""
    from . import prebuild, report

    parser = argparse.ArgumentParser(prog=f"python -m bench_serving.kernels.{name}", description=description)
    parser.add_argument("--out", type=Path, required=True, help="folder for the lines (one .jsonl a section)")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="toy sizes: a rehearsal, not a measurement")
    if len(sections) > 1:
        parser.add_argument("--only", nargs="+", choices=list(sections), default=list(sections))
    given = parser.parse_args()
    bench = Bench(given.device, given.small, given.out)
    command = f"{parser.prog} --out OUT --device {given.device}{' --small' if given.small else ''}"
    chosen: list[str] = getattr(given, "only", list(sections))
    building = prebuild.start(bench, chosen)
    _ = bench.pool
    for section in chosen:
        bench.open(section, command)
        if building is not None:
            bench.attempt("building the kernels", building.finish)
            building = None
        bench.say(f"== {section}")
        bench.attempt(section, sections[section], bench)
    bench.say(f"done, {len(bench.failures)} failures")
    report.show(given.out)
    return 1 if bench.failures else 0
