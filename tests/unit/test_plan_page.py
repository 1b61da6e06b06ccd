"""The page: its arithmetic equals Python's, it loads nothing, and it works in a browser, by keyboard and on a phone."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_hisparse.planning.inputs import Inputs
from sglang_hisparse.planning.known_models import KNOWN
from sglang_hisparse.planning.launch import launch_command
from sglang_hisparse.planning.page import WEB, input_data, model_data, page
from sglang_hisparse.planning.plan import make_plan
from tests.unit import chromium
from tests.unit.chromium import Chromium
from tests.unit.plan_cases import grid, inputs

BROWSER, NODE = chromium.find(), shutil.which("node")
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser: none of {', '.join(chromium.NAMES)} in PATH"
)
needs_node = pytest.mark.skipif(NODE is None, reason="node is not in PATH")

CONTROLS = "[...document.querySelectorAll('input, select, button, summary')]"

NODE_PROGRAM = """
const { makePlan } = require(process.argv[1]);
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(cases.map(makePlan)));
"""


def js_inputs(case: Inputs) -> dict[str, Any]:
    """As page.js hands them to makePlan."""
    from dataclasses import asdict

    return {**input_data(case), "model": model_data(case.model), "gpu": asdict(case.gpu)}


def compare(found: dict[str, Any], case: Inputs) -> None:
    """Every number of the plan, whole ones exactly and others to the last bits."""
    plan = make_plan(case)
    check(found, plan.numbers(), "")
    assert found["refused"] == any("KV budget of" in finding for finding in plan.findings)


def check(found: Any, wanted: Any, where: str) -> None:
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            check(found[key], value, f"{where}.{key}")
    elif isinstance(wanted, float):
        assert math.isclose(found, wanted, rel_tol=1e-12, abs_tol=1e-15), (where, found, wanted)
    else:
        assert found == wanted and type(found) is type(wanted), (where, found, wanted)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert BROWSER is not None
    with Chromium(BROWSER, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def opened(browser: Chromium, tmp_path: Path) -> Chromium:
    """The page of GLM-5.2 on 8 H200."""
    file = tmp_path / "plan.html"
    file.write_text(page(inputs()), encoding="utf-8")
    browser.look(1280, 900)
    browser.open(file)
    return browser


def text(browser: Chromium, name: str) -> str:
    return str(browser.run(f"at({name!r}).innerText"))


def set_field(browser: Chromium, name: str, value: Any) -> None:
    """As a person would: the value, then its event."""
    kind = "checked" if isinstance(value, bool) else "value"
    browser.run(
        f"at({name!r}).{kind} = {json.dumps(value)}; at({name!r}).dispatchEvent(new Event('change', {{bubbles: true}}))"
    )


# -- arithmetic -------------------------------------------------------------------------------------------------------


@needs_node
def test_arithmetic_in_node() -> None:
    assert NODE is not None
    cases = list(grid())
    done = subprocess.run(
        [NODE, "-e", NODE_PROGRAM, str(WEB / "plan.js")],
        input=json.dumps([js_inputs(case) for case in cases]),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = json.loads(done.stdout)
    assert len(found) == len(cases) > 150
    for answer, case in zip(found, cases, strict=True):
        compare(answer, case)


@needs_browser
def test_arithmetic_in_the_browser(opened: Chromium) -> None:
    cases = list(grid())
    found = json.loads(
        opened.run(f"JSON.stringify({json.dumps([js_inputs(c) for c in cases])}.map(makePlan))")
    )
    for answer, case in zip(found, cases, strict=True):
        compare(answer, case)


# -- the file ---------------------------------------------------------------------------------------------------------


def test_one_file_that_loads_nothing() -> None:
    written = page(inputs())
    assert "{{" not in written and "/*{" not in written
    assert not re.search(r"""(src|href)\s*=|@import|url\(|https?://|fetch\(|XMLHttp""", written)
    data = json.loads(re.search(r'id="data">(.*?)</script>', written, re.S)[1])  # type: ignore[index]
    assert list(data["models"]) == ["GLM-5.2", *(name for name in KNOWN if name != "GLM-5.2")]


def test_a_name_cannot_end_the_script() -> None:
    from dataclasses import replace

    case = inputs()
    evil = replace(case, model=replace(case.model, name="</script><script>alert(1)</script>"))
    assert page(evil).count("<script") == page(case).count("<script")


# -- in the browser ---------------------------------------------------------------------------------------------------


def wanted(case: Inputs) -> tuple[str, str]:
    plan = make_plan(case)
    return f"{plan.resident_requests:,}", f"{plan.tiered_requests:,}"


@needs_browser
def test_it_shows_the_command_s_values(opened: Chromium) -> None:
    assert (text(opened, "resident"), text(opened, "tiered")) == wanted(inputs())
    assert text(opened, "launch") == launch_command(make_plan(inputs()))
    assert not [e for e in opened.events if e["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
    requests = [
        e["params"]["request"]["url"] for e in opened.events if e["method"] == "Network.requestWillBeSent"
    ]
    assert not [url for url in requests if not url.startswith("file:")]


@needs_browser
@pytest.mark.parametrize("name", KNOWN)
def test_every_model_can_be_chosen(opened: Chromium, name: str) -> None:
    set_field(opened, "model", name)
    assert (text(opened, "resident"), text(opened, "tiered")) == wanted(inputs(name))
    assert ("not served yet" in text(opened, "messages")) == bool(inputs(name).model.not_served)


@needs_browser
def test_every_field_counts(opened: Chromium) -> None:
    options = {
        "dp": 2, "context": 40000, "max_running": 100, "hot_rows": 6144, "miss_rate": 0.2, "tpot_ms": 20,
        "weights_gib": 70, "mem_fraction": 0.9, "host_ram_gib": 5000, "kv_dtype": "bf16", "dp_attention": True,
    }  # fmt: skip
    given: dict[str, Any] = {}
    for field, value in options.items():
        set_field(opened, field, value)
        given[field] = value
        assert (text(opened, "resident"), text(opened, "tiered")) == wanted(inputs(**given)), given
    assert text(opened, "launch") == launch_command(make_plan(inputs(**given)))
    set_field(opened, "host_auto", False)
    set_field(opened, "host_pool_gib", 12)
    assert text(opened, "tiered") == wanted(inputs(**given, host_pool_gib=12))[1]
    opened.run("at('reset').click()")
    assert (text(opened, "resident"), text(opened, "tiered")) == wanted(inputs())


@needs_browser
def test_wrong_values_are_said_not_computed(opened: Chromium) -> None:
    set_field(opened, "tp", 3)
    assert "64 query heads do not spread over 3 ranks" in text(opened, "messages")
    set_field(opened, "tp", 8)
    set_field(opened, "miss_rate", 7)
    assert "Miss rate" in text(opened, "messages")
    set_field(opened, "miss_rate", 0.3)
    set_field(opened, "context", 1 << 20)
    assert "the longest that fits has" in text(opened, "messages")
    assert opened.run("at('launch_section').hidden") is True


@needs_browser
def test_by_keyboard(opened: Chromium) -> None:
    """Every control is reached with Tab, has a name and shows its focus; arrow keys move a slider and the numbers."""
    opened.run("document.activeElement.blur()")
    reached: list[str] = []
    for _ in range(40):
        opened.press("Tab", 9)
        name = opened.run("(e => e.id || e.type || e.tagName)(document.activeElement)")
        if name == "BODY":
            break
        reached.append(name)
        outline = opened.run("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", name
    controls = opened.run(
        f"{CONTROLS}.filter(e => e.checkVisibility({{contentVisibilityAuto: true}})).length"
    )
    assert len(reached) >= controls and {"model", "context", "range", "copy", "launch"} <= set(reached)
    unnamed = opened.run(
        "[...document.querySelectorAll('input, select')].filter(e => !e.labels?.length && !e.ariaLabel).map(e => e.id)"
    )
    assert unnamed == []
    opened.run("document.querySelector('[data-for=context] [type=range]').focus()")
    before = int(opened.run("at('context').value"))
    for _ in range(40):
        opened.press("ArrowRight", 39)
    after = int(opened.run("at('context').value"))
    assert after > before and after % 1024 == 0
    assert text(opened, "tiered") == wanted(inputs(context=after))[1]


@needs_browser
def test_the_region_that_only_the_tier_serves(opened: Chromium) -> None:
    set_field(opened, "model", "Llama-3-8B")
    set_field(opened, "tp", 1)
    assert opened.run("document.querySelectorAll('#chart .only').length") == 1
    set_field(opened, "context", 1 << 20)
    assert (text(opened, "resident"), text(opened, "gain")) == ("0", "only with it")


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_it_fits_and_can_be_read(opened: Chromium, tmp_path: Path, width: int, dark: bool) -> None:
    """No sideways scrolling; text stands out from what is behind it (WCAG AA, 4.5 to 1)."""
    opened.look(width, 800, dark, mobile=width < 700)
    assert opened.run("document.documentElement.scrollWidth") == width
    for name in ("resident", "tiered", "messages", "facts", "launch", "resident_note"):
        ink, ground = opened.run(CONTRAST.replace("NAME", name))
        assert contrast(ink, ground) >= 4.5, (name, ink, ground)
    if folder := os.environ.get("PLAN_PICTURES"):  # for looking at them
        opened.picture(Path(folder) / f"plan-{width}-{'dark' if dark else 'light'}.png")


CONTRAST = """(() => {
  const rgb = (s) => s.match(/[\\d.]+/g).map(Number);
  let e = at("NAME"); e = e.querySelector("td, p") ?? e;
  let box = e; while (rgb(getComputedStyle(box).backgroundColor)[3] === 0) box = box.parentElement;
  return [rgb(getComputedStyle(e).color), rgb(getComputedStyle(box).backgroundColor)];
})()"""


def contrast(one: list[float], other: list[float]) -> float:
    """WCAG's ratio of two sRGB colours."""

    def luminance(colour: list[float]) -> float:
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in colour[:3])
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
