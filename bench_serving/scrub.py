"""Takes what belongs to one machine out of what is written: folders, host names, ids of devices."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ABSOLUTE = re.compile(r"(?<![\w.:~>/$-])/(?:[\w.+@=~-]+/)*[\w.+@=~-]+")
_KEPT = re.compile(r"^/(server_info|health|metrics|generate|v1/|flush_cache|model_info|get_)")


_SECRET = {"api_key", "admin_api_key", "ssl_keyfile_password"}
"""Arguments of a server that are nobody's business."""


class Scrubber:
    """`scrub(value)` for texts, lists and dictionaries. `names` maps folders to what they are called."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        places = {
            **(names or {}),
            str(Path(__file__).resolve().parents[1]): ".",
            sys.prefix: "$VENV",
            tempfile.gettempdir(): "$TMPDIR",
        }
        self._places = sorted(
            ((place, name) for place, name in places.items() if len(place) > 1), key=lambda p: -len(p[0])
        )
        self._hosts = [name for name in {platform.node(), os.environ.get("HOSTNAME", "")} if name]

    def __call__(self, value: Any) -> Any:
        """The same value with every text in it scrubbed."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: "..." if key in _SECRET and one else self(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self(one) for one in value]
        return value

    def text(self, text: str) -> str:
        """One text: known folders by their names, other absolute paths by their last part, no host."""
        for place, name in self._places:
            text = re.sub(rf"(?<![\w.-]){re.escape(place)}(?![\w-])", lambda _, name=name: name, text)  # type: ignore[misc]
        text = _ABSOLUTE.sub(_last_part, text)
        for host in self._hosts:
            text = re.sub(rf"\b{re.escape(host)}\b", "HOST", text)
        return re.sub(r"GPU-[0-9a-f]{8}-[0-9a-f-]+", "GPU", text)


def _last_part(found: re.Match[str]) -> str:
    path = found[0]
    return path if _KEPT.match(path) else ".../" + path.rsplit("/", 1)[-1]
