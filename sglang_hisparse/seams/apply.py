"""Applies the seam table to this process: all rows or none, and never a row whose target has changed.

SGLang's plugin loader logs and swallows every `Exception` of a plugin, and a half-applied memory layer would
serve corrupt KV. So everything that goes wrong here ends in `SeamMismatch`, a `SystemExit`, which it lets
pass.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sglang_hisparse import pin
from sglang_hisparse.seams.drift import Problem, compare
from sglang_hisparse.seams.fingerprint import Fingerprint, FingerprintError
from sglang_hisparse.seams.seam import REGISTER, RELY, Seam
from sglang_hisparse.seams.target import Target, TargetError, foreign_wrapper, resolve
from sglang_hisparse.seams.wrap import WrapError, wrap

ALLOW_DRIFT = "SGLANG_HISPARSE_ALLOW_DRIFT"
_logger = logging.getLogger(__name__)


class SeamMismatch(SystemExit):
    """This SGLang is not the one the seams were made for. The message names every seam that differs."""


@dataclass
class _Installed:
    """A row in force. `changed` undoes it: owner, name, what was there, what we put there."""

    seam: Seam
    found: Fingerprint
    changed: list[tuple[Any, str, Any, Any]] = field(default_factory=list)


_installed: dict[str, _Installed] = {}


def apply(rows: Iterable[Seam]) -> None:
    """Put the rows in force; rows that already are in force stay as they are.

    Every target is resolved and fingerprinted before any is changed. Then functions are wrapped wherever they
    are bound by name (`Target.places` says what that cannot reach), every place is read back, and last the
    REGISTER hooks are called. Not thread-safe: call it while the process starts, before any target is in use.
    Touches no device.

    Raises `SeamMismatch` with one message that names every missing, drifted or already hooked target; nothing
    is changed then. With `SGLANG_HISPARSE_ALLOW_DRIFT=1` the list is printed instead and what can be applied
    is. An SGLang of another version whose fingerprints are all equal is accepted with a warning.
    """
    new = [row for row in rows if _is_new(row)]
    if not new:
        return
    try:
        targets, hooks, problems = _examine(new)
        _report(problems, len(new), hard=any(problem.hard for problem in problems))
        if not problems and sglang_version() != pin.SGLANG:
            _logger.warning(
                "SGLang is %s, sglang_hisparse is tested with %s; all %d seams have the same text in both.",
                *(sglang_version(), pin.SGLANG, len(new)),
            )
        _change(new, targets, hooks)
    except BaseException as error:
        _revert(new)
        if isinstance(error, Exception):
            raise SeamMismatch(f"sglang_hisparse cannot start, nothing was changed: {error!r}") from error
        raise


def verify() -> None:
    """Read back that every place still holds our function, and that no other plugin hooks the same targets.

    SGLang applies other plugins' hooks after all plugins are loaded, which is after `apply`; call this once
    it has. Raises `SeamMismatch`, or prints the list where drift is allowed.
    """
    _report(list(_lost()), len(_installed))


def installed() -> list[dict[str, Any]]:
    """The rows in force in this process, ready for JSON: id, target, kind, params, body, and if it
    drifted."""
    return [
        {
            "id": entry.seam.id,
            "target": entry.seam.target,
            "kind": entry.seam.kind.name.lower(),
            "params": list(entry.found[0]),
            "body": entry.found[1],
            "drifted": entry.found != (entry.seam.params, entry.seam.body),
        }
        for entry in _installed.values()
    ]


def undo() -> None:
    """Put every stock function back. What REGISTER hooks registered stays. For tests."""
    _revert([entry.seam for entry in _installed.values()])


def sglang_version() -> str:
    """Version of the installed SGLang, `none` when its metadata is not there."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _is_new(row: Seam) -> bool:
    entry = _installed.get(row.id)
    if entry is not None and entry.seam != row:
        raise SeamMismatch(f"seam {row.id} is in force for {entry.seam.target}; ids must be unique")
    return entry is None


def _report(problems: list[Problem], total: int, hard: bool = False) -> None:
    """Refuse to go on, or print why we should not where drift is allowed and nothing is `hard`."""
    if problems and (hard or os.environ.get(ALLOW_DRIFT) != "1"):
        raise SeamMismatch(_message(problems, total))
    if problems:
        print(_message(problems, total), f"Going on: {ALLOW_DRIFT}=1.", sep="\n", file=sys.stderr, flush=True)


