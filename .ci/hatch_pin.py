"""Hatch hooks of this project: metadata from `sglang_hisparse/pin.py`, and the folders beside the package.

A version stands in pin.py and nowhere else. The file is run, not imported: building needs no dependency.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class PinHook(MetadataHookInterface):
    """Fills the fields that pyproject.toml lists as dynamic."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set version, extras and readme of the project table."""
        pin = runpy.run_path(str(Path(self.root, "sglang_hisparse", "pin.py")))
        metadata["version"] = pin["PACKAGE"]
        metadata["readme"] = "README.md" if Path(self.root, "README.md").exists() else None
        metadata["optional-dependencies"] = {
            "sglang": [pin["requirement"]()],
            "test": [pin["requirement"](), *pin["TEST_TOOLS"]],
        }


class BesideHook(BuildHookInterface[Any]):
    """Ships `csrc/` and `patches/` inside the wheel as `sglang_hisparse/_csrc` and `_patches`.

    Not in an editable install: there the sources are read from the checkout, and a copy would go stale.
    """

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the folders that exist to the files of a standard wheel."""
        for folder in ("csrc", "patches") if version == "standard" else ():
            if Path(self.root, folder).is_dir():
                build_data["force_include"][folder] = f"sglang_hisparse/_{folder}"
