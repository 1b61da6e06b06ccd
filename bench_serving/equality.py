"""Same tokens and logprobs, bit for bit: stock, resident, and the host tier at every spill rate.

    python -m bench_serving.equality MODEL_DIR --dtype bf16 [--pressure] --out FILE.jsonl

Every server gets the same requests in the same schedule: one call carries all prompts, so that the scheduler sees
them at once. Free device pages are shuffled, so that rows are not in the order of slots. Selections are sorted on all
sides (SGLANG_HISPARSE_TEST_SORT): stock's top-k kernel writes them in an order that varies from run to run, so that
stock differs from itself (results/ has such a run). Differences are counted per request; exit 1 where there are any.
With `--pressure` the runs are a resident server and one with a quarter of its device pool, at 8 and at 32 concurrent
requests of 4K to 32K tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench_serving import tiny_models

ARGS = {
    "bf16": [
        "--kv-cache-dtype",
        "bfloat16",
        "--dsa-prefill-backend",
        "flashmla_sparse",
        "--dsa-decode-backend",
        "flashmla_sparse",
    ],
    "fp8": [
        "--kv-cache-dtype",
        "fp8_e4m3",
        "--dsa-prefill-backend",
        "flashmla_kv",
        "--dsa-decode-backend",
        "flashmla_kv",
    ],
}


def call(port: int, path: str, body: Any = None, limit: float = 900) -> Any:
    """POST `body` (or GET) and parse the JSON answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=limit) as answer:
        text = answer.read().decode()
    return json.loads(text) if text.startswith(("{", "[")) else text


class Server:
    """One server process tree; `config` None is stock SGLang."""

    def __init__(self, model: str, args: list[str], config: dict[str, Any] | None, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        module = "sglang_hisparse.launch_server"  # without a config it runs stock
        extra = [] if config is None else ["--hisparse-config", json.dumps(config)]
        self.command = [
            sys.executable,
            "-m",
            module,
            "--model-path",
            model,
            "--port",
            str(self.port),
            *args,
            *extra,
        ]
        self.log = log
        self._file = log.open("w")
        self._process = subprocess.Popen(
            self.command,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={
                **os.environ,
                "SGLANG_HISPARSE_TEST": "1",
                "SGLANG_HISPARSE_TEST_SORT": "1",
                "SGLANG_HISPARSE": "1",
            },
        )

    def ready(self, seconds: float) -> None:
        """Wait until it serves; RuntimeError with the end of its log where it does not."""
        end = time.time() + seconds
        while time.time() < end:
            if self._process.poll() is not None:
                break
            try:
                call(self.port, "/health", limit=5)
                return
            except OSError:
                time.sleep(1)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])
        self.close()
        raise RuntimeError(f"server did not start: {' '.join(self.command)}\n{tail}")

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._file.close()

    def together(self, prompts: list[list[int]], tokens: int) -> list[dict[str, Any]]:
        """All prompts in one deterministic schedule -> tokens, logprobs and cached tokens of each."""
        answers = call(
            self.port,
            "/generate",
            {
                "input_ids": prompts,
                "return_logprob": True,
                "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
            },
        )
        return [
            {
                "tokens": a["output_ids"],
                "logprobs": [x[0] for x in a["meta_info"]["output_token_logprobs"]],
                "cached": a["meta_info"]["cached_tokens"],
            }
            for a in answers
        ]

    def knob(self, name: str, value: float) -> None:
        """Turn a test knob of the tier (seams/state.py)."""
        done = call(self.port, "/set_internal_state", {"server_args": {f"hisparse_{name}": value}})
        if "true" not in json.dumps(done):
            raise RuntimeError(f"hisparse_{name} {value} was not taken: {done}")

    def counters(self) -> dict[str, Any]:
        state = call(self.port, "/server_info")["internal_states"][0].get("hisparse", {})
        return {**state.get("counters", {}), "pages": state.get("pages", {})}


