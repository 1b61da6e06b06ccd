"""The tables of page copies: by path, and what `page_tune` found."""

from __future__ import annotations

from typing import Any

Line = dict[str, Any]

SHARE_PERCENT, SLOWER_PERCENT = 85, 3
"""What issue 3 asks: at least, and at most."""

MOST_ROWS = 24

FEW_STEPS = 3
"""Fewer that ended beside the copies are marked: they say little."""

HEAD = ("way", "pages", "step, kernel priority", "GB/s", "of the ceiling", "CPU us", "a step is slower by",
        "us lost a GiB", "GB/s beside steps")  # fmt: skip


def shortfall(line: Line) -> float:
    """By how much both figures of the issue are missed, each in parts of the figure; 0 meets them."""
    slow = max(0.0, SHARE_PERCENT - 100 * line["of_ceiling"]) / SHARE_PERCENT
    return slow + max(0.0, line.get("slower_percent", 0.0) - SLOWER_PERCENT) / SLOWER_PERCENT


def way(line: Line) -> str:
    """Path and sizes, for people."""
    if line["path"] == "strided":
        return "strided"
    grid = f"{line['blocks']} x {line['threads']}"
    if line["path"] == "kernel":
        return f"kernel, {grid}"
    return f"staged, {line['piece_mib']:g} of {line['staging_mib']:g} MiB, {grid}"


def slower(line: Line) -> str:
    return f"{line['slower_percent']} %{' *' if line.get('steps_beside', FEW_STEPS) < FEW_STEPS else ''}"


def tuned(lines: list[Line]) -> dict[str, list[list[Any]]]:
    """A table for each direction, the best last; worse ones than MOST_ROWS are left out."""
    tables: dict[str, list[list[Any]]] = {}
    for to_host, direction in ((True, "spill"), (False, "restore")):
        own = [line for line in lines if line.get("kind") == "page tune" and line["to_host"] == to_host]
        own.sort(key=lambda line: (shortfall(line), line.get("us_per_gib", 0.0)), reverse=True)
        tables[direction] = [
            [
                way(line),
                line["pages"],
                f"{line['priority']}, {0 if line.get('kernel_priority') is None else line['kernel_priority']}",
                line["gb_s"],
                f"{100 * line['of_ceiling']:.0f} %",
                line["cpu_us"],
                slower(line) if "slower_percent" in line else "-",
                line.get("us_per_gib", "-"),
                line.get("gb_s_beside", "-"),
            ]
            for line in own[-MOST_ROWS:]
        ]
    return tables
