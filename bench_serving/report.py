"""Markdown tables and SVG plots out of results folders: `python -m bench_serving.report DIR...`

Writes `report.md` and its plots into the first folder, or into --out. The baseline comes first, the others with factors
over it; where ours loses is a table of its own that is always there.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .config import slug
from .folder import Folder, Line, describe
from .plots import plots
from .store import key_of
from .timeline import server_rate

GB = 1e9


# -- tables ----------------------------------------------------------------------------------------------------


def _number(value: Any, scale: float = 1.0, digits: int = 1) -> str:
    return "-" if value is None else f"{value / scale:,.{digits}f}"


def _times(value: Any, base: Any) -> str:
    return f"{value / base:.2f}x" if value and base else "-"


Cell = Callable[[Folder, Line, Line | None], str]

COLUMNS: tuple[tuple[str, Cell], ...] = (
    ("at once", lambda f, x, base: str(x["concurrency"])),
    ("system", lambda f, x, base: x["system"] + (" (partial)" if x.get("status") == "partial" else "")),
    ("output tok/s", lambda f, x, base: _number(x["output_tok_s"])),
    ("x", lambda f, x, base: _times(x["output_tok_s"], base and base["output_tok_s"])),
    ("decode tok/s", lambda f, x, base: _number(x.get("decode_tok_s"))),
    ("x", lambda f, x, base: _times(x.get("decode_tok_s"), base and base.get("decode_tok_s"))),
    ("by the server", lambda f, x, base: _number(server_rate(f.samples.get(key_of(x), [])), digits=0)),
    ("TPOT ms, median / p99", lambda f, x, base: _pair(x["tpot_ms"])),
    ("ITL ms, median / p99", lambda f, x, base: _pair(x["itl_ms"])),
    ("TTFT s, median / p99", lambda f, x, base: _pair(x["ttft_ms"], 1000.0, 2)),
    ("ran at most", lambda f, x, base: _number(x.get("most_running"), digits=0)),
    ("hot, of spilled", lambda f, x, base: "-" if x.get("hit_rate") is None else f"{x['hit_rate']:.1%}"),
    ("GB to device", lambda f, x, base: _number(x.get("bytes_to_device"), GB, 2)),
    ("GB to host", lambda f, x, base: _number(x.get("bytes_to_host"), GB, 2)),
    ("prefix hits", lambda f, x, base: _share(x.get("cached_tokens"), x.get("prompt_tokens"))),
    ("retracted", lambda f, x, base: _number(x.get("retractions"), digits=0)),
    ("of no-IO", lambda f, x, base: _of_oracle(f, x)),
)


def _pair(kinds: dict[str, float], scale: float = 1.0, digits: int = 1) -> str:
    return f"{kinds['median'] / scale:,.{digits}f} / {kinds['p99'] / scale:,.{digits}f}"


def _share(part: float | None, whole: float | None) -> str:
    return "-" if part is None or not whole else f"{part / whole:.0%}"


def _of_oracle(folder: Folder, line: Line) -> str:
    """Decode throughput as a share of the same run without its bytes."""
    for oracle in folder.good(line["workload"]):
        same = oracle["concurrency"] == line["concurrency"] and oracle.get("oracle_of") == line["system"]
        if same and oracle.get("decode_tok_s") and line.get("decode_tok_s"):
            return f"{line['decode_tok_s'] / oracle['decode_tok_s']:.0%}"
    return "-"


def rows(folder: Folder, workload: str) -> list[list[str]]:
    """Cells of a workload's table, by concurrency, the baseline first; columns that are empty are left out later."""
    systems = folder.systems()
    base_name = next((name for name in systems if folder.role(name) == "baseline"), None)
    found = []
    for concurrency in sorted({line["concurrency"] for line in folder.good(workload)}):
        base = folder.line(workload, base_name, concurrency) if base_name else None
        for system in systems:
            line = folder.line(workload, system, concurrency)
            if line is not None:
                found.append([cell(folder, line, base) for _, cell in COLUMNS])
    return found


