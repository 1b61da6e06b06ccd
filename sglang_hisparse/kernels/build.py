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
    """Function of `csrc/<name>.cuh` whose C++ name is `entry`, template arguments included.

    Compiled (about half a minute) where SGLang's JIT cache does not hold it: the first call of an entry must
    not fall into a CUDA-graph capture.
    """
    from sglang.kernels.jit.utils import load_jit

    marker = "".join(char if char.isalnum() else "_" for char in entry)
    module = load_jit(marker, cuda_files=[str(csrc() / f"{name}.cuh")], cuda_wrappers=[(name, entry)])
    return module[name]
