"""What a benchmark consists of, read from a TOML file: one model, the systems that serve it, the workloads.

Every error names the key, what was given and what is possible. The keys are documented in `configs/cpu_demo.toml`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

ROLES = ("baseline", "ours", "oracle", "other")
LAUNCHERS = ("stock", "ours")
STARTS = ("one", "together")

_GSP = (
    "gsp-num-groups",
    "gsp-system-prompt-len",
    "gsp-question-len",
    "gsp-output-len",
    "gsp-range-ratio",
    "gsp-num-turns",
    "gsp-ordered",
    "gsp-fast-prepare",
    "gsp-group-distribution",
    "gsp-zipf-alpha",
)
_RANDOM = ("random-input-len", "random-output-len", "random-range-ratio")

DATASETS: dict[str, tuple[str, ...]] = {
    "random-ids": _RANDOM,
    "random": (*_RANDOM, "dataset-path"),
    "generated-shared-prefix": _GSP,
    "sharegpt": ("dataset-path", "sharegpt-output-len", "sharegpt-context-len"),
    "custom": ("dataset-path", "sharegpt-output-len", "sharegpt-context-len"),
    "longbench_v2": ("dataset-path", "sharegpt-output-len", "sharegpt-context-len"),
}
"""Data sets of stock's `sglang.bench_serving` with the flags of theirs that a workload may set."""

CLIENT_FLAGS = (
    "backend",
    "request-rate",
    "warmup-requests",
    "tokenize-prompt",
    "goodput",
    "apply-chat-template",
    "extra-request-body",
    "disable-ignore-eos",
    "rust-client",
)
"""Flags of stock's client that any workload may set; the runner sets all others."""


class ConfigError(ValueError):
    """A bad configuration. The message says where, what was given and what is possible."""


@dataclass(frozen=True)
class System:
    """One server to measure.

    role          baseline (the first column, exactly one), ours, oracle (ours without its bytes), other
    launcher      whose `launch_server` starts it; `ours` without `hisparse` is stock with our benchmark aids
    hisparse      our options; None leaves the tier off
    stock_hisparse  stock's own HiSparse with these options (adds --enable-hisparse --disable-radix-cache)
    oracle_of     for role oracle: the system whose bytes it leaves out
    running       most requests that fit at once; for the estimate only
    """

    name: str
    role: str = "other"
    launcher: str = "stock"
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    hisparse: dict[str, Any] | None = None
    stock_hisparse: dict[str, Any] | None = None
    oracle_of: str = ""
    running: int = 1 << 30

    @property
    def slug(self) -> str:
        """Its name as part of a file name."""
        return slug(self.name)


