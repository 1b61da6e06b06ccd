"""What the host tier does, in one table: `python -m bench_serving.demo`.

The same requests go to three servers, one after the other: one whose device pool holds everything, one with
a quarter of that pool, and one with the same quarter and a host tier. A machine with a GPU serves a tiny
GLM-5.2 (DSA), any other a tiny Qwen3 with Quest on its CPU; both are made here, nothing is downloaded.

Exit status 1 where the tier changed an output. On a GPU stock itself answers some requests in more than one
way, so there every row that attention reads is compared with the row that was written, and that decides.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .prompts import random_prompts
from .serving import CPU_ARGUMENTS, Answer, Server
from .tiny_models import ensure

MIB = 1 << 20


@dataclass(frozen=True)
class Plan:
    """What is served and asked. `pool` is the number of tokens of a device pool that holds everything."""

    model: str
    args: tuple[str, ...]
    options: dict[str, Any]
    prompts: list[list[int]]
    new_tokens: int
    pool: int
    host_pool_gib: float
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class Run:
    """One server's results: answers in the order of the prompts, seconds they took, the tier's counters, and
    `rows_compared` and `rows_different` of what attention read, where that was checked."""

    name: str
    answers: list[Answer]
    seconds: float
    counters: dict[str, int] = field(default_factory=dict)
    reads: dict[str, int] = field(default_factory=dict)


def plan_for(cuda: bool, requests: int, new_tokens: int) -> Plan:
    """Half of the prompts share three quarters of their length. On a GPU they are four times as long."""
    length = 16_000 if cuda else 4_000
    prompts = random_prompts([length + 7 * i for i in range(requests)], shared=length * 3 // 4)
    pool = sum(-(-(len(prompt) + new_tokens) // 64) * 64 for prompt in prompts)
    common = ("--skip-tokenizer-init", "--skip-server-warmup", "--page-size", "64")
    if cuda:
        # Stock's top-k writes a selection in an order that varies from run to run; attention sums in that order.
        dsa = ("--kv-cache-dtype", "bfloat16")
        env = {"SGLANG_HISPARSE_TEST_SORT": "1", "SGLANG_HISPARSE_TEST_READS": "1"}
        return Plan("glm52-tiny", (*common, *dsa), {}, prompts, new_tokens, pool, host_pool_gib=8, env=env)
    quest = {"selector": "quest", "top_k": 512, "recent_tokens": 128}
    return Plan("qwen3-tiny", (*common, *CPU_ARGUMENTS), quest, prompts, new_tokens, pool, host_pool_gib=1)


def has_cuda() -> bool:
    """Whether torch sees a GPU."""
    import torch

    return torch.cuda.is_available()


class Progress:
    """Lines with the seconds since the start; on a terminal, what a server does overwrites itself."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str, end: str = "\n") -> None:
        """One line to stderr; `end` "" leaves the cursor at its start, for the next to overwrite."""
        stamp = f"[{time.monotonic() - self._began:4.0f} s] "
        erase = "\r\033[K" if sys.stderr.isatty() else ""
        print(f"{erase}{stamp}{text}", end=end, file=sys.stderr, flush=True)

    def follow(self, work: Callable[[], None], state: Callable[[], str]) -> None:
        """Run `work` in a thread and show `state()` once a second (without a terminal, every ten seconds)."""
        failure: list[BaseException] = []

        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        terminal = sys.stderr.isatty()
        while thread.is_alive():
            thread.join(1.0 if terminal else 10.0)
            if thread.is_alive():
                self.say(f"  {state()}", end="" if terminal else "\n")
        if failure:
            raise failure[0]


def batch_line(log: str) -> str:
    """The last batch that a server's log names, in a few words."""
    found = re.findall(
        r"(Prefill|Decode) batch.*?token usage: ([\d.]+).*?#running-req: (\d+).*?#queue-req: (\d+)", log
    )
    found += re.findall(
        r"(Decode) batch, #running-req: (\d+).*?token usage: ([\d.]+).*?#queue-req: (\d+)", log
    )[-1:]
    if not found:
        return "waiting for the first batch"
    phase, one, two, queued = found[-1]
    running, usage = (one, two) if phase == "Decode" else (two, one)
    return f"{phase.lower()}: {running} requests run, {queued} wait, {float(usage):.0%} of the pool is in use"


def measure(plan: Plan, name: str, pool: int, host_pool_gib: float, logs: Path, progress: Progress) -> Run:
    """Start a server with a device pool of `pool` tokens, send every request at once, and end it."""
    progress.say(f"{name}: starting a server with a device pool of {pool:,} tokens")
    log = logs / f"{name.replace(' ', '-').replace('+', 'and')}.log"
    options = {"host_pool_gib": host_pool_gib, **plan.options}
    answers: list[Answer] = []
    with Server(
        ensure(plan.model), [*plan.args, "--max-total-tokens", str(pool)], options, env=plan.env, log_path=log
    ) as server:
        progress.say(f"{name}: {len(plan.prompts)} requests sent")
        server.generate([[259, 260, 261]], 2)  # the first request of a server pays for its lazy start
        began = time.monotonic()
        progress.follow(
            lambda: answers.extend(server.generate(plan.prompts, plan.new_tokens)),
            lambda: batch_line(server.log()),
        )
        seconds = time.monotonic() - began
        state = server.hisparse()
        run = Run(name, answers, seconds, state.get("counters") or {}, state.get("read_check") or {})
    progress.say(f"{name}: done in {seconds:.0f} s")
    return run