def table(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Markdown; columns without any value are left out."""
    used = [place for place in range(len(heads)) if any(row[place] not in ("-", "") for row in cells)]
    if not used:
        return "(no results)"
    widths = [max(len(heads[p]), *(len(row[p]) for row in cells)) for p in used]
    left = [heads[p] in ("system", "workload", "ours", "against", "measure", "") for p in used]

    def line(values: Sequence[str]) -> str:
        shown = [
            v.ljust(w) if is_left else v.rjust(w) for v, w, is_left in zip(values, widths, left, strict=True)
        ]
        return f"| {' | '.join(shown)} |"

    rule = ["-" * w if is_left else "-" * (w - 1) + ":" for w, is_left in zip(widths, left, strict=True)]
    body = [line([row[p] for p in used]) for row in cells]
    return "\n".join([line([heads[p] for p in used]), f"| {' | '.join(rule)} |", *body])


MEASURES: tuple[tuple[str, Callable[[Line], float | None], bool], ...] = (
    ("output tok/s", lambda x: x["output_tok_s"], True),
    ("decode tok/s", lambda x: x.get("decode_tok_s"), True),
    ("TPOT", lambda x: x["tpot_ms"]["median"], False),
    ("TTFT", lambda x: x["ttft_ms"]["median"], False),
)


def losses(folder: Folder) -> list[list[str]]:
    """For ours against every other system: the worst ratio of every measure, whether it is a loss or not."""
    found = []
    ours = [name for name in folder.systems() if folder.role(name) == "ours"]
    others = [name for name in folder.systems() if folder.role(name) in ("baseline", "other")]
    for mine in ours:
        for other in others:
            for measure, value, more_is_better in MEASURES:
                worst: tuple[float, Line] | None = None
                for workload in folder.workloads():
                    for line in folder.good(workload, mine):
                        against = folder.line(workload, other, line["concurrency"])
                        a, b = value(line), value(against) if against else None
                        if not a or not b:
                            continue
                        ratio = a / b if more_is_better else b / a
                        if worst is None or ratio < worst[0]:
                            worst = ratio, line
                if worst is not None:
                    ratio, line = worst
                    verdict = "loses" if ratio < 0.995 else "equal" if ratio < 1.005 else "wins"
                    where = f"{line['workload']}, {line['concurrency']} at once"
                    digits = 3 if 0.95 < ratio < 1.05 else 2
                    found.append([mine, other, measure, f"{ratio:.{digits}f}x", verdict, where])
    return found


def reason(line: Line) -> str:
    """The last exception that a failed line names, else the first line of its error."""
    said = (line.get("error") or "no reason").strip().splitlines()
    named = [text for text in said[1:] if re.match(r"\s*[\w.]*(Error|Exception|Mismatch)\b.*:", text)]
    return (named[-1] if named else said[0]).strip()


def short_table(lines: Sequence[Line]) -> str:
    """For a terminal: every line in short, failures with their reason's first words."""
    heads = ("workload", "at once", "system", "tok/s", "decode", "TPOT", "TTFT", "ran", "hot", "GB in", "")
    cells = []
    for line in sorted(lines, key=lambda x: (x["workload"], x["concurrency"], x["role"] != "baseline")):
        first = [line["workload"], str(line["concurrency"]), line["system"]]
        if not line.get("output_tok_s"):
            cells.append([*first, *["-"] * 7, f"{line['status']}: {reason(line)[:90]}"])
            continue
        hit = line.get("hit_rate")
        cells.append(
            [
                *first,
                _number(line["output_tok_s"]),
                _number(line.get("decode_tok_s")),
                _number(line["tpot_ms"]["median"]),
                _number(line["ttft_ms"]["median"] / 1000, digits=2),
                _number(line.get("most_running"), digits=0),
                "-" if hit is None else f"{hit:.1%}",
                _number(line.get("bytes_to_device"), GB, 2),
                "" if line["status"] == "ok" else line["status"],
            ]
        )
    return table(heads, cells)


# -- the document ----------------------------------------------------------------------------------------------


def markdown(folders: Sequence[Folder], pictures: Iterable[str]) -> str:
    """The report; `pictures` are the file names of the plots."""
    pictures = list(pictures)
    parts = ["# Serving benchmark"]
    for folder in folders:
        parts.append(f"## {folder.config.get('title') or folder.name}")
        versions = folder.environment.get("versions", {})
        shown = ", ".join(f"{name} {version}" for name, version in versions.items())
        commit = str(folder.environment.get("commit", ""))[:10]
        parts.append(
            f"{describe(folder)}. {shown}{f', commit {commit}' if commit else ''}. Client: stock "
            "`sglang.bench_serving`; commands in `commands.txt`. **decode tok/s** counts tokens after a request's "
            "first, over the time in which steps ran, so that prefill is left out; **by the server**: its own gauge "
            "while most requests ran, which a front end that falls behind does not change. **x** is over the first "
            "system of the same concurrency."
        )
        for workload in folder.workloads():
            parts.append(f"### {workload}")
            parts.append(table([head for head, _ in COLUMNS], rows(folder, workload)))
            own = slug(f"{folder.name}-{workload}") if len(folders) > 1 else slug(workload)
            parts += [f"![{name}]({name})" for name in pictures if name.split("-", 1)[1] == f"{own}.svg"]
        parts.append("### Where ours is worst")
        worst = losses(folder)
        heads = ("ours", "against", "measure", "worst", "", "workload")
        parts.append(table(heads, worst) if worst else "(no run of ours beside another system's)")
        bad = [line for line in folder.lines if line.get("status") != "ok"]
        if bad:
            parts.append("### Without a result, or with part of one")
            parts.append(
                "\n".join(
                    f"- {x['system']}, {x['workload']}, {x['concurrency']} at once: {x['status']}: {reason(x)[:200]}"
                    for x in bad
                )
            )
    if "hit-rate.svg" in pictures:
        parts += ["## Hit rate over hot rows", "![hit-rate.svg](hit-rate.svg)"]
    return "\n\n".join(parts) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report; exit status 2 where a folder has no results."""
    parser = argparse.ArgumentParser(prog="bench_serving.report", description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument(
        "--out", type=Path, help="folder for report.md and the plots (default: the first DIR)"
    )
    options = parser.parse_args(argv)
    try:
        folders = [Folder.read(path) for path in options.folders]
    except FileNotFoundError as error:
        print(f"bench_serving.report: {error}", file=sys.stderr)
        return 2
    out = options.out or options.folders[0]
    out.mkdir(parents=True, exist_ok=True)
    pictures = plots(folders)
    for name, text in pictures.items():
        (out / name).write_text(text)
    (out / "report.md").write_text(markdown(folders, pictures))
    print(out / "report.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