@dataclass(frozen=True)
class Workload:
    """What is sent: a data set of stock's client with its flags, at every concurrency.

    waves        prompts are `waves` x concurrency, but at least `min_prompts`
    systems      names of the systems it is for; empty: all
    levels       concurrency of single systems, where they should not run all
    limit_s      seconds that one run may take
    """

    name: str
    dataset: str
    concurrency: tuple[int, ...]
    flags: dict[str, Any] = field(default_factory=dict)
    waves: int = 1
    min_prompts: int = 1
    systems: tuple[str, ...] = ()
    levels: dict[str, tuple[int, ...]] = field(default_factory=dict)
    limit_s: float = 600.0

    def prompts(self, concurrency: int) -> int:
        """Number of prompts (conversations, where they have several turns) at this concurrency."""
        wanted = max(concurrency * self.waves, self.min_prompts)
        groups = self.groups
        return -(-wanted // groups) * groups

    @property
    def groups(self) -> int:
        """Groups of prompts with a prefix of their own."""
        return int(self.flags.get("gsp-num-groups", 1)) if self.dataset.startswith("generated") else 1

    @property
    def lengths(self) -> tuple[int, int]:
        """(prompt tokens that nobody shares, new tokens) of a request; zeros where the data set decides."""
        turns = int(self.flags.get("gsp-num-turns", 1))
        own = int(self.flags.get("random-input-len", 0)) or turns * int(self.flags.get("gsp-question-len", 0))
        new = self.flags.get("random-output-len") or self.flags.get("gsp-output-len") or 0
        return own, turns * int(new)

    @property
    def shared(self) -> int:
        """Prompt tokens that all requests of a group share."""
        return int(self.flags.get("gsp-system-prompt-len", 0))


@dataclass(frozen=True)
class Estimate:
    """For the printed estimate and `--limit-s`: how fast this machine is, roughly."""

    start_s: float = 60.0
    prefill_tok_s: float = 30_000.0
    step_ms: float = 10.0
    step_ms_per_request: float = 0.2
    overhead_s: float = 3.0


@dataclass(frozen=True)
class Config:
    """A whole benchmark. `args`, `env` and `device_tokens` go to every system: the same memory budget."""

    name: str
    model: str
    systems: tuple[System, ...]
    workloads: tuple[Workload, ...]
    title: str = ""
    start: str = "one"
    layers: int = 0
    device_tokens: int = 0
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    start_limit_s: float = 600.0
    stagger_s: float = 2.0
    sample_s: float = 1.0
    warmup: int = 1
    seed: int = 1
    estimate: Estimate = field(default_factory=Estimate)

    @property
    def baseline(self) -> System:
        """The system that the others are compared with."""
        return next(system for system in self.systems if system.role == "baseline")

    def fingerprint(self, system: System, workload: Workload) -> str:
        """Changes with anything that a measured number depends on."""
        server = (self.model, self.layers, self.device_tokens, self.args, sorted(self.env.items()), self.seed)
        own = (
            system.launcher,
            system.args,
            sorted(system.env.items()),
            system.hisparse,
            system.stock_hisparse,
        )
        load = (workload.dataset, sorted(workload.flags.items()), workload.waves, workload.min_prompts)
        text = json.dumps([server, own, load], sort_keys=True, default=list)
        return hashlib.sha256(text.encode()).hexdigest()[:10]


def slug(name: str) -> str:
    """`name` in letters, digits and dashes."""
    kept = "".join(letter if letter.isalnum() else "-" for letter in name.lower())
    return "-".join(part for part in kept.split("-") if part)


def document(path: Path) -> dict[str, Any]:
    """What the file says, not yet checked. ConfigError where it cannot be read.

    `base = "OTHER.toml"` takes every top-level key that the file leaves out from another one beside it.
    """
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        known = sorted(file.name for file in (Path(__file__).parent / "configs").glob("*.toml"))
        raise ConfigError(
            f"{path}: {error.strerror}. Configurations in bench_serving/configs: {', '.join(known)}"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    base = data.pop("base", None)
    if base is None:
        return data
    if not isinstance(base, str) or (path.parent / base).resolve() == path.resolve():
        raise ConfigError(f"{path}: base is the name of another file beside it, given {base!r}")
    return document(path.parent / base) | data


def parse(data: dict[str, Any]) -> Config:
    """The configuration that a TOML document says."""
    data = dict(data)
    systems = tuple(
        _system(table, f"system {place}") for place, table in enumerate(_tables(data, "system"), 1)
    )
    workloads = tuple(
        _workload(table, f"workload {place}") for place, table in enumerate(_tables(data, "workload"), 1)
    )
    estimate = _build(Estimate, data.pop("estimate", {}), "estimate")
    config = _build(
        Config, data, "", systems=systems, workloads=workloads, estimate=estimate, hidden=("baseline",)
    )
    _one_of(config.start, STARTS, "start")
    _unique([system.name for system in systems], "system.name")
    _unique([workload.name for workload in workloads], "workload.name")
    names = tuple(system.name for system in systems)
    if sum(system.role == "baseline" for system in systems) != 1:
        raise ConfigError(
            'exactly one system needs role = "baseline", the one that others are compared with; '
            f"systems: {', '.join(f'{s.name} ({s.role})' for s in systems)}"
        )
    for system in systems:
        if (system.role == "oracle") != bool(system.oracle_of):
            raise ConfigError(f'system {system.name!r}: role = "oracle" and oracle_of go together')
        if system.oracle_of:
            _one_of(system.oracle_of, names, f"system {system.name!r}: oracle_of")
    for workload in workloads:
        for name in (*workload.systems, *workload.levels):
            _one_of(name, names, f"workload {workload.name!r}: systems and levels")
    return config


def _system(table: dict[str, Any], where: str) -> System:
    where = f"system {table['name']!r}" if isinstance(table.get("name"), str) else where
    system = _build(System, table, where)
    _one_of(system.role, ROLES, f"{where}: role")
    _one_of(system.launcher, LAUNCHERS, f"{where}: launcher")
    if system.hisparse is not None and system.stock_hisparse is not None:
        raise ConfigError(f"{where}: hisparse (ours) and stock_hisparse are alternatives; leave one out")
    if system.hisparse is not None and system.launcher != "ours":
        raise ConfigError(f'{where}: hisparse needs launcher = "ours", given {system.launcher!r}')
    if system.hisparse is not None and "host_pool_gib" not in system.hisparse:
        raise ConfigError(
            f"{where}: hisparse needs host_pool_gib (GiB of pinned host memory), given {system.hisparse}"
        )
    return system


def _workload(table: dict[str, Any], where: str) -> Workload:
    where = f"workload {table['name']!r}" if isinstance(table.get("name"), str) else where
    levels = table.get("levels", {})
    if not isinstance(levels, dict):
        raise ConfigError(f"{where}: levels is a table of system = [concurrency, ...], given {levels!r}")
    table = {**table, "levels": {name: tuple(_list(value, int, where)) for name, value in levels.items()}}
    workload = _build(Workload, table, where)
    _one_of(workload.dataset, tuple(DATASETS), f"{where}: dataset")
    possible = (*DATASETS[workload.dataset], *CLIENT_FLAGS)
    for name in workload.flags:
        _one_of(name, possible, f"{where}: flags")
    if not workload.concurrency or min(workload.concurrency) < 1:
        raise ConfigError(
            f"{where}: concurrency is a list of at least one number above 0, given {workload.concurrency}"
        )
    return workload


# -- reading values --------------------------------------------------------------------------------------------

Made = TypeVar("Made")


def _build(kind: type[Made], table: Any, where: str, hidden: Sequence[str] = (), **given: Any) -> Made:
    """A dataclass from a table: unknown, missing and wrongly typed keys are named."""
    prefix = f"{where}: " if where else ""
    if not isinstance(table, dict):
        raise ConfigError(f"{prefix}a table is needed, given {table!r}")
    known = {one.name: one for one in fields(kind) if one.name not in given}  # type: ignore[arg-type]
    values = dict(given)
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{prefix}unknown key {key!r}.{_meant(key, known)} Known: {', '.join(known)}")
        values[key] = _typed(str(known[key].type), value, f"{prefix}{key}")
    required = [name for name, one in known.items() if name not in values and _is_required(one)]
    if required:
        raise ConfigError(f"{prefix}missing {', '.join(required)}")
    return kind(**values)


def _is_required(one: Any) -> bool:
    from dataclasses import MISSING

    return one.default is MISSING and one.default_factory is MISSING


def _typed(kind: str, value: Any, where: str) -> Any:
    """`value` as the field type `kind`, or ConfigError."""
    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        "str": (lambda v: isinstance(v, str), "a text"),
        "int": (lambda v: isinstance(v, int) and not isinstance(v, bool), "a whole number"),
        "float": (lambda v: isinstance(v, (int, float)) and not isinstance(v, bool), "a number"),
        "dict": (lambda v: isinstance(v, dict), "a table"),
        "tuple": (lambda v: isinstance(v, (list, tuple)), "a list"),
    }
    fits, called = checks[kind.split("[")[0].split(" ")[0]]
    if not fits(value):
        raise ConfigError(f"{where} must be {called}, given {value!r}")
    if kind.startswith("tuple[str"):
        return tuple(_list(value, str, where))
    if kind.startswith("tuple[int"):
        return tuple(_list(value, int, where))
    if kind.startswith("dict[str, str]"):
        wrong = {k: v for k, v in value.items() if not isinstance(v, str)}
        if wrong:
            raise ConfigError(f"{where}: values must be texts (in quotes), given {wrong}")
    return float(value) if kind == "float" else value


def _list(value: Any, kind: type, where: str) -> list[Any]:
    if not isinstance(value, (list, tuple)) or any(type(one) is not kind for one in value):
        called = "texts" if kind is str else "whole numbers"
        raise ConfigError(f"{where} must be a list of {called}, given {value!r}")
    return list(value)


def _tables(data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = data.pop(key, None)
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
        raise ConfigError(f"at least one [[{key}]] is needed, given {found!r}")
    return found


def _one_of(value: str, possible: Sequence[str], where: str) -> None:
    if value not in possible:
        raise ConfigError(
            f"{where}: {value!r} is unknown.{_meant(value, possible)} Possible: {', '.join(possible)}"
        )


def _unique(names: Sequence[str], where: str) -> None:
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"{where} must differ from each other, given twice: {', '.join(sorted(twice))}")


def _meant(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
