"""Without the option, or switched off, stock runs untouched; with it, seams apply in the processes that need them."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("sglang.srt.server_args", reason="SGLang is not installed")

ASK = "--hisparse-config={'host_pool_gib': 1}"

PROGRAM = """
import sys
from sglang_hisparse.plugin import register
register()
touched = [m for m in sys.modules if m.startswith(("sglang.", "sglang_hisparse.seams", "torch"))]
if not touched:
    print("untouched")
else:
    from sglang_hisparse.seams.apply import installed
    print("applied", sorted(row["id"] for row in installed()))
"""


def run(arguments: list[str], **env: str) -> str:
    import os

    clean = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_HISPARSE")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        env={**clean, **env},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        ([], {}),
        (["--hisparse-config", '{"top_k": 2048}'], {}),
        ([ASK], {"SGLANG_HISPARSE_DISABLE": "1"}),
        ([], {"SGLANG_HISPARSE": "1", "SGLANG_HISPARSE_DISABLE": "1"}),
        ([], {"SGLANG_HISPARSE_BENCH_REPLAY": "{}", "SGLANG_HISPARSE_DISABLE": "1"}),
        ([], {"SGLANG_HISPARSE_BENCH_REPLAY": "", "SGLANG_HISPARSE_BENCH_NO_COPY": "0"}),
    ],
)
def test_stock_is_untouched(arguments: list[str], env: dict[str, str]) -> None:
    assert run(arguments, **env) == "untouched"


def test_a_process_without_a_scheduler_gets_the_argument_seams_only() -> None:
    from sglang_hisparse.seams.table import SEAMS

    expected = sorted(seam.id for seam in SEAMS if seam.scope == "args")
    assert run([ASK]) == f"applied {expected}"
    assert run([], SGLANG_HISPARSE_BENCH_REPLAY="{}") == f"applied {expected}", "for stock systems too"


def test_a_config_file_counts(tmp_path) -> None:
    from sglang_hisparse.plugin import wanted

    file = tmp_path / "server.yaml"
    file.write_text("hisparse-config: '{\"host_pool_gib\": 4}'\n")
    assert wanted(["--config", str(file)])
    assert wanted([f"--config={file}"])
    file.write_text("page-size: 64\n")
    assert not wanted(["--config", str(file)])
    assert not wanted(["--config", str(tmp_path / "missing.yaml")])
