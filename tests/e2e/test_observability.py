"""What an operator sees of one server: start-up block, decode log, /metrics, /server_info, cached_tokens_details."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bench_serving.prompts import random_prompts
from bench_serving.serving import Server
from sglang_hisparse import pin
from sglang_hisparse.capacity import HOT_ROWS_OF_TOP_K
from sglang_hisparse.config import HiSparseConfig
from sglang_hisparse.metrics import COUNTER, METRICS
from sglang_hisparse.policy.admission import DEFERRALS
from sglang_hisparse.seams.table import SEAMS
from tests.e2e.conftest import QUEST, Serve
from tests.e2e.streams import until
from tests.promql import Samples, expressions, load, matching, parse, selectors, value

DEVICE_TOKENS = 2048


@pytest.fixture
def watched(quest_server: Serve) -> Server:
    """2,048 tokens of device pool, and metrics on. `audit` so that there is something to count."""
    return quest_server(
        host_pool_gib=0.05,
        max_total_tokens=DEVICE_TOKENS,
        args=("--chunked-prefill-size", "256", "--enable-metrics", "--decode-log-interval", "8"),
        audit="sampled",
    )


def scrape(server: Server) -> Samples:
    return parse(str(server.call("/metrics")))


def settled(server: Server) -> tuple[Samples, dict[str, Any]]:
    """A scrape and /server_info that agree on the moves: SGLang writes its series once more when it falls idle."""
    found: list[Any] = []

    def agree() -> bool:
        found[:] = scrape(server), server.hisparse()
        counters, name = found[1]["counters"], "sglang:hisparse_selected_rows_total"
        missed = value(found[0], name, outcome="missed") == counters["selected_missed"]
        spilled = value(found[0], "sglang:hisparse_pages_spilled_total") == counters["pages_spilled"]
        return missed and spilled and found[1]["requests"] == 0

    until(agree, "a scrape that agrees with /server_info")
    return found[0], found[1]


def details(server: Server, prompt: list[int], tokens: int = 8) -> dict[str, Any]:
    """`meta_info` of one greedy request."""
    sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
    body: dict[str, Any] = {"input_ids": prompt, "sampling_params": sampling}
    meta: dict[str, Any] = server.call("/generate", body)["meta_info"]
    return meta


def test_every_series_exists_before_the_first_request(watched: Server) -> None:
    """With SGLang's labels, and ours at their known values: a rate over the first minutes is then right."""
    samples = scrape(watched)
    theirs = next(labels for name, labels in samples if name == "sglang:max_total_num_tokens")
    for metric in METRICS:
        for label in metric.values or ("",):
            ours = theirs | {(metric.label, label)} if label else theirs
            assert (metric.name, ours) in samples, f"{metric.name} {label}"
            if metric.kind == COUNTER:
                assert samples[metric.name, ours] == 0
    assert {name for name, _ in samples if "hisparse" in name} <= {
        name for metric in METRICS for name in (metric.name, metric.name.replace("_total", "_created"))
    }
    assert value(samples, "sglang:hisparse_pages", state="free") == DEVICE_TOKENS // 64


def test_start_up_block(watched: Server) -> None:
    """One grep shows sizes of both tiers, both bounds and what binds; the numbers are those of /server_info."""
    lines = re.findall(r"HiSparse capacity: .*", watched.log())
    capacity = watched.hisparse()["capacity"]
    assert len(lines) == 4
    assert f"{DEVICE_TOKENS} tokens in {DEVICE_TOKENS // 64} pages" in lines[0]
    assert f"logical {capacity['logical_tokens']} tokens" in lines[0]
    assert "host pool 0.05 GiB logical, 0.05 GiB physical (1 on this host, " in lines[1]
    assert (
        f"{capacity['resident_requests']} without the tier, {capacity['tiered_requests']} with it" in lines[3]
    )
    assert "limited by " in lines[3]


def test_server_info(watched: Server) -> None:
    """Everything a benchmark record or a bug report needs, in one object."""
    info = watched.hisparse()
    assert info["pin"] == {"sglang": pin.SGLANG, **pin.BUILT_ON} and info["version"] == pin.PACKAGE
    seams = {seam["id"]: seam for seam in info["seams"]}
    assert seams.keys() == {seam.id for seam in SEAMS if seam.scope in ("args", "scheduler", "cpu")}
    for seam in SEAMS:
        if seam.id in seams:
            assert (seams[seam.id]["body"], seams[seam.id]["drifted"]) == (seam.body, False)
    asked = HiSparseConfig(host_pool_gib=0.05, audit="sampled", **QUEST)
    assert info["options"] == asked.as_dict() | {
        "hot_rows": HOT_ROWS_OF_TOP_K * QUEST["top_k"],
        "resident_graphs": False,
    }
    capacity = info["capacity"]
    assert capacity["host_gib_physical"] == capacity["host_gib"] == pytest.approx(0.05, rel=0.02)
    assert capacity["binding"] in ("device_pool", "host_pool", "request_slots")
    assert capacity["resident_requests"] <= capacity["tiered_requests"]


