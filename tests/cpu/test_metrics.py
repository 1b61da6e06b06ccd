"""What is published and logged: names, labels and growth, on a stand-in for SGLang's collector."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_hisparse.metrics import COUNTER, METRICS
from sglang_hisparse.policy import PlannerOptions
from sglang_hisparse.seams import cached_tokens, decode_log, metrics
from sglang_hisparse.seams.runtime import runtime
from sglang_hisparse.tier.host_tier import HostTier
from tests.cpu.tier_server import MLA, tier_of
from tests.unit.fake_server import Sizes

OPTIONS = PlannerOptions(hot_min=2, hot_max=4, tables=8, low_watermark=0.5, high_watermark=0.8)
LABELS = {"model_name": "tiny", "tp_rank": 0}


class Family:
    """One counter or gauge: `series[labels]` is its value."""

    made: dict[str, Family]

    def __init__(self, name: str, documentation: str, labelnames: Any, multiprocess_mode: str = "") -> None:
        self.names, self.mode, self.series, self.written = set(labelnames), multiprocess_mode, {}, set()
        assert documentation.endswith(".") and name not in self.made
        self.made[name] = self

    def labels(self, **labels: str) -> SimpleNamespace:
        assert labels.keys() == self.names
        key = frozenset(labels.items())
        self.series.setdefault(key, 0)

        def inc(more: float) -> None:
            assert more > 0
            self.series[key] += more

        def put(number: float) -> None:
            assert key not in self.written or self.series[key] != number, "written though nothing changed"
            self.written.add(key)
            self.series[key] = number

        return SimpleNamespace(inc=inc, set=put)

    def value(self, **labels: str) -> float:
        return self.series[frozenset({"model_name": "tiny", "tp_rank": "0", **labels}.items())]


@pytest.fixture
def tier(monkeypatch: pytest.MonkeyPatch) -> HostTier:
    built = tier_of(Sizes(12, 24, OPTIONS, reads_host=True), MLA)
    monkeypatch.setattr(runtime, "tier", built)
    monkeypatch.setattr(metrics, "_publisher", None)
    monkeypatch.setattr(decode_log, "_log", decode_log.DecodeLog())
    monkeypatch.setattr(Family, "made", {}, raising=False)
    return built


COLLECTOR = SimpleNamespace(labels=LABELS, _counter_cls=Family, _gauge_cls=Family)


def test_all_series_are_there_at_once(tier: HostTier) -> None:
    assert metrics.publish(None, COLLECTOR, "stats") is None
    assert Family.made.keys() == {metric.name for metric in METRICS}
    for metric in METRICS:
        family = Family.made[metric.name]
        assert len(family.series) == max(1, len(metric.values))
        assert family.mode == ("" if metric.kind == COUNTER else "mostrecent")
        for label in metric.values:
            family.value(**{metric.label: label})


def test_counters_grow_by_what_is_new(tier: HostTier) -> None:
    for round_ in (1, 2):
        tier.selected.rows[0].add_(torch.tensor([4, 3, 2, 1]))
        tier.deferred["device_footprint"] = 5 * round_
        metrics.publish(None, COLLECTOR, "stats")
        metrics.publish(None, COLLECTOR, "stats")
        selected = Family.made["sglang:hisparse_selected_rows_total"]
        assert [selected.value(outcome=name) for name in ("resident", "hot", "missed")] == [
            4 * round_,
            3 * round_,
            2 * round_,
        ]
        assert Family.made["sglang:hisparse_selection_overflow_total"].value() == round_
        deferred = Family.made["sglang:hisparse_admissions_deferred_total"]
        assert (
            deferred.value(reason="device_footprint") == 5 * round_ and deferred.value(reason="tokens") == 0
        )


def test_a_reason_that_nobody_listed_is_published_too(tier: HostTier) -> None:
    tier.deferred["weather"] = 2
    metrics.publish(None, COLLECTOR)
    assert Family.made["sglang:hisparse_admissions_deferred_total"].value(reason="weather") == 2


def test_gauges_follow(tier: HostTier) -> None:
    for page in range(1, 10):
        tier.residency.allocate(page)
    for page in range(1, 4):
        tier.residency.spill(page)
    metrics.publish(None, COLLECTOR)
    pages = Family.made["sglang:hisparse_pages"]
    assert (pages.value(state="resident"), pages.value(state="spilled"), pages.value(state="free")) == (
        6,
        3,
        6,
    )
    assert Family.made["sglang:hisparse_device_usage"].value() == 0.5
    assert Family.made["sglang:hisparse_host_usage"].value() == 3 / 24
    tier.residency.release(1)
    metrics.publish(None, COLLECTOR)
    assert pages.value(state="spilled") == 2


def test_without_a_tier_nothing_is_created(tier: HostTier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "tier", None)
    metrics.publish(None, COLLECTOR, "stats")
    assert not Family.made and decode_log.usage_parts(["#token: 1"], None) == ["#token: 1"]


def test_log_line_shows_what_is_new(tier: HostTier) -> None:
    tier.selected.rows[0].add_(torch.tensor([70, 20, 10, 0]))
    tier.mover.bytes_to_host = 3 << 20
    for page in range(1, 6):
        tier.residency.allocate(page)
    tier.residency.clean(1)
    tier.residency.spill(2)
    assert decode_log.usage_parts(["#token: 1"], None) == [
        "#token: 1", "#resident page: 4", "#spilled page: 1", "#hot row page: 0", "hot: 20.0%", "miss: 10.0%",
        "to host: 3.0 MiB", "to device: 0.0 MiB",
    ]  # fmt: skip
    assert decode_log.usage_parts([], None)[3:6] == ["hot: 0.0%", "miss: 0.0%", "to host: 0.0 MiB"]


def test_prefix_hit_is_split_where_the_pages_were_at_first(tier: HostTier) -> None:
    for page in range(1, 6):
        tier.residency.allocate(page)
    tier.residency.spill(2)
    tier.residency.spill(4)
    request = SimpleNamespace()
    cached_tokens.remember_hit(request, tier, [1, 2, 3, 4])
    tier.residency.restore(2)
    cached_tokens.remember_hit(request, tier, [1, 2, 3, 4, 5])  # admitted again after a retraction
    stock = {"device": 256, "host": 0}
    assert cached_tokens.split_by_tier(stock, None, request) == {"device": 128, "host": 128}
    assert stock == {"device": 256, "host": 0}
    assert cached_tokens.split_by_tier(None, None, request) is None
    assert cached_tokens.split_by_tier({"device": 64, "host": 0}, None, request) == {"device": 0, "host": 64}
    assert cached_tokens.split_by_tier(stock, None, SimpleNamespace()) is stock
