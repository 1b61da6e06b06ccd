"""The folder of one benchmark's results. Everything is on disk as soon as it is known, and nothing names the machine.

results.jsonl       one line a system x workload x concurrency; the last line of a key counts
samples.jsonl       /metrics over time, one line a run
servers/NAME.json   command, seconds to start, /server_info
logs/NAME.txt       the end of a server's log
commands.txt        every command, in order
environment.json    GPU, driver, versions, commit, memory
config.json         the configuration, bases included
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .config import slug
from .scrub import Scrubber

Key = tuple[str, str, int]
"""(system, workload, concurrency)"""

LOG_LINES = 300


class Store:
    """Reads what is there and adds to it. `scrub` cleans everything that is written."""

    def __init__(self, folder: Path, scrub: Scrubber) -> None:
        self.folder = folder
        self.scrub = scrub
        for part in (folder, folder / "servers", folder / "logs"):
            part.mkdir(parents=True, exist_ok=True)

    def begin(self, config: dict[str, Any], environment: dict[str, Any]) -> None:
        """Note down what is about to run."""
        self._write("config.json", config)
        self._write("environment.json", environment)

    def lines(self) -> dict[Key, dict[str, Any]]:
        """The last line of every key."""
        return {key_of(line): line for line in read_lines(self.folder / "results.jsonl")}

    def add(self, line: dict[str, Any], samples: Sequence[dict[str, float]] = ()) -> None:
        """Append one result."""
        self._append("results.jsonl", line)
        if samples:
            name, workload, concurrency = key_of(line)
            self._append(
                "samples.jsonl",
                {"system": name, "workload": workload, "concurrency": concurrency, "samples": list(samples)},
            )

    def command(self, what: str, command: Sequence[str], env: dict[str, str] | None = None) -> None:
        """Append one command, with the variables that were set for it."""
        shown = " ".join(
            [*(f"{name}={shlex.quote(value)}" for name, value in (env or {}).items()), shlex.join(command)]
        )
        with (self.folder / "commands.txt").open("a") as file:
            file.write(self.scrub.text(f"# {what}\n{shown}\n"))

    def server(self, name: str, start_s: float, info: dict[str, Any]) -> None:
        """What a server said of itself."""
        self._write(f"servers/{slug(name)}.json", {"name": name, "start_s": round(start_s, 1), "info": info})

    def log(self, name: str, text: str) -> None:
        """The end of a server's log."""
        kept = "\n".join(text.splitlines()[-LOG_LINES:])
        (self.folder / "logs" / f"{slug(name)}.txt").write_text(self.scrub.text(kept) + "\n")

    def _write(self, name: str, value: Any) -> None:
        (self.folder / name).write_text(json.dumps(self.scrub(value), indent=1, sort_keys=True) + "\n")

    def _append(self, name: str, line: dict[str, Any]) -> None:
        with (self.folder / name).open("a+b") as file:
            if file.tell() and not _ends_a_line(file):
                file.write(b"\n")  # what a killed run left half written
            file.write((json.dumps(self.scrub(line)) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())


def _ends_a_line(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    ends: bool = file.read(1) == b"\n"
    return ends


def key_of(line: dict[str, Any]) -> Key:
    """What a line is about."""
    return line["system"], line["workload"], int(line["concurrency"])


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a JSONL file; a line that a killed run left half written is skipped."""
    if not path.exists():
        return
    for text in path.read_text().splitlines():
        try:
            yield json.loads(text)
        except json.JSONDecodeError:
            continue


# -- environment -----------------------------------------------------------------------------------------------


def gpus() -> list[dict[str, str]]:
    """Name, driver and memory of every GPU, as nvidia-smi says; empty without one."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    text = _output(query)
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [dict(zip(("name", "driver", "memory"), row, strict=False)) for row in rows]


def gpu_slug(found: Sequence[dict[str, str]]) -> str:
    """`h200`, `h200x8`, or `cpu`."""
    if not found:
        return "cpu"
    name = slug(found[0]["name"].removeprefix("NVIDIA "))
    return name if len(found) == 1 else f"{name}x{len(found)}"


def environment() -> dict[str, Any]:
    """Versions and machine, without its name."""
    versions = {}
    for package in ("sglang", "torch", "transformers", "sglang-kernel", "sgl-flash-mla", "sglang_hisparse"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    root = str(Path(__file__).resolve().parents[1])
    changed = _output(["git", "-C", root, "status", "--porcelain", "--untracked-files=no"])
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "gpus": gpus(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": _output(["git", "-C", root, "rev-parse", "HEAD"]).strip() or "unknown",
        "changed_files": sorted(line[3:] for line in changed.splitlines()),
    }


def _output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