def test_counters_after_pressure(watched: Server) -> None:
    """Ten requests of 10,000 tokens at once: the scrape has what the tier counted, reason by reason."""
    prompts = random_prompts([1100, 700, 1300, 900, 1200, 1000, 800, 1400, 600, 1250], shared=320, seed=24)
    watched.generate(prompts, 32)
    samples, info = settled(watched)
    counters = info["counters"]
    for outcome in ("resident", "hot", "missed"):
        found = value(samples, "sglang:hisparse_selected_rows_total", outcome=outcome)
        assert found == counters[f"selected_{outcome}"] > 0
    for move in ("cleaned", "spilled"):
        assert value(samples, f"sglang:hisparse_pages_{move}_total") == counters[f"pages_{move}"] > 0
    miss = value(samples, "sglang:hisparse_host_to_device_bytes_total", cause="miss")
    restore = value(samples, "sglang:hisparse_host_to_device_bytes_total", cause="restore")
    token = info["capacity"]["token_bytes"]["kv"]
    layers = token * counters["selected_missed"] / miss  # with Quest every layer is an index group of its own
    assert miss == counters["bytes_missed"] > 0 and layers == int(layers) > 1
    assert miss + restore == counters["bytes_to_device"]
    assert value(samples, "sglang:hisparse_device_to_host_bytes_total") == counters["bytes_to_host"]
    assert counters["bytes_to_host"] == counters["pages_cleaned"] * 64 * token
    assert value(samples, "sglang:hisparse_audited_pages_total") > 0
    assert value(samples, "sglang:hisparse_copy_stall_seconds_total") > 0
    assert value(samples, "sglang:hisparse_selection_overflow_total") == 0
    for state, count in info["pages"].items():
        assert value(samples, "sglang:hisparse_pages", state=state) == count
    assert value(samples, "sglang:hisparse_host_total_pages") == info["capacity"]["host_pages"]
    assert 0 < value(samples, "sglang:hisparse_host_usage") <= 1
    assert 0 < value(samples, "sglang:hisparse_device_usage") <= 1


def test_why_admissions_waited(watched: Server) -> None:
    """Each reason by its name; together they are the total of /server_info."""
    samples, info = settled(watched)
    by_reason = {
        reason: value(samples, "sglang:hisparse_admissions_deferred_total", reason=reason)
        for reason in DEFERRALS
    }
    known = {f"deferred_{reason}": count for reason, count in by_reason.items() if count}
    counters = info["counters"]
    assert known == {name: counters[name] for name in counters if name.removeprefix("deferred_") in DEFERRALS}
    assert sum(by_reason.values()) == counters["deferred_admissions"] > 0


def test_decode_log_line(watched: Server) -> None:
    """SGLang's line, still readable by SGLang's own log parser, with ours inside."""
    watched.generate(random_prompts([1500], seed=31), 40)
    lines = [line for line in watched.log().splitlines() if "Decode batch" in line]
    ours = re.compile(
        r"#token: \d+, token usage: [\d.]+, #resident page: (\d+), #spilled page: (\d+), #hot row page: (\d+), "
        r"hot: ([\d.]+)%, miss: ([\d.]+)%, to host: ([\d.]+) MiB, to device: ([\d.]+) MiB, cpu graph: "
    )
    found = [match for line in lines if (match := ours.search(line))]
    assert len(found) == len(lines) > 4
    assert all(float(match[4]) + float(match[5]) <= 100.1 for match in found)
    assert any(int(match[2]) > 0 and int(match[3]) > 0 and float(match[5]) > 0 for match in found)
    parser = pytest.importorskip("sglang.srt.debug_utils.log_parser")
    assert all(re.search(parser._PATTERN_DECODE.rstrip(","), line) for line in lines)


def test_prefix_hit_on_the_host(watched: Server) -> None:
    """Four conversations push each other out of HBM; coming back, a hit says how much of it was on the host."""
    prompt_tokens = 1500
    prompts = random_prompts([prompt_tokens] * 4, seed=32)
    before = hosted(watched)
    for prompt in prompts:
        assert details(watched, prompt).get("cached_tokens_details") is None
    hits = [details(watched, [*prompt, *random_prompts([70], seed=33)[0]]) for prompt in prompts]
    for hit in hits:
        split = hit["cached_tokens_details"]
        assert split["device"] + split["host"] == hit["cached_tokens"] >= prompt_tokens // 64 * 64
        assert split["host"] % 64 == 0
    host = sum(hit["cached_tokens_details"]["host"] for hit in hits)
    assert host >= 2 * prompt_tokens
    until(lambda: hosted(watched) - before == host, "SGLang's own counter")


def hosted(server: Server) -> float:
    """SGLang's own count of cached tokens from a host tier; its series appears with the first."""
    samples, name = scrape(server), "sglang:cached_tokens_total"
    there = any(known == name and ("cache_source", "host") in labels for known, labels in samples)
    return value(samples, name, cache_source="host") if there else 0.0


def test_a_hit_in_hbm_is_not_on_the_host(watched: Server) -> None:
    prompt = random_prompts([400], seed=34)[0]
    details(watched, prompt)
    hit = details(watched, prompt)
    assert hit["cached_tokens_details"] == {"device": hit["cached_tokens"], "host": 0}


@pytest.mark.parametrize("name", ["grafana.json", "alerts.yml"])
def test_dashboard_and_alerts_name_series_that_exist(watched: Server, name: str) -> None:
    """Every SGLang series that the shipped files ask for is in a scrape of this run, with the labels asked for."""
    samples = scrape(watched)
    asked = {
        (metric, labels)
        for _, expression in expressions(load(name))
        for metric, labels in selectors(expression)
    }
    assert any("hisparse" in metric for metric, _ in asked)
    missing = [(metric, sorted(labels)) for metric, labels in asked if not matching(samples, metric, labels)]
    assert missing == []
