"""The tier's series on SGLang's Prometheus endpoint, written whenever SGLang writes its own scheduler series.

That is once per prefill batch, per --decode-log-interval decode steps, and about every 30 s while idle: nothing here
runs in an ordinary decode step, and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang_hisparse.metrics import COUNTER, METRICS, Metric
from sglang_hisparse.policy.admission import DEFERRALS
from sglang_hisparse.seams.runtime import runtime
from sglang_hisparse.tier.host_tier import HostTier
from sglang_hisparse.tier.layout import PAGE

Samples = Iterator[tuple[str, str, float]]

_publisher: Publisher | None = None
"""SGLang makes one collector a process."""


def publish(result: None, collector: Any, *args: Any, **kwargs: Any) -> None:
    """After SGLang's collector wrote its series (`log_stats`), or its constants at start: ours too."""
    global _publisher
    if runtime.tier is not None:
        if _publisher is None:
            _publisher = Publisher(collector)
        _publisher.write(runtime.tier)
    return result


def samples(tier: HostTier) -> Samples:
    """(family without `sglang:hisparse_`, label value or "", value) of everything, totals for counters."""
    counters, pages, residency = tier.counters(wait=False), tier.pages_by_state(), tier.residency
    for outcome in ("resident", "hot", "missed"):
        yield "selected_rows_total", outcome, counters[f"selected_{outcome}"]
    yield "selection_overflow_total", "", counters["selected_overflow"]
    yield "device_to_host_bytes_total", "", counters["bytes_to_host"]
    missed = counters["bytes_missed"]
    yield "host_to_device_bytes_total", "restore", counters["bytes_to_device"] - missed
    yield "host_to_device_bytes_total", "miss", missed
    for move in ("cleaned", "spilled", "restored"):
        yield f"pages_{move}_total", "", counters[f"pages_{move}"]
    for reason in {*DEFERRALS, *tier.deferred}:
        yield "admissions_deferred_total", reason, tier.deferred.get(reason, 0)
    yield "copy_stall_seconds_total", "", counters["copy_stall_us"] / 1e6
    yield "audited_pages_total", "", counters["audited_pages"]
    for state, count in pages.items():
        yield "pages", state, count
    yield "hot_rows", "", pages["hot"] * PAGE
    yield "spilled_requests", "", sum(request.spilled > 0 for request in residency.requests.values())
    yield "device_usage", "", residency.device_use()
    yield "host_usage", "", pages["spilled"] / residency.host_pages if residency.host_pages else 0.0
    yield "host_total_pages", "", residency.host_pages


class Publisher:
    """Our families beside those of one SGLang collector, with its labels and, where it brings its own, its classes."""

    def __init__(self, collector: Any) -> None:
        from prometheus_client import Counter, Gauge  # only where --enable-metrics has set it up

        self._labels = {name: str(value) for name, value in collector.labels.items()}
        self._counter = collector._counter_cls or Counter
        self._gauge = collector._gauge_cls or Gauge
        self._families = {metric.name.removeprefix("sglang:hisparse_"): metric for metric in METRICS}
        self._created = {name: self._create(metric) for name, metric in self._families.items()}
        self._children: dict[tuple[str, str], Any] = {}
        self._written: dict[tuple[str, str], float] = {}

    def _create(self, metric: Metric) -> Any:
        names = [*self._labels, *([metric.label] if metric.label else [])]
        if metric.kind == COUNTER:
            return self._counter(name=metric.name, documentation=metric.text, labelnames=names)
        return self._gauge(
            name=metric.name, documentation=metric.text, labelnames=names, multiprocess_mode="mostrecent"
        )

    def write(self, tier: HostTier) -> None:
        """Bring every series to what `samples` says. Most have not changed since the last time."""
        for name, value, number in samples(tier):
            metric, key = self._families[name], (name, value)
            before = self._written.get(key)
            if before == number:
                continue
            child = self._children.get(key)
            if child is None:
                labels = {**self._labels, metric.label: value} if metric.label else self._labels
                child = self._children[key] = self._created[name].labels(**labels)
            if metric.kind == COUNTER:
                counted = before or 0
                if number > counted:
                    child.inc(number - counted)
                self._written[key] = max(number, counted)
            else:
                child.set(number)
                self._written[key] = number
