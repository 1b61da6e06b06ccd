"""Findings about installed Python packages: the pinned versions, and whether SGLang will load our plugin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version

from sglang_hisparse import pin
from sglang_hisparse.commands.finding import BAD, OK, Finding

PLUGIN_GROUP, PLUGIN_NAME = "sglang.srt.plugins", "hisparse"


def packages() -> Iterator[Finding]:
    """SGLang and what it pins that we build on, wanted and found. Local parts (`+cu130`) do not count."""
    for name, wanted in {"sglang": pin.SGLANG, **pin.BUILT_ON}.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            found = "missing"
        if found.partition("+")[0] == wanted:
            yield Finding(name, OK, found, wanted)
        else:
            why = "" if name == "sglang" else f", which pins {name}=={wanted}"
            yield Finding(name, BAD, found, wanted, f"pip install {pin.requirement()}{why}")


def plugin() -> Finding:
    """Whether SGLang finds our entry point and its whitelist lets it in."""
    wanted = f"entry point {PLUGIN_NAME} in {PLUGIN_GROUP}"
    if PLUGIN_NAME not in entry_points(group=PLUGIN_GROUP).names:
        return Finding(
            "plugin", BAD, "not installed", wanted, "pip install . in the checkout of this package"
        )
    allowed = [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",") if name.strip()]
    if allowed and PLUGIN_NAME not in allowed:
        fix = f"export SGLANG_PLUGINS={','.join([*allowed, PLUGIN_NAME])}"
        return Finding("plugin", BAD, f"excluded by SGLANG_PLUGINS={','.join(allowed)}", wanted, fix)
    return Finding("plugin", OK, "installed", wanted)
