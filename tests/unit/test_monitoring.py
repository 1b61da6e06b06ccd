"""docs/metrics.md, the dashboard and the alert rules against the table of series; no server needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sglang_hisparse.metrics import COUNTER, GAUGE, METRICS
from sglang_hisparse.policy.admission import DEFERRALS

yaml = pytest.importorskip("yaml", reason="PyYAML comes with SGLang")

from tests.promql import expressions, load, selectors  # noqa: E402

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
BY_NAME = {metric.name: metric for metric in METRICS}
SHIPPED = ("grafana.json", "alerts.yml")


def test_names_follow_sglang() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"sglang:hisparse_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == COUNTER)
        assert metric.kind in (COUNTER, GAUGE) and metric.text.endswith(".")
        assert bool(metric.label) == bool(metric.values)


def test_docs_list_every_series_once_with_its_labels() -> None:
    rows = re.findall(r"^\| `(sglang:hisparse_\w+)` \| (\w+) \| ([^|]*) \|", DOCS.read_text(), re.M)
    assert [name for name, _, _ in rows] == [metric.name for metric in METRICS]
    for name, kind, labels in rows:
        metric = BY_NAME[name]
        assert kind == metric.kind
        assert re.findall(r"`(\w+)`", labels) == ([metric.label, *metric.values] if metric.label else [])


def test_docs_say_what_each_reason_means() -> None:
    text = DOCS.read_text()
    assert all(f"| `{reason}` | {meaning} |" in text for reason, meaning in DEFERRALS.items())


def test_docs_map_every_series_of_vllm() -> None:
    text = DOCS.read_text()
    for name in (
        "cache_hits",
        "cache_misses",
        "host_to_device_bytes",
        "host_cache_usage_perc",
        "pending_page_transfers",
        "host_block_lifetime_seconds",
        "host_block_idle_before_evict_seconds",
        "host_block_reuse_gap_seconds",
    ):
        assert text.count(f"| `vllm:hisparse_{name}` |") == 1


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_ask_for_series_of_the_table(name: str) -> None:
    asked = [pair for _, expression in expressions(load(name)) for pair in selectors(expression)]
    ours = {metric for metric, _ in asked if "hisparse" in metric}
    assert ours and ours <= BY_NAME.keys()
    for metric, labels in asked:
        for label, value in labels:
            assert metric not in BY_NAME or (
                label == BY_NAME[metric].label and value in BY_NAME[metric].values
            )


def test_dashboard_shows_every_series() -> None:
    asked = {name for _, expression in expressions(load("grafana.json")) for name, _ in selectors(expression)}
    assert BY_NAME.keys() <= asked


def test_dashboard_is_whole() -> None:
    """Ids are unique, panels do not overlap, every target has a legend."""
    board = load("grafana.json")
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        assert all(target["legendFormat"] and target["refId"] for target in panel.get("targets", ()))
    assert {variable["name"] for variable in board["templating"]["list"]} == {
        "datasource",
        "model",
        "instance",
    }


def test_alerts_are_complete() -> None:
    rules = [rule for group in load("alerts.yml")["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 0
    for rule in rules:
        assert rule["alert"].startswith("HiSparse") and rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].strip().endswith(".")