def identical(run: Run, first: Run) -> tuple[int, int]:
    """Requests of `run` whose (tokens, logprobs) equal those of `first`, bit for bit."""
    pairs = list(zip(run.answers, first.answers, strict=True))
    return sum(a.tokens == b.tokens for a, b in pairs), sum(a.logprobs == b.logprobs for a, b in pairs)


def _joined(counters: dict[str, int], names: tuple[str, ...], scale: float = 1.0, digits: int = 0) -> str:
    """The counters `names` over `scale`, with slashes; "-" for one that the server does not have."""
    return " / ".join(f"{counters[n] / scale:,.{digits}f}" if n in counters else "-" for n in names)


def table(runs: list[Run]) -> str:
    """The runs side by side; the first is what outputs are compared with."""
    rows: list[tuple[str, list[str]]] = [("", [run.name for run in runs])]

    def row(title: str, cell: Callable[[Run], str]) -> None:
        rows.append((title, [cell(run) for run in runs]))

    def selections(run: Run) -> str:
        names = ("selected_resident", "selected_hot", "selected_missed")
        total = sum(run.counters.get(name, 0) for name in names)
        return _joined(run.counters, names, total / 100, 1) if total else "-"

    row("running requests at most", lambda run: _joined(run.counters, ("max_running_requests",)))
    row("retractions", lambda run: str(sum(answer.retractions for answer in run.answers)))
    row(
        "output tokens a second",
        lambda run: f"{sum(len(answer.tokens) for answer in run.answers) / run.seconds:.1f}",
    )
    row("prefix-cache hit tokens", lambda run: f"{sum(answer.cached_tokens for answer in run.answers):,}")
    pages = ("pages_cleaned", "pages_spilled", "pages_restored")
    row("pages cleaned / spilled / restored", lambda run: _joined(run.counters, pages))
    row("selections resident / hot / missed, %", selections)
    row(
        "MiB to host / to device",
        lambda run: _joined(run.counters, ("bytes_to_host", "bytes_to_device"), MIB, 1),
    )
    if any(run.reads for run in runs):
        names = ("rows_compared", "rows_different")
        row("rows that attention read / of them wrong", lambda run: _joined(run.reads, names))
    row("outputs identical to the first run", lambda run: f"{identical(run, runs[0])[0]}/{len(run.answers)}")
    row("  and their logprobs, bit for bit", lambda run: f"{identical(run, runs[0])[1]}/{len(run.answers)}")
    widths = [max(len(line[1][i]) for line in rows) for i in range(len(runs))]
    title = max(len(line[0]) for line in rows)
    shown = [
        "  ".join(
            (head.ljust(title), *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))
        )
        for head, cells in rows
    ]
    shown.insert(1, "-" * len(shown[0]))
    return "\n".join(shown)


def verdict(runs: list[Run]) -> str:
    """What differs from the first run, or the empty string.

    A retracted request is left out: SGLang computes it anew by prefill, dense where decode is sparse. Where rows were
    checked as attention read them, that decides.
    """
    if any(run.reads for run in runs):
        for run in runs:
            if not run.reads.get("rows_compared"):
                return f"{run.name}: no row that attention read was compared"
            if run.reads["rows_different"]:
                return f"{run.name}: {run.reads['rows_different']:,} rows that attention read are not what was written"
        return ""
    for run in runs[1:]:
        for place, (answer, want) in enumerate(zip(run.answers, runs[0].answers, strict=True)):
            if answer.tokens != want.tokens and not answer.retractions and not want.retractions:
                return f"{run.name}: the output of request {place} differs from the first run's"
    return ""


def main(argv: list[str] | None = None) -> int:
    """Run the three servers and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--cpu", action="store_true", help="use the CPU although there is a GPU")
    parser.add_argument("--logs", type=Path, help="folder for the servers' logs (default: a temporary one)")
    options = parser.parse_args(argv)
    plan = plan_for(has_cuda() and not options.cpu, options.requests, options.new_tokens)
    logs = options.logs or Path(tempfile.mkdtemp(prefix="hisparse-demo-"))
    logs.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    length = sum(map(len, plan.prompts)) // len(plan.prompts)
    progress.say(f"{plan.model}, {len(plan.prompts)} requests of {length:,} tokens; logs in {logs}")
    quarter = plan.pool // 4 // 64 * 64
    runs = [
        measure(plan, "all resident", plan.pool, 0, logs, progress),
        measure(plan, "quarter pool", quarter, 0, logs, progress),
        measure(plan, "quarter pool + host", quarter, plan.host_pool_gib, logs, progress),
    ]
    print(table(runs))
    print("(Random weights have no locality: a trained model finds far more of its selections hot.)")
    if wrong := verdict(runs):
        print(f"FAILED: {wrong}; logs in {logs}", file=sys.stderr)
        return 1
    if any(identical(run, runs[0])[0] < len(run.answers) for run in runs) and runs[0].reads:
        print(
            "(Outputs that differ: stock answers some requests in more than one way here. Every row read was right.)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
