"""The benchmark aids in a running server with dummy weights: hit rates are those of the trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench_serving.prompts import random_prompts
from bench_serving.serving import Server, ServerError
from sglang_hisparse import traces
from sglang_hisparse.benchmark_aids import NO_COPY, REPLAY
from sglang_hisparse.config import PAGE
from tests.e2e.conftest import QUEST, SERVER_ARGUMENTS, Serve

CONTEXT, NEW, LAYERS = 2560, 150, 4
OPTIONS = {**QUEST, "recent_tokens": 64, "hot_rows": 768}
"""The recent window is then the two pages that are never spilled: every other selected page is the trace's."""
PAGES_A_STEP = (512 - 64 - 63) // PAGE
TRACE: dict[str, Any] = {"overlap": 0.70, "tail": 1.05, "unit": PAGE, "seed": 1}
ENVIRONMENT = {REPLAY: f'{{"unit": 64, "context": {CONTEXT}, "steps": 256, "variants": 2}}'}


@pytest.fixture
def replaying(quest_server: Serve) -> Server:
    return quest_server(0.2, args=("--load-format", "dummy"), env=ENVIRONMENT, **OPTIONS)


def expected_misses(hot_pages: int) -> float:
    """Share of a step's pages that an LRU cache misses, from its empty start."""
    trace = traces.generate(k=PAGES_A_STEP, context=CONTEXT - 64, steps=256, **TRACE)
    first = 1  # a prompt's first decode step has one token more
    return float(traces.lru_misses(trace[first : first + NEW], hot_pages).mean()) / PAGES_A_STEP


def test_hit_rates_are_those_of_the_trace(replaying: Server) -> None:
    prompts = random_prompts([CONTEXT, CONTEXT, 700], seed=51)
    assert replaying.log().count("BENCHMARK AID: selections are replayed") == 1
    replaying.change(hisparse_force_spill=1.0)
    before = replaying.counters()
    replaying.generate(prompts[:2], NEW)
    moved = {name: count - before[name] for name, count in replaying.counters().items()}
    hot, missed = moved["selected_hot"], moved["selected_missed"]
    steps = 2 * (NEW - 1)  # the first token comes from prefill
    assert moved["selected_overflow"] == 0
    assert hot + missed == pytest.approx(steps * LAYERS * PAGES_A_STEP * PAGE, rel=0.01)
    wanted = expected_misses(OPTIONS["hot_rows"] // PAGE)
    print(f"missed {missed / (hot + missed):.4f}, the trace {wanted:.4f}")
    assert 0.1 < wanted < 0.3 and missed / (hot + missed) == pytest.approx(wanted, abs=0.03)
    before = replaying.counters()
    replaying.generate(prompts[2:], 8)
    assert replaying.counters()["selected_hot"] - before["selected_hot"] > 0, (
        "shorter ones select for themselves"
    )


def test_shown_to_the_operator(replaying: Server) -> None:
    shown = replaying.info()["internal_states"][0]["hisparse_benchmark_aids"]
    assert shown["outputs"] == "meaningless" and not shown["no_copy"]
    assert shown["replay"]["context"] == CONTEXT and shown["replay"]["overlap"] == 0.70
    assert abs(shown["trace_overlap"] - 0.70) < 0.01 and shown["selected_positions"] == PAGES_A_STEP * PAGE


def test_no_io_oracle(quest_server: Serve) -> None:
    """The same hits and misses; only the bytes are left out."""
    server = quest_server(0.2, args=("--load-format", "dummy"), env={**ENVIRONMENT, NO_COPY: "1"}, **OPTIONS)
    assert server.log().count("BENCHMARK AID: missed rows are not copied") == 1
    assert server.info()["internal_states"][0]["hisparse_benchmark_aids"]["no_copy"]
    server.change(hisparse_force_spill=1.0)
    server.generate(random_prompts([CONTEXT], seed=51), 64)
    counters = server.counters()
    assert counters["selected_missed"] > 0 and counters["selected_overflow"] == 0
    assert counters["bytes_missed"] == 0


def test_refused_with_real_weights(qwen3_path: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with (
        pytest.raises(ServerError, match="before it served"),
        Server(
            qwen3_path,
            SERVER_ARGUMENTS,
            {"host_pool_gib": 0.2, **OPTIONS},
            env=ENVIRONMENT,
            log_path=log,
        ),
    ):
        pass
    assert f"{REPLAY} is a benchmark aid that makes outputs meaningless" in log.read_text()
