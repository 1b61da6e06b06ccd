"""Line charts as SVG text: light and dark, no dependency, readable at the width of a README."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 92, 58
LETTER = 7.0
"""Width of an average letter at 13 px, for the legend's line breaks."""

LIGHT = ("#6b7280", "#d9480f", "#1d4ed8", "#0f766e", "#9333ea", "#a16207", "#be185d", "#15803d")
DARK = ("#9ca3af", "#ff922b", "#74a9ff", "#2dd4bf", "#c084fc", "#eab308", "#f472b6", "#4ade80")
"""Colours by number, the first for the baseline; the same number is the same system in every chart."""

_STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1f2937}
.title{font-size:16px;font-weight:600}.sub,.tick,.mark{font-size:12px;fill:#4b5563}.mark{font-size:11px}
.back{fill:#ffffff}.grid{stroke:#e5e7eb;stroke-width:1}.axis{stroke:#6b7280;stroke-width:1}
.line{fill:none;stroke-width:2.5;stroke-linejoin:round}.dash{stroke-dasharray:7 4}
.hollow{fill:none;stroke-width:2}
"""


@dataclass(frozen=True)
class Point:
    """One value; `mark` is written beside it."""

    x: float
    y: float
    mark: str = ""


@dataclass(frozen=True)
class Series:
    """A line. `colour` is a number into `LIGHT`; `dashed` for something that is not a system one could run."""

    name: str
    points: tuple[Point, ...]
    colour: int
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """What an axis shows. `log`: each step doubles, and ticks are the values themselves. `top`: fixed end."""

    label: str
    log: bool = False
    percent: bool = False
    top: float | None = None


def chart(title: str, subtitle: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """The SVG of a chart; ValueError where there is no point in it."""
    xs = [point.x for one in series for point in one.points]
    ys = [point.y for one in series for point in one.points]
    if not xs:
        raise ValueError(f"chart {title!r} has no points")
    across, up = _Scale(x, xs, LEFT, WIDTH - RIGHT), _Scale(y, ys, HEIGHT - BOTTOM, TOP)
    parts = [f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>']
    parts.append(f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>')
    parts.append(f'<text class="sub" x="{LEFT}" y="42">{escape(subtitle)}</text>')
    parts += _legend(series)
    for tick in up.ticks:
        at = up(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        label = up.label(tick)
        parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 8}" y="{at + 4:.1f}">{label}</text>')
    for tick in across.ticks:
        at = across(tick)
        parts.append(
            f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 5}"/>'
        )
        label = across.label(tick)
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{at:.1f}" y="{HEIGHT - BOTTOM + 20}">{label}</text>'
        )
    bottom = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text text-anchor="middle" x="{middle}" y="{HEIGHT - 14}">{escape(x.label)}</text>')
    half = (TOP + bottom) / 2
    parts.append(
        f'<text text-anchor="middle" transform="translate(18 {half}) rotate(-90)">{escape(y.label)}</text>'
    )
    marks: list[tuple[float, float]] = []
    for one in series:
        parts += _drawn(one, across, up, marks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">\n'
        f"<style>{_STYLE}{_colours(LIGHT)}@media (prefers-color-scheme:dark){{text{{fill:#e5e7eb}}"
        f".sub,.tick,.mark{{fill:#aeb6c2}}.back{{fill:#0d1117}}.grid{{stroke:#30363d}}{_colours(DARK)}}}</style>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


class _Scale:
    """Values to pixels along one axis, with the ticks."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float) -> None:
        self._axis, self._start, self._end = axis, start, end
        if axis.log:
            self._low, self._high = math.log2(min(values)), math.log2(max(values))
            pad = max(0.15, (self._high - self._low) * 0.04)
            self._low, self._high = self._low - pad, self._high + pad
            self.ticks = sorted(set(values))
        else:
            self._low, top = 0.0, axis.top or max(values) * 1.08 or 1.0
            step = _step(top)
            self._high = axis.top or math.ceil(top / step) * step
            self.ticks = [step * place for place in range(round(self._high / step) + 1)]

    def __call__(self, value: float) -> float:
        at = math.log2(value) if self._axis.log else value
        return self._start + (at - self._low) / (self._high - self._low) * (self._end - self._start)

    def label(self, value: float) -> str:
        """A tick's text."""
        if self._axis.percent:
            return f"{value:.0%}"
        return f"{value:,.0f}" if value == round(value) else f"{value:,.3g}"


def _step(top: float) -> float:
    """A round distance between ticks, five to eight of them below `top`."""
    rough = top / 6
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)


def _legend(series: Sequence[Series]) -> list[str]:
    """Names in rows under the subtitle."""
    parts, x, y = [], float(LEFT), 62
    for one in series:
        width = 34 + LETTER * len(one.name) + 18
        if x + width > WIDTH - RIGHT and x > LEFT:
            x, y = float(LEFT), y + 18
        dash = " dash" if one.dashed else ""
        parts.append(
            f'<line class="line{dash} c{one.colour}" x1="{x}" x2="{x + 26}" y1="{y - 4}" y2="{y - 4}"/>'
        )
        parts.append(f'<text x="{x + 32}" y="{y}">{escape(one.name)}</text>')
        x += width
    return parts


def _drawn(one: Series, across: _Scale, up: _Scale, marks: list[tuple[float, float]]) -> list[str]:
    """A line with its points. `marks` holds where texts are already; one that would cover another is left out."""
    places = [(across(point.x), up(point.y), point.mark) for point in one.points]
    dash = " dash" if one.dashed else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    parts = [f'<polyline class="line{dash} c{one.colour}" points="{path}"/>'] if len(places) > 1 else []
    for x, y, mark in places:
        hollow = f' class="hollow c{one.colour}"' if one.dashed else f' class="f{one.colour}"'
        parts.append(f'<circle{hollow} cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        near_end = x > WIDTH - RIGHT - 40
        at = (x - 7 if near_end else x + 7, max(TOP + 8, y - 6))
        if mark and not any(abs(at[0] - a) < 22 and abs(at[1] - b) < 11 for a, b in marks):
            marks.append(at)
            anchor = "end" if near_end else "start"
            parts.append(
                f'<text class="mark" text-anchor="{anchor}" x="{at[0]:.1f}" y="{at[1]:.1f}">{escape(mark)}</text>'
            )
    return parts


def _colours(palette: Sequence[str]) -> str:
    return "".join(f".c{n}{{stroke:{colour}}}.f{n}{{fill:{colour}}}" for n, colour in enumerate(palette))
