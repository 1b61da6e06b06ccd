"""Let stock's rotary embedding be built on a CPU that has no AMX kernels.

Stock takes a CPU for one only under `SGLANG_USE_CPU_ENGINE=1`, and that switch also imports the CPU build of
`sgl_kernel`, which no wheel beside the CUDA one provides. Without the switch the constructor looks for a vLLM kernel
that it would call on CUDA only: on a CPU the forward is the native one either way. So all that is missing is for the
constructor not to look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.layers.rotary_embedding import base
from sglang.srt.platforms import current_platform


def build_without_kernel(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """AROUND `RotaryEmbedding.__init__`: on the fallback platform, build it as on any other CPU.

    Changes one flag of stock's module for the length of the call; on a CUDA, ROCm or other known platform it calls
    the original and nothing else. Raises what the original raises.
    """
    if current_platform.device_type != "cpu" or base._is_cpu:
        original(*args, **kwargs)
        return
    base._is_cpu = True
    try:
        original(*args, **kwargs)
    finally:
        base._is_cpu = False
