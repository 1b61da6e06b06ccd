"""The charts of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import svg
from .config import slug
from .folder import Folder, Line, describe, ordered


def plots(folders: Sequence[Folder]) -> dict[str, str]:
    """SVG text by file name."""
    found: dict[str, str] = {}
    colours = _colours(folders)
    for folder in folders:
        for workload in folder.workloads():
            if not folder.good(workload):
                continue
            name = slug(f"{folder.name}-{workload}") if len(folders) > 1 else slug(workload)
            subtitle = describe(folder)
            found[f"throughput-{name}.svg"] = svg.chart(
                f"Output throughput: {workload}",
                subtitle,
                svg.Axis("requests at once", log=True),
                svg.Axis("output tokens a second"),
                _series(folder, workload, colours, lambda x: (x["concurrency"], x["output_tok_s"])),
            )
            if any(line.get("decode_tok_s") for line in folder.good(workload)):
                found[f"decode-{name}.svg"] = svg.chart(
                    f"Decode throughput, prefill left out: {workload}",
                    subtitle,
                    svg.Axis("requests at once", log=True),
                    svg.Axis("tokens a second while decoding"),
                    _series(folder, workload, colours, lambda x: (x["concurrency"], x.get("decode_tok_s"))),
                )
            found[f"interactivity-{name}.svg"] = svg.chart(
                f"Interactivity and throughput: {workload}",
                f"{subtitle}; numbers: requests at once",
                svg.Axis("tokens a second for one user (1000 / median TPOT in ms)"),
                svg.Axis("output tokens a second"),
                _series(folder, workload, colours, _interactivity, marked=True),
            )
    hits = _hit_series(folders)
    if hits:
        found["hit-rate.svg"] = svg.chart(
            "Hit rate over hot rows",
            "share of selected spilled rows that were in HBM; one line a workload, its highest concurrency",
            svg.Axis("hot rows a request may lease", log=True),
            svg.Axis("hit rate", percent=True, top=1.0),
            hits,
        )
    return found


def _colours(folders: Sequence[Folder]) -> dict[str, int]:
    """The same colour for a system in every plot; an oracle has that of its system."""
    names = ordered((name for folder in folders for name in folder.systems()), [])
    oracle = {line["system"]: line.get("oracle_of") for folder in folders for line in folder.lines}
    own = [name for name in names if not oracle.get(name)]
    found = {name: place % len(svg.LIGHT) for place, name in enumerate(own)}
    return found | {name: found.get(oracle[name] or "", 0) for name in names if name not in found}


def _series(
    folder: Folder,
    workload: str,
    colours: dict[str, int],
    place: Callable[[Line], tuple[float, float | None]],
    marked: bool = False,
) -> list[svg.Series]:
    found = []
    for system in folder.systems():
        points = []
        for line in folder.good(workload, system):
            x, y = place(line)
            if y:
                points.append(svg.Point(x, y, str(line["concurrency"]) if marked else ""))
        if points:
            dashed = folder.role(system) == "oracle"
            found.append(svg.Series(system, tuple(points), colours[system], dashed))
    return found


def _interactivity(line: Line) -> tuple[float, float | None]:
    step = line["tpot_ms"]["median"]
    return (1000 / step, line["output_tok_s"]) if step else (0.0, None)


def _hit_series(folders: Sequence[Folder]) -> list[svg.Series]:
    """Hit rates by hot rows, at the highest concurrency where anything was spilled."""
    found: list[svg.Series] = []
    for folder in folders:
        for workload in folder.workloads():
            lines = [
                x
                for x in folder.good(workload)
                if x.get("hit_rate") is not None and x.get("hot_rows") and x.get("role") != "oracle"
            ]
            most = max((line["concurrency"] for line in lines), default=0)
            by_rows = {x["hot_rows"]: x["hit_rate"] for x in lines if x["concurrency"] == most}
            if by_rows:
                points = tuple(
                    svg.Point(rows, by_rows[rows], f"{by_rows[rows]:.1%}") for rows in sorted(by_rows)
                )
                name = f"{workload}, {most} at once"
                found.append(svg.Series(name, points, (len(found) + 1) % len(svg.LIGHT)))
    return found
