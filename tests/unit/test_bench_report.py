"""Tables and plots out of results folders."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from bench_serving import report, svg
from bench_serving.folder import Folder
from bench_serving.plots import plots
from tests.unit.bench_results import folder, line

SVG = "{http://www.w3.org/2000/svg}"


def rows_of(text: str, heading: str) -> list[list[str]]:
    """Cells of the first table under `heading`."""
    part = text.split(heading, 1)[1].split("\n#", 1)[0]
    return [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in part.splitlines()
        if row.startswith("|")
    ]


def test_tables_start_with_the_baseline_and_show_factors(tmp_path: Path) -> None:
    assert report.main([str(folder(tmp_path / "run"))]) == 0
    head, _, *body = rows_of((tmp_path / "run" / "report.md").read_text(), "### cold 32K")
    assert head[:4] == ["at once", "system", "output tok/s", "x"]
    at_64 = [row for row in body if row[0] == "64"]
    assert [row[1] for row in at_64] == ["no tier", "stock HiSparse", "ours", "ours, no copies"]
    decode_factor = head.index("decode tok/s") + 1
    assert [row[decode_factor] for row in at_64] == ["1.00x", "2.46x", "3.93x", "4.10x"]
    assert at_64[2][head.index("of no-IO")] == "96%"
    assert at_64[2][head.index("hot, of spilled")] == "86.6%"
    assert at_64[0][head.index("GB to device")] == "-"
    assert [row[head.index("by the server")] for row in at_64] == ["-", "-", "2,460", "-"]


def test_where_ours_is_worst_is_always_there(tmp_path: Path) -> None:
    report.main([str(folder(tmp_path / "run"))])
    _, _, *worst = rows_of((tmp_path / "run" / "report.md").read_text(), "### Where ours is worst")
    found = {(row[1], row[2]): row[3:] for row in worst}
    assert found["no tier", "decode tok/s"] == ["0.995x", "equal", "cold 32K, 8 at once"]
    assert found["stock HiSparse", "decode tok/s"] == ["1.49x", "wins", "cold 32K, 8 at once"]
    slow = line("ours", 8, 300.0)
    report.main([str(folder(tmp_path / "slow", slow))])
    _, _, *worst = rows_of((tmp_path / "slow" / "report.md").read_text(), "### Where ours is worst")
    assert ["ours", "no tier", "decode tok/s", "0.50x", "loses", "cold 32K, 8 at once"] in worst


def test_failed_and_partial_runs_are_named(tmp_path: Path) -> None:
    failed = {**line("ours", 64, 1.0), "status": "failed", "error": "the server ended\nmore"}
    for key in ("output_tok_s", "tpot_ms"):
        del failed[key]
    partial = line("ours", 8, 590.0, status="partial", error="HTTP 500")
    report.main([str(folder(tmp_path / "run", failed, partial))])
    text = (tmp_path / "run" / "report.md").read_text()
    assert "- ours, cold 32K, 64 at once: failed: the server ended\n" in text
    assert "ours (partial)" in text
    short = report.short_table([failed, partial])
    assert "failed: the server ended" in short and "partial" in short


def test_a_half_written_line_is_skipped(tmp_path: Path) -> None:
    path = folder(tmp_path / "run")
    with (path / "results.jsonl").open("a") as file:
        file.write('{"system": "ours", "workl')
    assert len(Folder.read(path).lines) == 10


def test_a_folder_without_results_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main([str(tmp_path)]) == 2
    assert "has no results.jsonl" in capsys.readouterr().err


def drawing(text: str) -> ElementTree.Element:
    """The parsed SVG; everything in it lies in its view box."""
    root = ElementTree.fromstring(text)
    width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
    for item in root.iter():
        for key in ("x", "x1", "x2", "cx"):
            assert 0 <= float(item.get(key, "0")) <= width, ElementTree.tostring(item)
        for key in ("y", "y1", "y2", "cy"):
            assert 0 <= float(item.get(key, "0")) <= height, ElementTree.tostring(item)
        if item.tag == f"{SVG}text" and item.get("text-anchor") is None:
            letters = len(item.text or "")
            assert float(item.get("x", "0")) + 6.2 * letters <= width, item.text
    return root


def line_of(root: ElementTree.Element, colour: int) -> list[tuple[float, float]]:
    """Places of the circles of one system."""
    return [
        (float(c.attrib["cx"]), float(c.attrib["cy"]))
        for c in root.iter(f"{SVG}circle")
        if c.get("class") == f"f{colour}"
    ]


def test_plots_show_every_system_in_its_place(tmp_path: Path) -> None:
    pictures = plots([Folder.read(folder(tmp_path / "run"))])
    assert sorted(pictures) == [
        "decode-cold-32k.svg",
        "hit-rate.svg",
        "interactivity-cold-32k.svg",
        "throughput-cold-32k.svg",
    ]
    root = drawing(pictures["decode-cold-32k.svg"])
    baseline, ours = line_of(root, 0), line_of(root, 2)
    assert [x for x, _ in baseline] == sorted(x for x, _ in baseline)
    steps = [x for x, _ in baseline]  # 1, 8, 64: equal factors are equal distances
    assert steps[1] - steps[0] == pytest.approx(steps[2] - steps[1], abs=0.2)
    bottom = svg.HEIGHT - svg.BOTTOM
    height = [bottom - y for _, y in baseline[2:] + ours[2:3]]
    assert height[1] / height[0] == pytest.approx(2400 / 610, rel=0.01)  # the axis starts at 0
    names = [text.text for text in root.iter(f"{SVG}text")]
    assert {"no tier", "stock HiSparse", "ours", "ours, no copies"} <= set(names)
    for text in pictures.values():
        drawing(text)


def test_colours_are_those_of_the_system_in_all_folders(tmp_path: Path) -> None:
    one, two = Folder.read(folder(tmp_path / "one")), Folder.read(folder(tmp_path / "two"))
    two.lines[:] = [x for x in two.lines if x["system"] != "stock HiSparse"]
    pictures = plots([one, two])
    for name in ("throughput-one-cold-32k.svg", "throughput-two-cold-32k.svg"):
        text = pictures[name]
        assert re.search(r'class="line c2"[^>]*/>\s*<text[^>]*>ours<', text), name


def test_hit_rate_over_hot_rows(tmp_path: Path) -> None:
    more = [
        line(f"ours, {rows} hot rows", 64, 2000.0, hit_rate=rate, hot_rows=rows)
        for rows, rate in ((2048, 0.7), (8192, 0.933))
    ]
    text = plots([Folder.read(folder(tmp_path / "run", *more))])["hit-rate.svg"]
    root = drawing(text)
    places = line_of(root, 1)
    assert len(places) == 3
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True)
    assert "86.6%" in text


def test_an_empty_chart_is_refused() -> None:
    with pytest.raises(ValueError, match="has no points"):
        svg.chart("nothing", "", svg.Axis("x"), svg.Axis("y"), [])
