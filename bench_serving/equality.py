"""Same tokens and logprobs, bit for bit: stock, resident, and the host tier at every spill rate.

    python -m bench_serving.equality MODEL [--dtype bf16] [--pressure] --out FILE.jsonl

Every server gets the same requests in the same schedule: one call carries all prompts, so that the scheduler sees
them at once. Free device pages are shuffled, so that rows are not in the order of slots. Selections are sorted on all
sides (SGLANG_HISPARSE_TEST_SORT): stock's top-k kernel writes them in an order that varies from run to run, so that
stock differs from itself (results/ has such a run). Differences are counted per request; exit 1 where there are any.

The tier's servers also compare every row that decode reads with what was written to its slot, and a sample of what
prefill reads (SGLANG_HISPARSE_TEST_READS). At the end a spilled page is damaged, which that comparison must notice.

With `--pressure` the runs are a resident server and one with a quarter of its device pool, at 8 and at 32 concurrent
requests of 4K to 32K tokens. There the two admit requests at different times, batches form differently, and a GPU
rounds differently with them: outputs are reported, and what must hold is that no row differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench_serving import tiny_models
from bench_serving.prompts import random_prompts
from bench_serving.serving import Answer, Server

ARGS = {
    "bf16": ["--kv-cache-dtype", "bfloat16", "--dsa-prefill-backend", "flashmla_sparse"],
    "fp8": ["--kv-cache-dtype", "fp8_e4m3", "--dsa-prefill-backend", "flashmla_kv"],
}
DECODE = {"bf16": "flashmla_sparse", "fp8": "flashmla_kv"}
COMMON = [
    "--page-size",
    "64",
    "--disable-prefill-cuda-graph",
    "--skip-tokenizer-init",
    "--skip-server-warmup",
]
ENV = {
    "SGLANG_HISPARSE": "1",
    "SGLANG_HISPARSE_TEST": "1",
    "SGLANG_HISPARSE_TEST_SORT": "1",
    "SGLANG_HISPARSE_TEST_READS": "1",
}

Line = dict[str, Any]


def lengths(count: int, low: int, high: int) -> list[int]:
    """`count` prompt lengths spread evenly from `low` to `high`."""
    return [low + (high - low) * index // max(1, count - 1) for index in range(count)]


def compare(run: str, got: list[Answer], want: list[Answer]) -> Line:
    """One result line."""
    pairs = list(zip(got, want, strict=True))
    differences = [abs(a - b) for g, w in pairs for a, b in zip(g.logprobs, w.logprobs, strict=False)]
    return {
        "run": run,
        "requests": len(got),
        "same_tokens": sum(g.tokens == w.tokens for g, w in pairs),
        "same_logprobs": sum(g.logprobs == w.logprobs for g, w in pairs),
        "worst_logprob_difference": max(differences, default=0.0),
        "distinct_tokens": len({token for g in got for token in g.tokens}),
        "cached_tokens": sum(g.cached_tokens for g in got),
        "retractions": sum(g.retractions for g in got),
    }


@contextmanager
def both(*servers: Server) -> Iterator[None]:
    """Start all at once (imports and graph capture take a minute each); end all."""
    failures: list[BaseException] = []

    def start(server: Server) -> None:
        try:
            server.start()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start, args=(server,)) for server in servers]
    try:
        for thread in threads:
            thread.start()
            time.sleep(1)  # two servers that pick ports in the same moment may pick the same
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        yield
    finally:
        for server in servers:
            server.close()


def equality(a: argparse.Namespace) -> list[Line]:
    """Stock against the tier at 0, 50 and 100 % forced spill, cold and with prefix hits."""
    prompts = random_prompts(lengths(8, 1000, 6500), shared=3000)
    args = [*a.args, "--max-total-tokens", "131072"]
    stock = Server(a.model, args, env=ENV, log_path=a.log("stock"), limit_s=a.limit)
    options = {"host_pool_gib": 2.0, **a.config}
    ours = Server(a.model, args, options, env=ENV, log_path=a.log("ours"), limit_s=a.limit)
    lines: list[Line] = []
    with both(stock, ours):
        want, again = (stock.generate(prompts, a.tokens) for _ in range(2))
        stock.flush()
        lines.append(compare("stock, against itself", stock.generate(prompts, a.tokens), want))
        for share in (0.0, 0.5, 1.0):
            ours.flush()
            ours.change(hisparse_force_spill=share, hisparse_shuffle=7)
            for name, expected in (("", want), (", prefix hits", again)):
                got = ours.generate(prompts, a.tokens)
                lines.append(compare(f"tier, {share:.0%} spilled{name}", got, expected) | state(ours))
        before = lines[-1]["rows_different"]
        ours.change(hisparse_damage_page=0)
        ours.generate(prompts, a.tokens)
        noticed = state(ours)["rows_different"] - before
        lines.append({"run": "a spilled page damaged on purpose", "damaged_rows_noticed": noticed})
    return lines


def state(server: Server) -> Line:
    """The tier's counters and the rows that it compared."""
    tier = server.hisparse()
    return {**tier["counters"], **tier["read_check"]}


