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


ENTRIES = {
    "resolve": {"resolve": "hisparse::Resolve::run", "fetch_listed": "hisparse::FetchListed::run"},
    "map_rows": {
        "map_rows": "hisparse::MapRows::run",
        "map_pages": "hisparse::MapPages::run",
        "set_entries": "hisparse::SetEntries::run",
        "set_lease": "hisparse::SetLease::run",
    },
    "batch_copy": {"batch_copy": "hisparse::BatchCopy::run"},
}
"""source file of csrc/ -> {function: its C++ name}"""


def kernel(source: str, function: str) -> Any:
    """`function` of `csrc/<source>.cuh`.

    Compiled (about half a minute) where SGLang's JIT cache does not hold it: the first call must not fall
    into a CUDA-graph capture.
    """
    return _module(source)[function]


@functools.cache
def _module(source: str) -> Any:
    from sglang.kernels.jit.utils import load_jit

    return load_jit(
        f"hisparse_{source}",
        cuda_files=[str(csrc() / f"{source}.cuh")],
        cuda_wrappers=list(ENTRIES[source].items()),
    )
