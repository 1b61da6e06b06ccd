"""The runs of a benchmark in their order, how long they may take, and the command lines for them."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import Config, ConfigError, System, Workload
from .models import Model
from .serving import Server
from .store import Key


@dataclass(frozen=True)
class Point:
    """One run: one line of the results."""

    system: System
    workload: Workload
    concurrency: int
    fingerprint: str

    @property
    def key(self) -> Key:
        """What its line is found by."""
        return self.system.name, self.workload.name, self.concurrency

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.system.name}, {self.workload.name}, {self.concurrency} at once"


def points(config: Config, only: Collection[str] = (), workloads: Collection[str] = ()) -> list[Point]:
    """All runs. Servers together: level by level, so that an early end leaves comparable lines. Else by system.

    `only` and `workloads` keep those of these names; ConfigError where there is no such name.
    """
    _known(only, [system.name for system in config.systems], "--only")
    _known(workloads, [workload.name for workload in config.workloads], "--workload")
    return sorted(_points(config, only, workloads), key=lambda point: _place(config, point))


def _known(names: Collection[str], possible: Collection[str], option: str) -> None:
    for name in names:
        if name not in possible:
            raise ConfigError(f"{option} {name!r}: there is none. Possible: {', '.join(possible)}")


def _points(config: Config, only: Collection[str], workloads: Collection[str]) -> Iterator[Point]:
    for workload in config.workloads:
        if workloads and workload.name not in workloads:
            continue
        for system in config.systems:
            if (only and system.name not in only) or (
                workload.systems and system.name not in workload.systems
            ):
                continue
            for concurrency in workload.levels.get(system.name, workload.concurrency):
                yield Point(system, workload, concurrency, config.fingerprint(system, workload))


def _place(config: Config, point: Point) -> tuple[int, int, int]:
    workload = config.workloads.index(point.workload)
    system = config.systems.index(point.system)
    order = (*point.workload.concurrency, *point.workload.levels.get(point.system.name, ()))
    level = order.index(point.concurrency)
    return (workload, level, system) if config.start == "together" else (system, workload, level)


def missing(planned: list[Point], lines: Mapping[Key, dict[str, Any]]) -> list[Point]:
    """The points without a good line. ConfigError where a line was measured with other settings."""
    found = []
    for point in planned:
        line = lines.get(point.key)
        if line is not None and line.get("setup") != point.fingerprint and line.get("status") == "ok":
            raise ConfigError(
                f"--out has a result of {point.name} that was made with other settings ({line.get('setup')}, now "
                f"{point.fingerprint}). Use another --out, or delete that line of results.jsonl"
            )
        if line is None or line.get("status") != "ok":
            found.append(point)
    return found


def seconds(config: Config, point: Point) -> float:
    """Rough time that a point takes, by `[estimate]`."""
    rough, load = config.estimate, point.workload
    count = load.prompts(point.concurrency)
    own, new = load.lengths
    cached = load.groups if caches(config, point.system) else count
    prompt_tokens = count * own + cached * load.shared
    running = max(1, min(point.concurrency, point.system.running, count))
    step_s = (rough.step_ms + rough.step_ms_per_request * running) / 1000
    decode_s = math.ceil(count / running) * new * step_s
    return prompt_tokens / rough.prefill_tok_s + decode_s + rough.overhead_s


def caches(config: Config, system: System) -> bool:
    """Whether this system has a prefix cache."""
    return system.stock_hisparse is None and "--disable-radix-cache" not in (*config.args, *system.args)


def start_seconds(config: Config, planned: list[Point]) -> float:
    """Rough time until the servers of these points serve, one after another or together, warm-up included."""
    systems = {point.system.name: point for point in planned}
    warm = sum(warmup_seconds(config, point) for point in systems.values())
    if config.start == "together":
        return warm + (config.estimate.start_s + config.stagger_s * len(systems) if systems else 0.0)
    return warm + config.estimate.start_s * len(systems)


def warmup_seconds(config: Config, point: Point) -> float:
    """Rough time of the unrecorded run that a server starts with."""
    if not config.warmup:
        return 0.0
    rough, own = config.estimate, point.workload.lengths[0]
    return (config.warmup * own + point.workload.shared) / rough.prefill_tok_s + rough.overhead_s


def server_for(config: Config, model: Model, system: System, log: Path) -> Server:
    """The server of a system, not started."""
    metrics = ["--enable-metrics"] if importlib.util.find_spec("prometheus_client") else []
    args = [*model.args, "--served-model-name", model.name, *metrics, *config.args]
    if config.device_tokens:
        args += ["--max-total-tokens", str(config.device_tokens)]
    if system.stock_hisparse is not None:
        args += ["--enable-hisparse", "--disable-radix-cache"]
        args += ["--hisparse-config", json.dumps(system.stock_hisparse)]
    return Server(
        model.path,
        [*args, *system.args],
        system.hisparse,
        stock=system.launcher == "stock",
        env={**config.env, **system.env},
        log_path=log,
        limit_s=config.start_limit_s,
    )


def client_arguments(
    config: Config, model: Model, workload: Workload, concurrency: int, count: int, port: int
) -> list[str]:
    """The command line of stock's client for `count` prompts."""
    # Stock caches generated prefixes on disk under a name that leaves the vocabulary out: the seed stands for it.
    settings: dict[str, Any] = {
        "backend": "sglang",
        "host": "127.0.0.1",
        "port": port,
        "dataset-name": workload.dataset,
        "model": model.path,
        "served-model-name": model.name,
        "tokenizer": model.tokenizer,
        "max-concurrency": concurrency,
        "seed": config.seed + model.vocab,
        "warmup-requests": 0,
        "cache-report": True,
        "disable-tqdm": True,
        "tag": workload.name,
    }
    if workload.dataset.startswith("generated"):
        settings["gsp-prompts-per-group"] = count // workload.groups
    else:
        settings["num-prompts"] = count
    if workload.flags.get("backend", "sglang") == "sglang":
        settings["tokenize-prompt"] = True
    arguments: list[str] = []
    for name, value in (settings | workload.flags).items():
        if value is True:
            arguments.append(f"--{name}")
        elif isinstance(value, list):
            arguments += [f"--{name}", *map(str, value)]
        elif value is not False:
            arguments += [f"--{name}", str(value)]
    return arguments
