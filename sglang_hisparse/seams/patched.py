"""Stands where the applier stands, in an SGLang tree that carries `patches/`: what the calls in SGLang's files lead to.

A patch puts `@hisparse_seam("id")` on the function that the seam table names, or passes a registry to it. Where the
tier is not asked for, that hands the function back as it is. Imports neither SGLang nor torch at the top: SGLang's
own files import this one while they are imported themselves.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from sglang_hisparse import benchmark_aids, pin
from sglang_hisparse.gate import asked
from sglang_hisparse.seams.calls import BUILDERS
from sglang_hisparse.seams.fingerprint import FingerprintError, fingerprint_target, inside
from sglang_hisparse.seams.seam import REGISTER, RELY, Seam
from sglang_hisparse.seams.table import SEAMS

_logger = logging.getLogger(__name__)
_rows = {row.id: row for row in SEAMS}
_marked: dict[str, Any] = {}
_ours: dict[str, Callable[..., Any]] = {}
_installed: list[dict[str, Any]] = []
_asked = functools.cache(asked)


def hisparse_seam(name: str) -> Callable[[Any], Any]:
    """Decorator of the target of the seam called `name`: what runs instead, or the target itself where the seam has
    nothing to do in this process. The hook is imported at the first call. SystemExit where the tree has the same
    edit twice, or one that the table does not know."""
    if name not in _rows:
        raise SystemExit(f"hisparse: {name!r} is no seam of this version; known are {', '.join(_rows)}")
    row = _rows[name]

    def mark(target: Any) -> Any:
        if not _asked() or not _here(row):
            return target
        if name in _marked:
            raise SystemExit(
                f"hisparse: two places of this SGLang carry the seam {name!r}; {row.target} is its own"
            )
        _marked[name] = target
        return target if row.kind is REGISTER else _wrapped(row, target)

    return mark


def register_here(*args: Any, **kwargs: Any) -> None:
    """Before SGLang loads its plugins, in a process that has imported the scheduler: every edit has to be there and
    every hook has to import, then registries get our entries. Idempotent. SystemExit names what is missing: a tree
    that has lost an edit in a merge must not serve."""
    if _installed or not _asked() or "sglang.srt.managers.scheduler" not in sys.modules:
        return
    rows = [row for row in SEAMS if _here(row)]
    problems = [problem for row in rows if row.kind is not RELY for problem in _problems(row)]
    if problems:
        raise SystemExit(
            "hisparse: this SGLang carries the patches in part and will not serve:\n  - "
            + "\n  - ".join(problems)
            + "\nApply the patches again, or start without the HiSparse options."
        )
    _installed.extend(_described(row) for row in rows)
    drifted = [row["id"] for row in _installed if row["drifted"]]
    if drifted:
        _logger.warning(
            "HiSparse: functions behind these seams are not those of SGLang %s, which were tested: %s",
            *(pin.SGLANG, ", ".join(drifted)),
        )
    for row in rows:
        if row.kind is REGISTER:
            _hook(row)(_marked[row.id])


def installed() -> list[dict[str, Any]]:
    """The rows in force in this process, ready for JSON, as the applier of the plugin lists them."""
    return list(_installed)


def verify() -> None:
    """Once SGLang's plugins are loaded: SystemExit where one of them put a function of its own over a seam's, so that
    our hook would not be called. One that calls on is let be: the edit is part of SGLang here."""
    lost = [row.id for row in SEAMS if row.id in _ours and not _in_place(row)]
    if lost:
        raise SystemExit(
            f"hisparse: another plugin replaced the functions of these seams, and the tier would serve wrong rows: "
            f"{', '.join(lost)}. Remove the plugin (SGLANG_PLUGINS lists those to load), or the HiSparse options"
        )


def _in_place(row: Seam) -> bool:
    owner: Any = importlib.import_module(row.module)
    *scopes, name = row.qualname.split(".")
    for scope in scopes:
        owner = vars(owner)[scope]
    value = inside(vars(owner)[name])
    while value is not _ours[row.id] and hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    return value is _ours[row.id]


def _here(row: Seam) -> bool:
    if row.scope == "cpu":
        import torch

        return not torch.cuda.is_available()
    return row.scope != "bench" or benchmark_aids.asked(os.environ)


def _wrapped(row: Seam, original: Callable[..., Any]) -> Callable[..., Any]:
    call: Callable[..., Any] | None = None

    @functools.wraps(original)
    def seam(*args: Any, **kwargs: Any) -> Any:
        nonlocal call
        if call is None:
            call = BUILDERS[row.kind](original, _hook(row))
        return call(*args, **kwargs)

    _ours[row.id] = seam
    return seam


def _hook(row: Seam) -> Callable[..., Any]:
    module, _, name = row.hook.partition(":")
    hook: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return hook


def _problems(row: Seam) -> Iterator[str]:
    try:
        importlib.import_module(row.module)
        if row.id not in _marked:
            yield f"{row.id}: the edit at {row.target} is missing"
        _hook(row)
    except Exception as error:  # modules of SGLang run code at import, which may raise anything
        yield f"{row.id}: {error!r}"


def _described(row: Seam) -> dict[str, Any]:
    try:
        found = fingerprint_target(row.target)
    except FingerprintError:
        found = ((), "")
    return {
        "id": row.id,
        "target": row.target,
        "kind": row.kind.name.lower(),
        "params": list(found[0]),
        "body": found[1],
        "drifted": found != (row.params, row.body),
    }
