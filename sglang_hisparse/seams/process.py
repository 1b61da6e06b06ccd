"""Which process is this? A spawned child imports our launcher before it imports what it is going to run."""

from __future__ import annotations

from typing import Any

from sglang_hisparse.plugin import register


def register_here(*args: Any, **kwargs: Any) -> None:
    """Before SGLang loads its plugins: by now a scheduler process has imported the scheduler, so its seams apply
    here also where this package runs from a checkout and is no installed plugin."""
    register()
