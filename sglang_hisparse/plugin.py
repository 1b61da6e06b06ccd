"""Entry point that SGLang calls in every process (`sglang.srt.plugins`), and that our launcher calls too.

Nothing of SGLang or torch is imported here: an import error would be swallowed by SGLang's plugin loader and the
server would run without the tier. Where the option is not given, nothing is touched and stock runs.
"""

from __future__ import annotations

import os
import sys

from sglang_hisparse import benchmark_aids
from sglang_hisparse.gate import DISABLE, GATE, asked, off, wanted

PATCHED_TREE = "sglang.srt.mem_cache.hisparse_tier"
"""The package's modules in a tree that carries `patches/`; its SGLang imports them before it loads any plugin."""


def register() -> None:
    """Apply the seams of this process, where the tier or a benchmark aid is asked for. Idempotent. A mismatch ends the
    process."""
    if not asked():
        return
    if PATCHED_TREE in sys.modules:
        raise SystemExit(
            "this SGLang is patched with sglang_hisparse already, and the package beside it would apply the same seams "
            "again. Do one of: pip uninstall sglang_hisparse; start with SGLANG_PLUGINS set to the other plugins you "
            "use (or to none); use an SGLang without the patches"
        )
    from sglang_hisparse.seams.apply import apply
    from sglang_hisparse.seams.table import SEAMS

    scopes = {"args"}
    if "sglang.srt.managers.scheduler" in sys.modules:
        import torch

        scopes |= {"scheduler"} if torch.cuda.is_available() else {"scheduler", "cpu"}
        scopes |= {"bench"} if benchmark_aids.asked(os.environ) else set()
    apply([seam for seam in SEAMS if seam.scope in scopes])


__all__ = ["DISABLE", "GATE", "PATCHED_TREE", "off", "register", "wanted"]
