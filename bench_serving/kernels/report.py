"""Tables from the lines of a run, the one of issue 3 last.

python -m bench_serving.kernels.report DIR
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from . import issue_table

Line = dict[str, Any]


FEW_STEPS = 3
"""Fewer that ended beside copies are marked: they say little."""


def load(folder: Path) -> list[Line]:
    """All lines of all sections, each with its section."""
    return [
        {"section": path.stem} | json.loads(text)
        for path in sorted(folder.glob("*.jsonl"))
        for text in path.read_text(encoding="utf-8").splitlines()
    ]


def pick(lines: Iterable[Line], **wanted: Any) -> list[Line]:
    """Lines that have all of these values."""
    return [line for line in lines if all(line.get(key, None) == value for key, value in wanted.items())]


def markdown(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    body = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in body)


def values(lines: Iterable[Line], key: str) -> list[Any]:
    return sorted({line[key] for line in lines if key in line})


def _ceilings(lines: list[Line]) -> list[str]:
    for line in pick(lines, kind="floor"):
        print(
            f"floor, events {line['events']}, {line['what']}: {line['us']} us ({line['us_min']} to {line['us_p90']})"
        )
    for line in pick(lines, kind="copy"):
        print(
            f"copy of {line['bytes']} B {'to the host' if line['to_host'] else 'to the device'}: {line['gb_s']} GB/s"
        )
    gathers = pick(lines, kind="gather")
    pools = values(gathers, "pool_gib")
    rows = []
    for row_bytes in values(gathers, "row_bytes"):
        best = [
            max(
                pick(gathers, row_bytes=row_bytes, pool_gib=pool), key=lambda line: line["gb_s"], default=None
            )
            for pool in pools
        ]
        rows.append([f"{row_bytes} B"] + [
            f"{b['gb_s']} GB/s, {b['gb_s'] * 1e3 / row_bytes:.0f} rows/us ({b['rows']} rows, {b['blocks']} blocks)"
            if b else "-" for b in best
        ])  # fmt: skip
    return [
        "Gather ceilings, best of all counts and blocks",
        markdown(["row", *(f"{p} GiB" for p in pools)], rows),
    ]


CELL = "ours / stock / oracle / gather of the same rows / resolve alone where ours sweeps"


def _cell(lines: list[Line]) -> str:
    cells = []
    for system in ("ours", "stock", "oracle", "gather", "resolve alone"):
        found = [line["us"] for line in pick(lines, system=system)]
        cells.append(f"{min(found):.1f}" if found else "-")
    return " / ".join(cells)


def _resolve(lines: list[Line]) -> list[str]:
    out = []
    for line in pick(lines, kind="all resident"):
        out.append(
            f"all resident, batch {line['batch']}: {line['us']} us ({line['us_min']} to {line['us_p90']})"
        )
    hits = pick(lines, kind="all hits")
    rows = [
        [f"{hot} hot rows", *(pick(hits, hot=hot, batch=b)[0]["us"] if pick(hits, hot=hot, batch=b) else "-"
                              for b in values(hits, "batch"))]
        for hot in values(hits, "hot")
    ]  # fmt: skip
    out += ["All hits, ours, us", markdown(["", *(f"batch {b}" for b in values(hits, "batch"))], rows)]
    grid = [line for line in lines if "system" in line and "kind" not in line]
    for pool in values(grid, "pool_gib"):
        for row_bytes in values(pick(grid, pool_gib=pool), "row_bytes"):
            here = pick(grid, pool_gib=pool, row_bytes=row_bytes)
            percents = values(here, "percent")
            table = [
                [batch, *(_cell(pick(here, batch=batch, percent=percent)) for percent in percents)]
                for batch in values(here, "batch")
            ]
            out.append(f"{pool} GiB, {row_bytes} B rows, us: {CELL}")
            out.append(markdown(["batch", *(f"{p} %" for p in percents)], table))
    return out


def _groups(lines: list[Line]) -> list[str]:
    percents, rows = values(lines, "percent"), []
    for batch in values(lines, "batch"):
        for system, part in issue_table.GROUP_PARTS:
            here = pick(lines, batch=batch, system=system, **({"part": part} if part else {}))
            cells = []
            for percent in percents:
                best = min(pick(here, percent=percent), key=lambda line: line["us"], default=None)
                cells.append(f"{best['us']} us, {best['gb_s']} GB/s" if best else "-")
            rows.append([batch, f"{system} {part}", *cells])
    return ["Four layers of 656 B", markdown(["batch", "", *(f"{p} %" for p in percents)], rows)]


def _listed(lines: list[Line]) -> list[str]:
    """Rows of parts; GB/s where bytes were moved, else microseconds alone."""
    percents = values(lines, "percent")
    parts = list(dict.fromkeys((line["system"], line["part"]) for line in lines if "part" in line))
    rows = []
    for batch in values(lines, "batch"):
        for system, part in parts:
            cells = []
            for percent in percents:
                here = pick(lines, batch=batch, system=system, part=part, percent=percent)
                best = min(here, key=lambda line: line["us"], default=None)
                speed = f", {best['gb_s']} GB/s" if best and "gb_s" in best else ""
                cells.append(f"{best['us']} us{speed}" if best else "-")
            rows.append([batch, f"{system} {part}", *cells])
    return [
        "Four layers of 656 B, pages of a request together",
        markdown(["batch", "", *(f"{p} %" for p in percents)], rows),
    ]


def _pages(lines: list[Line]) -> list[str]:
    rows = []
    for line in pick(lines, kind="page copies"):
        same = {key: line[key] for key in ("to_host", "pages", "row_bytes", "near")}
        losses = [
            f"{loss['slower_percent']} %{' *' if loss['steps_beside'] < FEW_STEPS else ''}, "
            f"{loss['us_per_gib']:.0f} us a GiB"
            for priority in (0, -1)
            for loss in pick(lines, kind="slow-down", priority=priority, **same)
        ]
        rows.append([
            f"{line['row_bytes']} B", line["pages"], "neighbours" if line["near"] else "scattered",
            "spill" if line["to_host"] else "restore", f"{line['gb_s']}{'' if line['batched'] else ', one by one'}",
            f"{100 * line['of_ceiling']:.0f} %", round(line["cpu_us"] / line["pages"] / line["layers"], 2),
            "; ".join(losses) or "-",
        ])  # fmt: skip
    rows.sort(key=lambda row: [str(cell) for cell in row[:4]])
    head = ("rows", "pages", "", "", "GB/s", "of the ceiling", "CPU us a page and layer",
            "a step beside is slower by (priority 0; -1; * few steps beside)")  # fmt: skip
    return ["Page copies", markdown(head, rows)]


def _tune(lines: list[Line]) -> list[str]:
    out = []
    for kind in values(lines, "kind"):
        own = pick(lines, kind=kind)
        blocks, rows = values(own, "blocks"), []
        for key in sorted({(line["pool_gib"], line["batch"], line["percent"]) for line in own}):
            here = pick(own, pool_gib=key[0], batch=key[1], percent=key[2])
            us = {line["blocks"]: f"{line['us']}{' *' if line.get('chosen') else ''}" for line in here}
            rows.append([*key, *(us.get(count, "-") for count in blocks)])
        out += [f"{kind}, us (* is the default)", markdown(["GiB", "batch", "%", *blocks], rows)]
    return out


def show(folder: Path) -> None:
    """Print everything that can be told from the lines."""
    lines = load(folder)
    tables = {
        "ceilings": _ceilings, "resolve": _resolve, "groups": _groups, "listed": _listed, "pages": _pages,
        "tune": _tune,
    }  # fmt: skip
    for section, table in tables.items():
        own = [line for line in pick(lines, section=section) if "failed" not in line]
        if own:
            print(f"\n## {section}\n")
            print("\n\n".join(table(own)))
    failed = [line for line in lines if "failed" in line]
    for line in failed[:10]:
        print(f"FAILED {line['section']}: {line['failed']}: {line['error'].strip().splitlines()[-1][:200]}")
    if len(failed) > 10:
        print(f"FAILED: {len(failed) - 10} more")
    print("\n## issue 3\n")
    print(markdown(issue_table.HEAD, issue_table.rows(lines)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench_serving.kernels.report", description=__doc__)
    parser.add_argument("folder", type=Path)
    show(parser.parse_args().folder)
