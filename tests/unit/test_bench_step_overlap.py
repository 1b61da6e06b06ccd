"""Kernels alone and beside fetches, from a trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bench_serving import step_overlap

RESOLVE, LISTED, FLASH = (
    "void hisparse::resolve_kernel<2>(x)",
    "void hisparse::listed_kernel(y)",
    "void a::splitkv_mla(z)",
)


def event(name: str, start: float, length: float, **fields: Any) -> dict[str, Any]:
    return {"cat": "kernel", "name": name, "ts": start, "dur": length, "args": {"grid": [1]}, **fields}


def step(start: float) -> list[dict[str, Any]]:
    """Two leaders; the first has a follower whose rows come beside a GEMM and half of an attention."""
    return [
        event(RESOLVE, start, 10),
        event(LISTED, start + 10, 50),
        event("gemm(a)", start + 12, 8),
        event(FLASH, start + 50, 20),
        event(RESOLVE, start + 80, 10),
        event("gemm(a)", start + 95, 5),
        event(FLASH, start + 100, 18),
    ]


def test_what_a_kernel_loses_beside_a_fetch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [e for n in range(4) for e in step(200.0 * n)]
    overlaps = step_overlap.overlaps(events)
    # Attention was half beside one, and never wholly: it says nothing. Ours are not looked at.
    assert [(o.name, o.alone_us, o.beside_us, o.alone, o.beside, o.lost_us) for o in overlaps] == [
        ("gemm", 5, 8, 4, 4, 12)
    ]
    lines = step_overlap.timeline(events, steps=4)
    assert [line.split()[:2] for line in lines] == [
        ["0", "10"], ["10", "50"], ["50", "20"], ["80", "10"], ["100", "18"], ["200", "10"],
    ]  # fmt: skip
    trace = tmp_path / "trace.json.gz"
    unordered = [*reversed(events), {"cat": "cpu_op", "name": "gemm", "ts": 0, "dur": 1000}]
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": unordered}).encode()))
    assert step_overlap.main([str(trace), "--steps", "4"]) == 0
    out = capsys.readouterr().out
    assert "hisparse::listed_kernel" in out and "5.0      8.0     4     4  gemm [1]" in out


def test_a_trace_without_resolve_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0 resolve launches in 4 steps"):
        step_overlap.timeline([event("gemm(a)", 0, 1)], steps=4)