def prompts_of(count: int, low: int, high: int, vocab: int, seed: int) -> list[list[int]]:
    """Random prompts; every second one shares its first half with the others."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, vocab) for _ in range(high // 2)]
    prompts = []
    for index in range(count):
        length = low + (high - low) * index // max(1, count - 1)
        own = [rng.randrange(3, vocab) for _ in range(length)]
        prompts.append(shared[: length // 2] + own[length // 2 :] if index % 2 else own)
    return prompts


def compare(name: str, got: list[dict[str, Any]], want: list[dict[str, Any]]) -> dict[str, Any]:
    """One result line."""
    same_tokens = sum(g["tokens"] == w["tokens"] for g, w in zip(got, want, strict=True))
    same_bits = sum(g["logprobs"] == w["logprobs"] for g, w in zip(got, want, strict=True))
    worst = max(
        (
            abs(a - b)
            for g, w in zip(got, want, strict=True)
            for a, b in zip(g["logprobs"], w["logprobs"], strict=False)
        ),
        default=0.0,
    )
    return {
        "run": name,
        "requests": len(got),
        "same_tokens": same_tokens,
        "same_logprobs": same_bits,
        "worst_logprob_difference": worst,
        "distinct_tokens": len({t for g in got for t in g["tokens"]}),
        "cached": sum(g["cached"] for g in got),
    }


def equality(a: argparse.Namespace, base: list[str], log: Path) -> list[dict[str, Any]]:
    prompts = prompts_of(a.requests, 1000, 6500, a.vocab, 1)
    base = [*base, "--max-total-tokens", "131072"]
    stock = Server(a.model, base, None, log / f"{a.name}-stock.log")
    ours = Server(a.model, base, {"host_pool_gib": 2.0, **a.config}, log / f"{a.name}-ours.log")
    lines = []
    try:
        stock.ready(a.start_limit)
        want = stock.together(prompts, a.tokens)
        again = stock.together(prompts, a.tokens)
        call(stock.port, "/flush_cache", {})
        lines.append(compare("stock, against itself", stock.together(prompts, a.tokens), want))
        stock.close()
        ours.ready(a.start_limit)
        for share in (0.0, 0.5, 1.0):
            call(ours.port, "/flush_cache", {})
            ours.knob("force_spill", share)
            ours.knob("shuffle", 7)
            lines.append(
                {
                    **compare(f"tier, {share:.0%} spilled", ours.together(prompts, a.tokens), want),
                    **ours.counters(),
                }
            )
            hit = compare(f"tier, {share:.0%} spilled, prefix hits", ours.together(prompts, a.tokens), again)
            lines.append({**hit, **ours.counters()})
    finally:
        stock.close()
        ours.close()
    return lines


def pressure(a: argparse.Namespace, base: list[str], log: Path) -> list[dict[str, Any]]:
    total = sum(len(p) + a.tokens + 64 for p in prompts_of(32, 4096, 32768, a.vocab, 2))
    quarter = total // 4 // 64 * 64
    resident = Server(
        a.model,
        [*base, "--max-total-tokens", str(total + 4096)],
        {"host_pool_gib": 0.5, **a.config},
        log / f"{a.name}-resident.log",
    )
    small = Server(
        a.model,
        [*base, "--max-total-tokens", str(quarter)],
        {"host_pool_gib": 8, **a.config},
        log / f"{a.name}-quarter.log",
    )
    lines = []
    try:
        resident.ready(a.start_limit)
        small.ready(a.start_limit)
        for count in (8, 32):
            prompts = prompts_of(count, 4096, 32768, a.vocab, 2)
            runs = {}
            for name, server in (("resident", resident), ("quarter pool", small)):
                call(server.port, "/flush_cache", {})
                start = time.time()
                runs[name] = server.together(prompts, a.tokens)
                seconds = time.time() - start
                line = compare(f"{count} requests, {name}", runs[name], runs["resident"])
                lines.append({**line, "seconds": round(seconds, 1), **server.counters()})
    finally:
        resident.close()
        small.close()
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="name of a tiny model, or a folder")
    parser.add_argument("--dtype", choices=sorted(ARGS), default="bf16")
    parser.add_argument("--pressure", action="store_true")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--start-limit", type=float, default=400)
    parser.add_argument("--config", type=json.loads, default={}, help="more --hisparse-config keys, JSON")
    parser.add_argument(
        "--arg", action="append", default=[], help="one more server argument; may be repeated"
    )
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(argv)
    a.out.parent.mkdir(parents=True, exist_ok=True)
    if not Path(a.model).is_dir():
        a.model = str(tiny_models.ensure(a.model))
    a.name = a.out.stem
    base = [
        *ARGS[a.dtype],
        "--page-size",
        "64",
        "--disable-prefill-cuda-graph",
        "--skip-tokenizer-init",
        "--skip-server-warmup",
        "--cuda-graph-max-bs-decode",
        "32",
        "--mem-fraction-static",
        "0.85",
        *a.arg,
    ]
    lines = (pressure if a.pressure else equality)(a, base, a.out.parent)
    good = True
    with a.out.open("w") as file:
        file.write(
            json.dumps({"command": ["python", "-m", "bench_serving.equality", *(argv or sys.argv[1:])]})
            + "\n"
        )
        for line in lines:
            good &= line["same_tokens"] == line["requests"] == line["same_logprobs"]
            file.write(json.dumps(line) + "\n")
            print(
                f"{a.name}: {line['run']}: tokens {line['same_tokens']}/{line['requests']}, logprobs "
                f"{line['same_logprobs']}/{line['requests']}, worst {line['worst_logprob_difference']:.2e}, "
                f"distinct {line['distinct_tokens']}, hot {line.get('selected_hot', '-')}, "
                f"missed {line.get('selected_missed', '-')}, spilled {line.get('pages_spilled', '-')}, "
                f"restored {line.get('pages_restored', '-')}, {line.get('seconds', '')}",
                flush=True,
            )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
