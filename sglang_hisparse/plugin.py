"""Entry point that SGLang calls in every process (`sglang.srt.plugins`), and that our launcher calls too.

Nothing of SGLang or torch is imported here: an import error would be swallowed by SGLang's plugin loader and the
server would run without the tier. Where the option is not given, nothing is touched and stock runs.
"""

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


def register() -> None:
    """Apply the seams of this process, where the tier or a benchmark aid is asked for. Idempotent. A mismatch ends the
    process."""
    bench = benchmark_aids.asked(os.environ)
    if off() or not (os.environ.get(GATE) == "1" or bench or wanted(sys.argv[1:])):
        return
    os.environ[GATE] = "1"
    from sglang_hisparse.seams.apply import apply
    from sglang_hisparse.seams.table import SEAMS

    scopes = {"args"}
    if "sglang.srt.managers.scheduler" in sys.modules:
        import torch

        scopes |= {"scheduler"} if torch.cuda.is_available() else {"scheduler", "cpu"}
        scopes |= {"bench"} if bench else set()
    apply([seam for seam in SEAMS if seam.scope in scopes])
