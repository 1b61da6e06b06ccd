"""`sglang-hisparse check`: does this machine, and the SGLang on it, fit this package?

Reads metadata, source files, /proc and /sys; imports neither SGLang nor torch. Only the link measurement touches a
device, in a process of its own; `--skip-link` leaves it out.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
from collections.abc import Iterator

from sglang_hisparse import pin
from sglang_hisparse.commands.finding import BAD, OK, WARN, Finding
from sglang_hisparse.commands.link import speeds, widths
from sglang_hisparse.commands.machine import compiler, gpus, host_memory, numa
from sglang_hisparse.commands.packages import other_plugins, packages, plugin
from sglang_hisparse.seams.drift import Problem, check_source
from sglang_hisparse.seams.seam import Seam
from sglang_hisparse.seams.table import SEAMS

NAME = "check"
HELP = "check versions, seams, plugins, compiler, GPU, link and host memory; every problem comes with a fix"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, for reports and scripts")
    parser.add_argument(
        "--skip-link",
        action="store_true",
        help="do not measure the link to the GPUs (a second a GPU, 0.5 GiB of its memory, 2 GiB of host memory)",
    )


def run(options: argparse.Namespace) -> int:
    """Print all findings; 1 when one of them keeps the tier from serving."""
    findings = list(collect(link=not options.skip_link))
    bad = sum(finding.status == BAD for finding in findings)
    if options.json:
        found = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"sglang_hisparse": pin.PACKAGE, "ok": not bad, "findings": found}, indent=2))
    else:
        print(render(findings))
    return 1 if bad else 0


def collect(link: bool = True) -> Iterator[Finding]:
    """All findings, in the order in which a person would mend them. `link`: measure it."""
    yield from packages()
    yield plugin()
    yield from other_plugins(SEAMS)
    yield from seams(SEAMS)
    yield compiler()
    yield from gpus()
    yield from widths()
    yield from speeds() if link else ()
    yield from host_memory()
    yield numa()


def seams(rows: tuple[Seam, ...], root: str | None = None) -> Iterator[Finding]:
    """One finding a seam, or a single one when SGLang is not there to compare with."""
    if root is None and importlib.util.find_spec("sglang") is None:
        fix = f"pip install {pin.requirement()}, then check again"
        yield Finding("seams", BAD, "not compared", f"{len(rows)} that fit", fix)
        return
    for name, problem in check_source(rows, root).items():
        yield _seam(name, problem)


def _seam(name: str, problem: Problem | None) -> Finding:
    if problem is None:
        return Finding(f"seam {name}", OK, "fits")
    kind = {"drift": "drifted"}.get(problem.kind, problem.kind)
    return Finding(
        f"seam {name}",
        BAD,
        f"{kind}: {problem.seam.target}: {problem.detail}",
        f"the text of SGLang {pin.SGLANG}",
        f"pip install {pin.requirement()}; if that is installed, its files were edited: reinstall it",
    )


def render(findings: list[Finding]) -> str:
    """Plain text, one line a finding; seams that fit share one line."""
    fitting = [finding for finding in findings if finding.name.startswith("seam ") and finding.status == OK]
    shown = [finding for finding in findings if finding not in fitting]
    if fitting:
        total = sum(finding.name.startswith("seam ") for finding in findings)
        shown.insert(findings.index(fitting[0]), Finding("seams", OK, f"{len(fitting)} of {total} fit"))
    width = max(len(finding.name) for finding in shown)
    lines = [f"sglang_hisparse {pin.PACKAGE} for SGLang {pin.SGLANG}", ""]
    for finding in shown:
        wanted = f" (wanted: {finding.wanted})" if finding.wanted and finding.status != OK else ""
        lines.append(f"  {finding.status:4}  {finding.name:{width}}  {finding.found}{wanted}")
        if finding.fix:
            lines.append(f"  {'':4}  {'':{width}}  fix: {finding.fix}")
    bad, warn = (sum(finding.status == status for finding in findings) for status in (BAD, WARN))
    lines += ["", f"{bad} problem(s), {warn} warning(s)" if bad or warn else "Everything fits."]
    return "\n".join(lines)
