"""Is the tier asked for in this process? Read by the plugin and, in a patched tree, by the calls in SGLang's files."""

from __future__ import annotations

import os
import sys

from sglang_hisparse import benchmark_aids

GATE = "SGLANG_HISPARSE"
"""Environment variable that turns the seams on; set by us where the option is seen, inherited by children. Set it to
1 yourself to use the tier through `sglang.Engine(hisparse_config=...)`."""

DISABLE = "SGLANG_HISPARSE_DISABLE"
"""Environment variable that keeps the package out, whatever the arguments say."""


def wanted(arguments: list[str]) -> bool:
    """True where the command line asks for the tier: our key in --hisparse-config, or in a --config file."""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if not equals:
            value = arguments[index + 1] if index + 1 < len(arguments) else ""
        if (
            name in ("--hisparse-config", "--hierarchical-sparse-attention-extra-config")
            and "host_pool_gib" in value
        ):
            return True
        if name == "--config" and os.path.isfile(value):
            with open(value, encoding="utf-8") as file:
                if "host_pool_gib" in file.read():
                    return True
    return False


def off() -> bool:
    """True where the environment keeps the package out."""
    return os.environ.get(DISABLE, "") not in ("", "0")


def asked() -> bool:
    """True where the tier or a benchmark aid is asked for and not kept out; children then answer the same."""
    if off() or not (os.environ.get(GATE) == "1" or benchmark_aids.asked(os.environ) or wanted(sys.argv[1:])):
        return False
    os.environ[GATE] = "1"
    return True
