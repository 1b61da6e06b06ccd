"""The table of issue 3: what was asked, what was measured, and by how much a figure misses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Line = dict[str, Any]
Key = tuple[Any, ...]

HEAD = ("figure", "stock here (issue)", "asked", "measured", "met")

GROUP_PARTS = (
    ("resolve alone", "one launch"),
    ("ours", "leader, then followers"),
    ("ours", "leader"),
    ("ours", "followers"),
    ("stock", "leader, then followers"),
    ("stock", "leader"),
    ("gather", ""),
)

UNKNOWN = "not measured"


def _span(values: list[float], unit: str) -> str:
    low, high = min(values), max(values)
    return f"{low:.1f} {unit}" if low == high else f"{low:.1f} to {high:.1f} {unit}"


def _at_most(figure: str, issue: str, limit: float, ours: list[float], stock: list[float]) -> list[str]:
    """A row of microseconds: the worst of `ours` must not be over `limit`."""
    here = f"{_span(stock, 'us')} ({issue})" if stock else f"({issue})"
    if not ours:
        return [figure, here, f"{limit:g} us", UNKNOWN, "-"]
    over = max(ours) - limit
    met = "yes" if over <= 0 else f"no: {over:.1f} us over ({100 * over / limit:.0f} %)"
    return [figure, here, f"{limit:g} us", _span(ours, "us"), met]


def _one_layer(lines: list[Line], system: str, wanted: Callable[[Line], bool]) -> dict[Key, float]:
    """(pool, row bytes, batch, percent) -> us, of the single-layer section; the best where there are several."""
    found: dict[Key, float] = {}
    for line in lines:
        if (
            line.get("section") == "resolve"
            and line.get("system") == system
            and "kind" not in line
            and wanted(line)
        ):
            key = (line["pool_gib"], line["row_bytes"], line["batch"], line["percent"])
            found[key] = min(found.get(key, line["us"]), line["us"])
    return found


def _single(
    lines: list[Line], figure: str, issue: str, limit: float, wanted: Callable[[Line], bool]
) -> list[str]:
    ours, stock = (list(_one_layer(lines, system, wanted).values()) for system in ("ours", "stock"))
    return _at_most(figure, issue, limit, ours, stock)


def _beside_the_ceiling(lines: list[Line]) -> list[list[str]]:
    def wanted(line: Line) -> bool:
        return line["batch"] >= 16 and line["percent"] >= 13

    ours, stock, same = (_one_layer(lines, system, wanted) for system in ("ours", "stock", "gather"))
    figure = "batch 16 and 64, 13.4 to 100 %"
    speeds = {
        line["us"]: line["gb_s"]
        for line in lines
        if line.get("system") == "stock" and line.get("section") == "resolve" and line.get("gb_s") and wanted(line)
        and line["pool_gib"] == 0.3
    }  # fmt: skip
    here = f"{_span(list(speeds.values()), 'GB/s')} (31 to 44)" if speeds else "(31 to 44 GB/s)"
    pool_best: dict[Key, float] = {}
    for line in lines:
        if line.get("section") == "ceilings" and line.get("kind") == "gather":
            key = (line["pool_gib"], line["row_bytes"])
            pool_best[key] = max(pool_best.get(key, 0.0), line["gb_s"])
    moved = {
        (line["pool_gib"], line["row_bytes"], line["batch"], line["percent"]): line["gb_s"]
        for line in lines
        if line.get("system") == "ours" and line.get("section") == "resolve" and "gb_s" in line
    }
    rows = []
    for asked, ratios in (
        ("95 % of the gather ceiling", {k: moved[k] / pool_best[k[:2]] for k in ours if k[:2] in pool_best}),
        ("95 % of a gather of the same rows", {k: same[k] / ours[k] for k in ours if k in same}),
        ("never under stock", {k: stock[k] / ours[k] for k in ours if k in stock}),
    ):
        if not ratios:
            rows.append([figure, here, asked, UNKNOWN, "-"])
            continue
        least = 1.0 if "stock" in asked else 0.95
        worst = min(ratios, key=lambda key: ratios[key])
        low, high, under = ratios[worst], max(ratios.values()), sum(r < least for r in ratios.values())
        where = f"{worst[0]} GiB, {worst[1]} B, batch {worst[2]}, {worst[3]} %"
        text = f"{low:.2f} to {high:.2f} x" if "stock" in asked else f"{100 * low:.0f} to {100 * high:.0f} %"
        met = (
            "yes"
            if not under
            else f"no: {under} of {len(ratios)} below, {100 * (least - low):.0f} points at worst"
        )
        rows.append([figure, here, asked, f"{text}; lowest at {where}", met])
    return rows


def _group(lines: list[Line]) -> list[str]:
    figure = "one 4-layer group, 24 GiB pool, batch 16 and more, 13.4 to 100 %"
    speeds = {
        part: [
            line["gb_s"]
            for line in lines
            if line.get("section") == "groups" and line.get("batch", 0) >= 16 and (line.get("system"), line.get("part"))
            == part
        ]
        for part in GROUP_PARTS
    }  # fmt: skip
    stock = speeds["stock", "leader, then followers"]
    here = f"{_span(stock, 'GB/s')} (25)" if stock else "(25 GB/s)"
    one, split = speeds["resolve alone", "one launch"], speeds["ours", "leader, then followers"]
    if not one:
        return [figure, here, "45 GB/s", UNKNOWN, "-"]
    text = f"one launch {_span(one, 'GB/s')}" + (f"; split {_span(split, 'GB/s')}" if split else "")
    under = 45 - min(one)
    return [figure, here, "45 GB/s", text, "yes" if under <= 0 else f"no: {under:.1f} GB/s under at worst"]


def _beside_compute(lines: list[Line]) -> list[str]:
    """Four layers with rows fetched apart, beside the same with one launch; and what the fetch adds to the compute."""
    figure = "followers apart, beside compute, batch 1 to 128"
    us = {
        (line["part"], line["batch"], line["percent"]): line["us"]
        for line in lines
        if line.get("section") == "listed" and "compute" in line.get("part", "")
    }
    ratios = {
        key: us["apart, compute", *key] / us["one launch, compute", *key]
        for part, *rest in us
        if part == "one launch, compute" and ("apart, compute", *(key := tuple(rest))) in us
    }
    if not ratios:
        return [figure, "-", "never slower than one launch", UNKNOWN, "-"]
    worst = max(ratios, key=lambda key: ratios[key])
    text = f"{min(ratios.values()):.2f} to {ratios[worst]:.2f} x the time; worst at batch {worst[0]}, {worst[1]} %"
    met = "yes" if ratios[worst] <= 1.01 else f"no: {100 * (ratios[worst] - 1):.0f} % at worst"
    return [figure, "-", "never slower than one launch", text, met]


def _copies(lines: list[Line]) -> list[list[str]]:
    """Many pages, neighbours and not: the worst decides."""
    speeds = [line for line in lines if line.get("kind") == "page copies"]
    most = max((line["pages"] for line in speeds), default=0)
    shares = [100 * line["of_ceiling"] for line in speeds if line["pages"] == most]
    slower = [line["slower_percent"] for line in lines if line.get("kind") == "slow-down"]
    under, over = 85 - min(shares, default=0.0), max(slower, default=0.0) - 3
    return [
        [
            "spill and restore", "-", "85 % of the copy ceiling", _span(shares, "%") if shares else UNKNOWN,
            "-" if not shares else "yes" if under <= 0 else f"no: {under:.1f} points at worst",
        ],
        [
            "a step beside them", "-", "3 % slower at most", _span(slower, "%") if slower else UNKNOWN,
            "-" if not slower else "yes" if over <= 0 else f"no: {over:.1f} points at worst",
        ],
    ]  # fmt: skip


def rows(lines: list[Line]) -> list[list[str]]:
    """One row a figure; all pools, rows and batches that a figure covers are in it, the worst decides."""
    lines = [line for line in lines if "failed" not in line]
    resident = [line["us"] for line in lines if line.get("kind") == "all resident"]
    return [
        _at_most("all resident", "-", 4, resident, []),
        _single(lines, "all hits, batch 1 to 64", "25 to 27", 8, lambda line: line["percent"] == 0),
        _single(
            lines, "batch 1, 13.4 %, 656 B, 0.3 GiB", "51", 20,
            lambda line: (line["pool_gib"], line["row_bytes"], line["batch"], line["percent"]) == (0.3, 656, 1, 13.4),
        ),
        _single(
            lines, "batch 1, 100 %, 656 B, 0.3 GiB", "234", 60,
            lambda line: (line["pool_gib"], line["row_bytes"], line["batch"], line["percent"]) == (0.3, 656, 1, 100),
        ),
        *_beside_the_ceiling(lines),
        _group(lines),
        _beside_compute(lines),
        *_copies(lines),
    ]  # fmt: skip
