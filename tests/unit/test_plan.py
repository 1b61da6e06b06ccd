"""The plan: the server's own sizing, what must grow with what, edges, advice that works."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_hisparse.capacity import GIB, size_pools
from sglang_hisparse.config import PAGE, HiSparseConfig
from sglang_hisparse.planning.gpus import GPUS
from sglang_hisparse.planning.inputs import Inputs
from sglang_hisparse.planning.known_models import KNOWN
from sglang_hisparse.planning.launch import launch_command, launch_flags
from sglang_hisparse.planning.models import find_model
from sglang_hisparse.planning.plan import LIMITS, Plan, make_plan, sizing_arguments
from sglang_hisparse.planning.report import as_json, render
from sglang_hisparse.selectors.dsa import dsa_selector
from tests.unit.plan_cases import grid, inputs, short

SERVED = [name for name in KNOWN if not find_model(name).not_served]


def plan(model: str = "GLM-5.2", gpu: str = "H200", **options: Any) -> Plan:
    return make_plan(inputs(model, gpu, **options))


# -- the same function as the server's -------------------------------------------------------------------------------


def test_by_hand() -> None:
    """GLM-5.2 on 8 H200, 40 GiB of weights a GPU, 64 GiB of host memory a rank, 16 slots, 131,072 tokens, fp8.

    budget    (143771 MiB - 2 GiB) x 0.88 - 40 GiB = 87824783114; host pages 68719476736 / (64 x 51168) = 20984.6
    device    (87824783114 - map and tables 22628196 - index keys 3717052416) / (64 x 53940) = 24357.2
    requests  2,048 pages: 24357 / 2048 = 11; by footprints (24357 - 2013) / 35 = 638, by bytes 45341 / 2080 = 21
    """
    found = plan(weights_gib=40, host_pool_gib=64, max_running=16, context=131072)
    capacity = found.capacity
    assert capacity is not None
    budget = int((143771 * (1 << 20) - 2 * GIB) * 0.88 - 40 * GIB)
    fixed = 4 * 20953 + 16 * 8192 * (8 * 21 + 4) + 20952 * 64 * 2772
    assert found.kv_gib == budget / GIB
    assert (capacity.host_pages, capacity.device_pages) == (20984, int((budget - fixed) / (64 * 53940)))
    assert (capacity.resident_requests, capacity.tiered_requests, capacity.beside_pages) == (
        11,
        21,
        2048 - 35,
    )
    assert (found.resident_requests, found.tiered_requests, found.binding) == (12, 16, "request_slots")


@pytest.mark.parametrize("name", SERVED)
def test_selection_facts_are_the_selectors_own(name: str) -> None:
    """seams/sizing.py feeds groups, top-k and how prefill reads from the selector."""
    model = find_model(name)
    skips = [flag for size in model.groups for flag in [False] + [True] * (size - 1)]
    selector = dsa_selector(2048, skips)
    assert tuple(map(len, selector.groups)) == model.groups
    assert (selector.top_k, selector.prefill_reads_host) == (model.top_k, model.prefill_reads_host)


def test_quest_facts_are_the_selectors_own() -> None:
    model = find_model("Llama-3-8B")
    quest = pytest.importorskip(
        "sglang_hisparse.selectors.quest", reason="torch is not installed", exc_type=ImportError
    )
    selector = quest.quest_selector(quest.QuestParameters(2048, 64, 64), model.layers)
    assert tuple(map(len, selector.groups)) == model.groups
    assert (selector.top_k, selector.prefill_reads_host) == (model.top_k, model.prefill_reads_host)


@pytest.mark.parametrize("name", SERVED)
def test_the_plan_is_what_the_server_sizes(name: str) -> None:
    """Called as seams/sizing.py calls it, with the bytes that it measures."""
    found = plan(name, host_pool_gib=100, hot_rows=6144, max_running=48)
    model = find_model(name)
    rows = model.layers * 656
    assert (found.token.kv, found.token.host) == (rows, rows)
    server = size_pools(
        budget_bytes=round(found.kv_gib * GIB),
        most_device_tokens=None,
        host_pool_gib=100,
        token=found.token,
        groups=len(model.groups),
        top_k=2048,
        hot_rows=6144,
        most_requests=48,
        context_length=81920,
        chunk_tokens=0,
        prefill_reads_host=False,
        pools=8,
    )
    assert found.capacity == server
    assert as_json(found)["capacity"] == server.as_dict()


# -- what must hold ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", list(grid()), ids=short)
def test_every_case_is_sound(case: Inputs) -> None:
    found = make_plan(case)
    assert found.binding in LIMITS
    assert 0 <= found.resident_requests <= case.max_running
    assert 0 <= found.tiered_requests <= max(found.most_requests, found.resident_requests) <= case.max_running
    assert found.min_host_pool_gib >= 0 and (found.min_host_pool_gib > 0) == (
        found.most_requests > found.resident_requests
    )
    assert all(size >= 0 for size in (*found.gpu_gib.values(), *found.host_gib.values()))
    if found.capacity:
        total = sum(found.gpu_gib.values())
        rest = case.gpu.memory_bytes / GIB - total
        assert -1e-3 <= rest < 2 * PAGE * (found.token.kv + found.token.index) / GIB + found.gpu_gib["tables"]
        share = found.traffic.spilled_share * found.tiered_requests * -(-case.context // PAGE)
        assert found.host_gib["spilled"] * GIB == pytest.approx(share * PAGE * found.token.host)
        assert sum(found.host_gib.values()) == pytest.approx(found.capacity.host_gib)
    text = render(found)
    assert max(map(len, text.split("\n"))) < 400 and "nan" not in text
    json.dumps(as_json(found), allow_nan=False)
    assert found.findings or found.tiered_requests > 0


@pytest.mark.parametrize("name", KNOWN)
def test_the_smallest_useful_pool_is_that(name: str) -> None:
    """By trying: a page less lets fewer run, more never lets more run."""
    found = plan(name, host_ram_gib=1 << 20)
    assert found.min_host_pool_gib > 0
    page_gib = PAGE * found.token.host / GIB
    with_it = plan(name, host_pool_gib=found.min_host_pool_gib)
    assert with_it.tiered_requests == found.tiered_requests == found.most_requests
    less = plan(name, host_pool_gib=found.min_host_pool_gib - 2 * page_gib)
    assert less.tiered_requests < found.most_requests
    for factor in (1.01, 1.1, 1.5, 2, 4):
        more = plan(name, host_pool_gib=found.min_host_pool_gib * factor)
        assert more.tiered_requests <= found.most_requests


@pytest.mark.parametrize("name", KNOWN)
def test_monotone(name: str) -> None:
    """More context never lets more run; more HBM, fewer weights, more slots or more ranks never let fewer run."""
    contexts = [plan(name, host_pool_gib=64, context=n) for n in (2048, 8192, 8256, 40000, 1 << 17, 1 << 20)]
    for shorter, longer in itertools.pairwise(contexts):
        assert shorter.tiered_requests >= longer.tiered_requests
        assert shorter.resident_requests >= longer.resident_requests
    better = [
        [plan(name, host_pool_gib=64, mem_fraction=n) for n in (0.85, 0.9, 0.95)],
        [plan(name, host_pool_gib=64, weights_gib=n) for n in (70, 60, 50)],
        [plan(name, gpu, host_pool_gib=64, mem_fraction=0.9) for gpu in ("H200", "B200", "B300")],
    ]
    for less, more in itertools.chain(*map(itertools.pairwise, better)):
        assert less.tiered_requests <= more.tiered_requests
        assert less.resident_requests <= more.resident_requests
        assert less.most_requests <= more.most_requests


@given(pool=st.floats(0.2, 300), more=st.floats(0, 60), context=st.integers(1, 1 << 20))
def test_more_host_memory_up_to_the_useful_pool(pool: float, more: float, context: int) -> None:
    found = plan("DeepSeek-V3.2", context=context, host_pool_gib=pool)
    larger = plan("DeepSeek-V3.2", context=context, host_pool_gib=pool + more)
    if pool + more <= found.min_host_pool_gib and found.tiered_requests > found.resident_requests:
        assert found.tiered_requests <= larger.tiered_requests
    assert larger.tiered_requests <= larger.most_requests == found.most_requests


def test_traffic() -> None:
    """One step of n requests: n x miss rate x top-k x spilled share tokens of 51,168 B; twice at twice the rate."""
    found, twice = (plan(host_pool_gib=96, miss_rate=rate) for rate in (0.067, 0.134))
    moved = found.tiered_requests * 0.067 * 2048 * found.traffic.spilled_share * 51168
    assert found.traffic.gib_step * GIB == pytest.approx(moved)
    assert found.traffic.gbps == pytest.approx(moved / 0.050 / 1e9)
    assert twice.traffic.ms_step == pytest.approx(2 * found.traffic.ms_step)
    assert found.traffic.requests is not None and twice.traffic.requests is not None
    assert found.traffic.requests // 2 == pytest.approx(twice.traffic.requests, abs=1)


def test_the_link_binds_where_it_carries_fewer() -> None:
    slow, fast = (plan(host_pool_gib=240, tpot_ms=ms) for ms in (10, 100))
    assert slow.binding == "link" and not slow.traffic.fits
    assert slow.traffic.requests is not None and slow.traffic.requests < slow.tiered_requests
    assert fast.binding != "link" and fast.traffic.fits
    assert plan(host_pool_gib=240, miss_rate=0).traffic.requests is None
    assert plan(host_pool_gib=240, tpot_ms=10).tiered_requests == fast.tiered_requests, (
        "the server does not wait for it"
    )


def test_what_binds() -> None:
    assert plan(host_pool_gib=0).binding == "device_pool"
    assert plan(host_pool_gib=40, tpot_ms=1000).binding == "host_pool"
    assert plan(host_pool_gib=240, tpot_ms=1000, max_running=32).binding == "request_slots"
    assert plan(host_ram_gib=1 << 20, tpot_ms=1000).binding == "device_pool", (
        "a larger pool lets no further one run"
    )


# -- edges ------------------------------------------------------------------------------------------------------------


def test_no_host_pool() -> None:
    found = plan(host_pool_gib=0)
    assert found.tiered_requests == found.resident_requests > 0
    assert (found.host_pool_gib_total, found.traffic.ms_step, found.gpu_gib["tables"] < 1e-3) == (0, 0, True)
    assert not found.findings


def test_short_requests_gain_nothing() -> None:
    found = plan(context=2240)  # 35 pages: as many as the smallest footprint
    assert (found.min_host_pool_gib, found.host_pool_gib) == (0, 0)
    assert "lets no further request run" in found.notes[-1]


def test_a_prompt_that_does_not_fit_hbm() -> None:
    found = plan(context=1 << 20, host_pool_gib=100)
    assert found.tiered_requests == 0
    assert f"the longest that does has {found.longest_prompt} tokens" in found.findings[0]
    assert plan(context=found.longest_prompt, host_pool_gib=100).tiered_requests > 0
    assert plan("Qwen3-30B-A3B", tp=1, context=1 << 20, host_pool_gib=100).tiered_requests == 1, (
        "Quest reads the host"
    )


def test_context_longer_than_everything() -> None:
    found = plan("Llama-3-8B", tp=1, context=1 << 26)
    assert (found.resident_requests, found.tiered_requests) == (0, 0) or found.host_pool_gib > 0
    assert plan("Llama-3-8B", tp=1, context=1 << 26, host_pool_gib=1).findings


def test_weights_that_do_not_fit() -> None:
    found = plan(tp=1)
    assert found.capacity is None and found.kv_gib == 0
    assert re.search(
        r"the weights \(694\.\d GiB a GPU\).* leave 0\.00 GiB of 140\.4 for KV", found.findings[0]
    )


def test_a_host_pool_whose_index_keys_leave_no_hbm() -> None:
    found = plan(host_pool_gib=2000)
    assert found.tiered_requests == found.resident_requests and found.host_pool_gib == 0
    assert "Lower host_pool_gib" in found.findings[0]


def test_host_memory() -> None:
    """What is usual limits the chosen pool and only warns of a given one; what is known is a finding."""
    chosen = plan()
    assert chosen.host_pool_gib == int(2048 * 0.95 / 8)
    given = plan(host_pool_gib=384)
    assert not given.findings and "up to 243 works" in given.notes[0]
    known = plan(host_pool_gib=384, host_ram_gib=2048)
    assert "up to 243 works" in known.findings[0]
    assert plan("Llama-3-8B", "GH200", tp=1, host_pool_gib=440).findings
    assert plan(host_pool_gib=243, host_ram_gib=2048).findings == ()
    assert plan(host_ram_gib=1).host_pool_gib == 0, "no pool of use fits"


def test_a_pool_that_costs_more_than_it_gives() -> None:
    found = plan("DeepSeek-V3.2", context=40000, host_pool_gib=0.2)
    assert found.tiered_requests <= found.resident_requests


def test_data_parallel() -> None:
    """Independent replicas: the same numbers, twice in all. With DP attention the ranks share TP GPUs."""
    one, two = plan(), plan(dp=2)
    assert (two.resident_requests, two.tiered_requests) == (one.resident_requests, one.tiered_requests)
    assert (two.resident_requests_total, two.tiered_requests_total) == (16, 2 * one.tiered_requests)
    assert two.inputs.gpus_total == 16 and two.host_pool_gib_total == 2 * one.host_pool_gib_total
    shared = plan(dp=8, dp_attention=True)
    assert (shared.inputs.gpus_total, shared.inputs.attention_tp) == (8, 1)
    assert shared.weights_gib > one.weights_gib, "attention weights are on every rank"
    assert shared.tiered_requests_total > 3 * one.tiered_requests, (
        "latent rows are held once, not eight times"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 0}, "--tp 0: a whole number from 1 to 1024 is possible"),
        (
            {"tp": 3},
            "--tp 3: the 64 query heads of GLM-5.2 do not spread over 3 attention ranks; 1, 2, 4, 8, 16, 32, 64",
        ),
        ({"dp": 0}, "--dp 0: a whole number from 1"),
        (
            {"tp": 8, "dp": 3, "dp_attention": True},
            "--dp 3 --dp-attention: --tp 8 has to be a multiple; --dp 1, 2, 4, 8",
        ),
        ({"context": 0}, "--context 0: a whole number from 1 to 67108864 is possible"),
        ({"context": -5}, "--context -5"),
        ({"max_running": 0}, "--max-running 0"),
        ({"hot_rows": 100}, "--hot-rows 100: a whole number from 2048 to 32768 is possible"),
        ({"hot_rows": 40000}, "--hot-rows 40000"),
        ({"host_pool_gib": -1}, "--host-pool-gib -1: a number from 0 to"),
        ({"host_pool_gib": float("nan")}, "--host-pool-gib nan"),
        ({"host_pool_gib": float("inf")}, "--host-pool-gib inf"),
        ({"weights_gib": -1}, "--weights-gib -1"),
        ({"host_ram_gib": -1}, "--host-ram-gib -1"),
        ({"mem_fraction": 1.5}, "--mem-fraction 1.5: a number from 0.01 to 1 is possible"),
        ({"miss_rate": 30}, "--miss-rate 30: a number from 0 to 1 is possible"),
        ({"tpot_ms": 0}, "--tpot-ms 0"),
        ({"kv_dtype": "int4"}, "--kv-dtype int4: possible are bf16, fp8"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        inputs(**options)


@pytest.mark.parametrize("gib", [0.0001, 0.05, 0.0976])
def test_a_pool_too_small_names_one_that_works(gib: float) -> None:
    with pytest.raises(ValueError, match=r"^--host-pool-gib .*the smallest that helps: ([\d.]+)") as caught:
        plan(host_pool_gib=gib)
    smallest = re.search(r"helps: ([\d.]+),", str(caught.value))
    assert smallest and plan(host_pool_gib=float(smallest[1])).capacity is not None


# -- advice -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KNOWN)
def test_launch_flags_are_options_of_ours(name: str) -> None:
    found = plan(name, hot_rows=8192, dp=2, dp_attention=True)
    flags = launch_flags(found)
    config = HiSparseConfig.from_json(flags[flags.index("--hisparse-config") + 1])
    assert (config.host_pool_gib, config.hot_rows) == (found.host_pool_gib, 8192)
    assert config.selector == ("quest" if find_model(name).family == "quest" else "auto")
    assert flags[flags.index("--max-running-requests") + 1] == "512", (
        "SGLang divides it by the attention groups"
    )
    assert flags[flags.index("--attn-dp-size") + 1] == "2" and "--dp" not in flags
    assert KNOWN[name].path in launch_command(found)


def test_the_advice_fits_the_plan() -> None:
    """Sizing with what the flags say gives the planned capacity."""
    found = plan()
    config = HiSparseConfig.from_json(launch_flags(found)[-1])
    again = size_pools(
        budget_bytes=round(found.kv_gib * GIB),
        host_pool_gib=config.host_pool_gib,
        **sizing_arguments(replace(found.inputs, hot_rows=config.hot_rows), found.token),
    )
    assert again == found.capacity


@pytest.mark.parametrize("name", KNOWN)
def test_planned_only_is_said(name: str) -> None:
    text = render(plan(name))
    assert ("planned only: not served yet" in text) == (name not in SERVED)


def test_text() -> None:
    text = render(plan(dp=2))
    for part in (
        "GLM-5.2 on 16 x H200 (tp 8, dp 2)",
        "8 without the tier",
        "limited by",
        "on all 2 replicas",
        "launch",
    ):
        assert part in text
    assert list(GPUS) == ["H200", "B200", "B300", "GH200"]
