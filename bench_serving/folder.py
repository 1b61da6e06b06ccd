"""One results folder, read back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .config import ROLES
from .store import Key, key_of, read_lines

Line = dict[str, Any]
Samples = list[dict[str, float]]


@dataclass(frozen=True)
class Folder:
    """One results folder. `lines` and `samples` hold what was written last for every key."""

    name: str
    lines: list[Line]
    environment: dict[str, Any]
    config: dict[str, Any]
    samples: dict[Key, Samples] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Folder:
        """FileNotFoundError where it has no results."""
        if not (path / "results.jsonl").exists():
            raise FileNotFoundError(
                f"{path} has no results.jsonl; give a folder that bench_serving.run wrote"
            )
        lines = {key_of(line): line for line in read_lines(path / "results.jsonl")}
        samples = {key_of(line): line["samples"] for line in read_lines(path / "samples.jsonl")}
        environment, config = path / "environment.json", path / "config.json"
        return cls(
            path.resolve().name,
            list(lines.values()),
            json.loads(environment.read_text()) if environment.exists() else {},
            json.loads(config.read_text()) if config.exists() else {},
            samples,
        )

    def workloads(self) -> list[str]:
        """In the configuration's order, then the rest."""
        given = [one["name"] for one in self.config.get("workload", [])]
        return ordered((line["workload"] for line in self.lines), given)

    def systems(self) -> list[str]:
        """Baseline first, then in the configuration's order."""
        given = [one["name"] for one in self.config.get("system", [])]
        names = ordered((line["system"] for line in self.lines), given)
        roles = {line["system"]: line.get("role", "other") for line in self.lines}
        return sorted(names, key=lambda name: roles[name] != "baseline")

    def role(self, system: str) -> str:
        """What a system is in the comparison."""
        return next((line.get("role", "other") for line in self.lines if line["system"] == system), ROLES[-1])

    def good(self, workload: str, system: str | None = None) -> list[Line]:
        """Lines with numbers, by concurrency."""
        found = [
            line
            for line in self.lines
            if line["workload"] == workload
            and line.get("status") in ("ok", "partial")
            and line.get("output_tok_s")
            and system in (None, line["system"])
        ]
        return sorted(found, key=lambda line: line["concurrency"])

    def line(self, workload: str, system: str, concurrency: int) -> Line | None:
        """One good line."""
        found = (x for x in self.good(workload, system) if x["concurrency"] == concurrency)
        return next(found, None)


def ordered(found: Iterable[str], first: Sequence[str]) -> list[str]:
    """Different names in order of appearance, those of `first` before the others."""
    names = list(dict.fromkeys(found))
    return [name for name in first if name in names] + [name for name in names if name not in first]


def describe(folder: Folder) -> str:
    """Machine, model and budget in one line."""
    gpus = folder.environment.get("gpus") or []
    machine = f"{len(gpus)} x {gpus[0]['name']}" if gpus else "CPU"
    tokens = folder.config.get("device_tokens")
    budget = f", KV pool of {tokens:,} tokens" if tokens else ""
    return f"{machine}, {folder.config.get('model', folder.name)}{budget}"
