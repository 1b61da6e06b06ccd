"""Findings about installed Python packages: the pinned versions, and whether SGLang will load our plugin."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path

from sglang_hisparse import pin
from sglang_hisparse.commands.finding import BAD, OK, Finding
from sglang_hisparse.seams.seam import Seam

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
    allowed = _allowed()
    if allowed and PLUGIN_NAME not in allowed:
        fix = f"export SGLANG_PLUGINS={','.join([*allowed, PLUGIN_NAME])}"
        return Finding("plugin", BAD, f"excluded by SGLANG_PLUGINS={','.join(allowed)}", wanted, fix)
    return Finding("plugin", OK, "installed", wanted)


def other_plugins(rows: tuple[Seam, ...]) -> Iterator[Finding]:
    """Plugins that SGLang would load beside ours, and which of our seams' targets their source names.

    Reads their files and imports nothing. What it cannot see (a target put together at run time) the start-up finds,
    and refuses to serve.
    """
    allowed = _allowed()
    for entry in entry_points(group=PLUGIN_GROUP):
        if entry.name == PLUGIN_NAME:
            continue
        name, module = f"plugin {entry.name}", entry.value.partition(":")[0]
        if allowed and entry.name not in allowed:
            yield Finding(name, OK, f"not loaded: SGLANG_PLUGINS={','.join(allowed)}")
            continue
        shared = sorted(shared_targets(entry, rows))
        if shared:
            fix = f"export SGLANG_PLUGINS={PLUGIN_NAME}, or pip uninstall the package that brings {module}"
            found = f"changes what we rely on too: {', '.join(shared)}"
            yield Finding(name, BAD, found, "no plugin on the targets of our seams", fix)
        else:
            yield Finding(name, OK, f"{module} names none of the functions that our seams touch")


def shared_targets(entry: EntryPoint, rows: tuple[Seam, ...]) -> set[str]:
    """Targets of `rows`, or their classes, that stand in the source of a plugin's package as a dotted name, as
    SGLang's hook registry takes them."""
    text = "\n".join(path.read_text(errors="replace") for path in _sources(entry.value.partition(":")[0]))
    named = set(re.findall(r"\bsglang(?:\.\w+)+", text.replace(":", ".")))
    found = set()
    for row in rows:
        dotted = row.target.replace(":", ".")
        owner = dotted.rpartition(".")[0] if "." in row.qualname else dotted
        if dotted in named or owner in named:
            found.add(row.target)
    return found


def _sources(module: str) -> list[Path]:
    """Python files of the top-level package that `module` is in, or the module's own file."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    folders = [Path(where) for where in spec.submodule_search_locations or ()]
    if not folders:
        return [Path(spec.origin)] if spec.origin and spec.origin.endswith(".py") else []
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def _allowed() -> list[str]:
    """Names of SGLANG_PLUGINS, SGLang's whitelist; empty where it lets all in."""
    return [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",") if name.strip()]