def _examine(rows: list[Seam]) -> tuple[dict[str, Target], dict[str, Callable[..., Any]], list[Problem]]:
    """Resolve and fingerprint all targets and import all hooks, changing nothing."""
    targets: dict[str, Target] = {}
    hooks: dict[str, Callable[..., Any]] = {}
    problems: list[Problem] = []
    owners = {entry.seam.target: entry.seam.id for entry in _installed.values() if entry.changed}
    for row in rows:
        if row.id in targets:
            problems.append(Problem(row, "hook", "another row has the same id"))
        try:
            found = targets[row.id] = resolve(row.target)
            drift = compare(row, found.fingerprint())
        except (TargetError, FingerprintError) as error:
            problems.append(Problem(row, "missing", str(error)))
            continue
        if drift:
            problems.append(drift)
        if other := foreign_wrapper(found, row.target) or _registry_hook(row):
            problems.append(Problem(row, "conflict", f"already changed by {other}"))
        if row.kind is RELY:
            continue
        if row.kind is not REGISTER and owners.setdefault(row.target, row.id) != row.id:
            problems.append(Problem(row, "hook", f"seam {owners[row.target]} changes the same target"))
        try:
            hooks[row.id] = _import_hook(row.hook)
        except Exception as error:  # our hook modules import SGLang, which may raise anything at import
            problems.append(Problem(row, "hook", f"hook {row.hook} cannot be imported: {error!r}"))
            continue
        try:
            if row.kind is not REGISTER:
                wrap(row, found, hooks[row.id])
        except WrapError as error:
            problems.append(Problem(row, "hook", str(error)))
    return targets, hooks, problems


def _change(rows: list[Seam], targets: dict[str, Target], hooks: dict[str, Callable[..., Any]]) -> None:
    for row in rows:
        found = targets.get(row.id)
        if found is None:  # a RELY target that is gone, and drift is allowed
            continue
        entry = _installed[row.id] = _Installed(row, found.fingerprint())
        if row.kind in (RELY, REGISTER):
            continue
        ours = wrap(row, found, hooks[row.id])
        for owner, name in list(found.places()):
            entry.changed.append((owner, name, found.raw, ours))
            setattr(owner, name, ours)
    # Last, since a registration cannot be taken back: nothing that comes after it may fail.
    verify()
    for row in rows:
        if row.kind is REGISTER:
            hooks[row.id](targets[row.id].value)


def _lost() -> Iterator[Problem]:
    for entry in _installed.values():
        for owner, name, _, ours in entry.changed:
            if vars(owner).get(name) is not ours:
                holder = getattr(owner, "__qualname__", owner.__name__)
                yield Problem(entry.seam, "conflict", f"{holder}.{name} is no longer ours: somebody set it")
        if other := _registry_hook(entry.seam):
            yield Problem(entry.seam, "conflict", f"also hooked by {other}")


def _revert(rows: list[Seam]) -> None:
    for row in reversed(rows):
        entry = _installed.pop(row.id, None)
        for owner, name, stock, ours in reversed(entry.changed if entry else []):
            if vars(owner).get(name) is ours:
                setattr(owner, name, stock)


def _import_hook(hook: str) -> Callable[..., Any]:
    module, _, name = hook.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{hook} is not callable")
    return function


def _registry_hook(row: Seam) -> str:
    """A hook that another plugin registered with SGLang's own registry for this target or its class."""
    registry = sys.modules.get("sglang.srt.plugins.hook_registry")
    dotted = row.target.replace(":", ".")
    for target, hooks in getattr(getattr(registry, "HookRegistry", None), "_hooks", {}).items():
        if hooks and (dotted == target or dotted.startswith(f"{target}.")):
            _, hook, source = hooks[0]
            plugin = f"plugin {source.plugin_name}" if source else "an unnamed plugin"
            return f"{plugin} ({hook.__module__}.{getattr(hook, '__qualname__', hook)})"
    return ""


def _message(problems: list[Problem], total: int) -> str:
    version = sglang_version()
    lines = "\n".join(f"  - {problem}" for problem in problems)
    names = {problem.seam.id for problem in problems}
    return (
        f"sglang_hisparse does not fit this process and will not serve: {len(names)} of {total} seams "
        f"differ.\nSGLang is {version}; sglang_hisparse {pin.PACKAGE} is made for {pin.SGLANG}.\n{lines}\n"
        f"Do one of: pip install {pin.requirement()}; remove the plugin named as a conflict (SGLANG_PLUGINS "
        f"lists those to load); start without the HiSparse options. {ALLOW_DRIFT}=1 goes on where a seam can "
        f"still be applied, at the risk of wrong outputs."
    )


__all__ = ["ALLOW_DRIFT", "SeamMismatch", "apply", "installed", "sglang_version", "undo", "verify"]
