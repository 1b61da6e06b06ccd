"""Options that arrive as a JSON object: reading them, and saying what is wrong with one by name.

`where` is what the user wrote them behind, as it is named in messages: a command line option, an environment variable.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Sequence
from typing import Any


def read_object(text: str, where: str, known: Collection[str], example: str) -> dict[str, Any]:
    """The object in `text`; ValueError where it is none, or has a key that is not `known`."""
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON ({error}): {text!r}. Example: '{example}'") from None
    if not isinstance(given, dict):
        raise ValueError(f"{where} must be a JSON object, not {given!r}")
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{where}: unknown key {key!r}.{hint} Known keys: {', '.join(known)}")
    return given


def check_number(where: str, name: str, value: Any, low: float, high: float) -> None:
    """ValueError where `value` is no number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{where}: {name} must be a number from {low} to {high}, not {value!r}")


def check_whole(where: str, name: str, value: Any, low: int, high: int) -> None:
    """ValueError where `value` is no whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{where}: {name} must be a whole number from {low} to {high}, not {value!r}")


def check_choice(where: str, name: str, value: Any, choices: Sequence[Any]) -> None:
    """ValueError where `value` is none of `choices`, or equals one and is of another type."""
    if value not in choices or isinstance(value, (bool, float)):
        shown = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{where}: {name} must be one of {shown}, not {value!r}")
