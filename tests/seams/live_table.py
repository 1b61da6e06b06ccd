"""Run by test_table.py in a process of its own: applies the real table to the installed SGLang.

A function that some container still holds after `apply` would be called past our hook; so would an override
of the method in a subclass. The JSON on the last line of the output lists both by seam.
"""

from __future__ import annotations

import functools
import gc
import json
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from sglang_hisparse.seams import apply as applier
from sglang_hisparse.seams.fingerprint import inside
from sglang_hisparse.seams.table import SEAMS
from sglang_hisparse.seams.target import resolve


def overrides(owner: type, name: str) -> Iterator[str]:
    """Loaded subclasses of `owner` that define `name` themselves."""
    for child in type.__subclasses__(owner):
        if name in vars(child):
            yield f"{child.__module__}:{child.__qualname__}.{name}"
        yield from overrides(child, name)


def still_held(stock: Any, known: list[Any]) -> Iterator[str]:
    """Containers that refer to the stock function, other than the `known` ones and our own modules."""
    expected = {id(holder) for holder in known}
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name.startswith("sglang_hisparse"):
            expected.add(id(vars(module)))
    for holder in gc.get_referrers(stock):
        if isinstance(holder, dict | list | tuple | functools.partial) and id(holder) not in expected:
            yield f"{type(holder).__name__}: {holder!r:.200}"


def main() -> None:
    """Apply, look, undo, look again."""
    before = {seam.id: resolve(seam.target) for seam in SEAMS}
    stock = {name: found.raw for name, found in before.items()}
    applier.apply(SEAMS)
    applier.verify()
    held: dict[str, list[str]] = {}
    overridden: dict[str, list[str]] = {}
    places: dict[str, int] = {}
    for entry in applier._installed.values():
        if entry.changed:
            found = before[entry.seam.id]
            wrappers = [vars(inside(ours)) for _, _, _, ours in entry.changed]
            held[entry.seam.id] = list(still_held(found.value, [stock, *entry.changed, *wrappers]))
            places[entry.seam.id] = len(entry.changed)
            if isinstance(found.owner, type) and found.name != "__init__":  # constructors call their base's
                overridden[entry.seam.id] = list(overrides(found.owner, found.name))
    report = {"installed": applier.installed(), "held": held, "overridden": overridden, "places": places}
    applier.undo()
    report["restored"] = all(resolve(seam.target).raw is stock[seam.id] for seam in SEAMS)
    print("\n" + json.dumps(report))


if __name__ == "__main__":
    main()
