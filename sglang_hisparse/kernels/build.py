"""Finds the CUDA sources and builds them with SGLang's own JIT, at first use."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent.parent


def csrc() -> Path:
    """Folder of the CUDA sources: `_csrc` inside an installed wheel, else `csrc` of the checkout."""
    installed, checkout = _PACKAGE / "_csrc", _PACKAGE.parent / "csrc"
    for folder in (installed, checkout):
        if (folder / "resolve.cuh").is_file():
            return folder
    raise FileNotFoundError(
        f"no CUDA sources: neither {installed} nor {checkout} holds resolve.cuh; reinstall sglang_hisparse"
    )


@functools.cache
def kernel(name: str, entry: str) -> Any:
    """The function that `csrc/<name>.cuh` exports as `entry`, its C++ name.

    Compiled (about half a minute) where SGLang's JIT cache does not hold it: the first call must not fall
    into a CUDA-graph capture.
    """
    from sglang.kernels.jit.utils import load_jit

    module = load_jit(
        f"hisparse_{name}", cuda_files=[str(csrc() / f"{name}.cuh")], cuda_wrappers=[(name, entry)]
    )
    return module[name]
