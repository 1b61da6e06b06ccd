"""Every CUDA kernel compiles for the GPUs we name, as SGLang's JIT would do it, and spills no register."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sglang_hisparse.kernels import build

NVCC = shutil.which("nvcc")
SGLANG = importlib.util.find_spec("sglang")
TVM_FFI = importlib.util.find_spec("tvm_ffi")

INSTANCES = {"resolve": 5, "batch_copy": 0, "map_rows": 5}
"""Kernels of a file: resolve for 1, 2, 4 and 8 entries a thread, and the fetch of listed rows; the
copy engines need no kernel; rows of two widths, and pages, entries and leases that are set."""

pytestmark = [
    pytest.mark.skipif(NVCC is None, reason="no nvcc in PATH"),
    pytest.mark.skipif(SGLANG is None or TVM_FFI is None, reason="sglang's JIT headers are not installed"),
]


def translation_unit(kernel: str) -> str:
    """What load_jit generates around a header."""
    headers = ["container/tensor.h", "dtype.h", "error.h", "extra/c_env_api.h", "function.h"]
    return "\n".join(
        [
            *(f"#include <tvm/ffi/{header}>" for header in headers),
            f'#include "{build.csrc() / kernel}.cuh"',
            "namespace sglang {",
            *(
                f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, ({cpp}));"
                for name, cpp in build.ENTRIES[kernel].items()
            ),
            "}",
            "",
        ]
    )


def include_folders() -> list[Path]:
    sglang, tvm_ffi = (Path(spec.origin).parent for spec in (SGLANG, TVM_FFI))
    return [sglang / "kernels" / "jit" / "include", tvm_ffi / "include"]


@pytest.mark.parametrize("arch", ["90a", "100a"])
@pytest.mark.parametrize("kernel", build.ENTRIES)
def test_compiles_without_spills(kernel: str, arch: str, tmp_path: Path) -> None:
    source = tmp_path / "unit.cu"
    source.write_text(translation_unit(kernel))
    command = [
        NVCC, f"-gencode=arch=compute_{arch},code=sm_{arch}", f"-DSGL_CUDA_ARCH={arch[:-1]}0",
        "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-Xcompiler", "-fPIC",
        "-Xptxas", "-v", "-Werror", "all-warnings",
        *(f"-isystem={folder}" for folder in include_folders()),
        "-c", str(source), "-o", str(tmp_path / "unit.o"),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    spills = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", result.stderr
    )
    assert len(spills) == INSTANCES[kernel]
    assert set(spills) <= {("0", "0", "0")}, result.stderr
    print(kernel, arch, re.findall(r"Used (\d+) registers", result.stderr), "registers")


def test_every_kernel_is_listed() -> None:
    assert {path.stem for path in build.csrc().glob("*.cuh")} == set(build.ENTRIES) == set(INSTANCES)