def passed(line: Line, pressure: bool) -> bool:
    """Whether a line shows what it must."""
    if "damaged_rows_noticed" in line:
        return bool(line["damaged_rows_noticed"] > 0)
    rows_same = line.get("rows_different", 0) == 0 and line.get("rows_compared", 1) > 0
    outputs_same = line["same_tokens"] == line["requests"] == line["same_logprobs"]
    return rows_same and (outputs_same or pressure)


def pressure(a: argparse.Namespace) -> list[Line]:
    """A device pool of a quarter against one that holds everything."""
    total = sum(length + a.tokens + 64 for length in lengths(32, 4096, 32768)) + 4096
    quarter = total // 4 // 64 * 64

    def server(name: str, tokens: int, gib: float) -> Server:
        options = {"host_pool_gib": gib, **a.config}
        args = [*a.args, "--max-total-tokens", str(tokens)]
        return Server(a.model, args, options, env=ENV, log_path=a.log(name), limit_s=a.limit)

    servers = {"resident": server("resident", total, 0.5), "quarter pool": server("quarter", quarter, 8.0)}
    lines: list[Line] = []
    with both(*servers.values()):
        for count in (8, 32):
            prompts = random_prompts(lengths(count, 4096, 32768), shared=4096)
            want: list[Answer] | None = None
            for name, running in servers.items():
                running.flush()
                began = time.monotonic()
                got = running.generate(prompts, a.tokens)
                seconds = {"seconds": round(time.monotonic() - began, 1)}
                want = want or got
                lines.append(compare(f"{count} requests, {name}", got, want) | seconds | state(running))
    return lines


def show(name: str, line: Line) -> str:
    """A result line for a person."""
    if "damaged_rows_noticed" in line:
        return f"{name}: {line['run']}: noticed in {line['damaged_rows_noticed']} rows read"
    counts = ["selected_hot", "selected_missed", "pages_spilled", "pages_restored", "retractions", "seconds"]
    counts += ["rows_compared", "rows_different"]
    seen = ", ".join(f"{key} {line[key]}" for key in counts if key in line)
    return (
        f"{name}: {line['run']}: tokens {line['same_tokens']}/{line['requests']}, logprobs "
        f"{line['same_logprobs']}/{line['requests']}, worst {line['worst_logprob_difference']:.1e}, "
        f"distinct tokens {line['distinct_tokens']}; {seen}"
    )


def main(argv: list[str] | None = None) -> int:
    """Run one comparison and write its lines."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="name of a tiny model, or a folder")
    parser.add_argument("--dtype", choices=sorted(ARGS), default="bf16")
    parser.add_argument("--pressure", action="store_true")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--limit", type=float, default=400, help="seconds that a server may take to start")
    parser.add_argument("--config", type=json.loads, default={}, help="more --hisparse-config keys, JSON")
    parser.add_argument(
        "--arg", action="append", default=[], help="one more server argument; may be repeated"
    )
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(argv)
    a.out.parent.mkdir(parents=True, exist_ok=True)
    a.log = lambda name: a.out.parent / f"{a.out.stem}-{name}.log"
    if not Path(a.model).is_dir():
        a.model = str(tiny_models.ensure(a.model))
    a.args = [*ARGS[a.dtype], "--dsa-decode-backend", DECODE[a.dtype], *COMMON]
    a.args += ["--cuda-graph-max-bs-decode", "32", "--mem-fraction-static", "0.85", *a.arg]
    lines = (pressure if a.pressure else equality)(a)
    command = ["python", "-m", "bench_serving.equality", *(argv or sys.argv[1:])]
    with a.out.open("w") as file:
        for line in ({"command": command}, *lines):
            file.write(json.dumps(line) + "\n")
    for line in lines:
        print(show(a.out.stem, line), flush=True)
    return 0 if all(passed(line, a.pressure) for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
