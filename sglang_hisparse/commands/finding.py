"""What one check found."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARN, BAD = "ok", "warn", "BAD"


@dataclass(frozen=True, slots=True)
class Finding:
    """`status` is OK, WARN (serving here is not possible, other commands are) or BAD (does not fit).

    `wanted` and `fix` are set wherever the status is not OK; `fix` is a command, or a sentence that says what
    to do.
    """

    name: str
    status: str
    found: str
    wanted: str = ""
    fix: str = ""
