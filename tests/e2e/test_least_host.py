"""The smallest host pool that helps: one page more than the hot rows of a request. Audit off."""

from __future__ import annotations

import pytest

from bench_serving.prompts import random_prompts
from bench_serving.serving import Server
from sglang_hisparse.capacity import GIB
from sglang_hisparse.config import PAGE
from tests.e2e.compare import assert_close, assert_empties, assert_idle, assert_same, counted
from tests.e2e.conftest import QUEST, Expect, Serve

LEAST_PAGES = QUEST["top_k"] // PAGE + 1
PAGE_BYTES = PAGE * 4096  # four layers, K and V, two heads of 64 float32 numbers

NEW = 40
"""Output tokens that admission of this server reckons with at most: longer outputs run it out of memory."""


@pytest.fixture
def least(quest_server: Serve) -> Server:
    """The server under test, its free device pages in no order."""
    server = quest_server(
        host_pool_gib=(LEAST_PAGES + 0.1) * PAGE_BYTES / GIB,
        max_total_tokens=2048,
        args=("--chunked-prefill-size", "512"),
        env={"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": str(NEW)},
    )
    assert server.hisparse()["capacity"]["host_pages"] == LEAST_PAGES
    server.change(hisparse_shuffle=5)
    return server


def test_more_requests_than_fit(least: Server, expect: Expect) -> None:
    """Twelve requests that need five times both pools together: each has its turn, none fails."""
    lengths = [900, 640, 1020, 700, 1500, 820, 610, 990, 1880, 560, 760, 870]
    prompts = random_prompts(lengths, shared=256, seed=31)
    wanted = expect(prompts, NEW)
    with counted(least) as moved:
        found = least.generate(prompts, NEW)
    assert_same(found, wanted)
    assert moved["pages_spilled"] > 0 and moved["selected_missed"] > 0 and moved["selected_overflow"] == 0
    assert_idle(least)
    assert_same(least.generate(prompts, NEW), wanted)
    assert_empties(least)


def test_a_request_that_takes_all_there_is(least: Server, expect: Expect) -> None:
    """As long as the logical space: more than the device pool, and it finishes. Stock keeps a page back when it
    admits, so that this one would wait for ever."""
    capacity = least.hisparse()["capacity"]
    assert capacity["logical_pages"] == capacity["device_pages"] + 1
    prompt = random_prompts([capacity["logical_tokens"] - NEW - 8], seed=34)
    with counted(least) as moved:
        assert_same(least.generate(prompt, NEW), expect(prompt, NEW))
    assert moved["pages_spilled"] > 0
    assert_empties(least)


def test_retraction(least: Server, expect: Expect) -> None:
    """More is admitted than fits, and SGLang retracts. All stay below top_k, where Quest is dense, as prefill is."""
    prompts = random_prompts([48 + 2 * i for i in range(8)], seed=32)  # one chunk: all start in one pass
    wanted = expect(prompts, 6 * NEW)
    found = least.generate(prompts, 6 * NEW)
    assert "KV cache pool is full. Retract requests." in least.log()
    retracted = [i for i, answer in enumerate(found) if answer.retractions]
    calm = [i for i in range(len(found)) if i not in retracted]
    assert retracted and calm
    assert_same([found[i] for i in calm], [wanted[i] for i in calm])
    assert_close(found, wanted)
    assert_empties(least)


def test_output_depends_on_far_rows(least: Server) -> None:
    """Zeroing one spilled page that is 1,000 tokens back changes what is generated: equal outputs elsewhere
    mean that the right rows were read."""
    prompt = random_prompts([1500], seed=33)
    least.change(hisparse_force_spill=1.0)
    first = least.generate(prompt, 32)
    assert_same(least.generate(prompt, 32), first)
    assert least.hisparse()["pages"]["spilled"] == LEAST_PAGES
    least.change(hisparse_damage_page=3)
    damaged = least.generate(prompt, 32)
    assert damaged[0].cached_tokens >= 1500 // 64 * 64
    assert damaged[0].logprobs != first[0].logprobs and damaged[0].tokens != first[0].tokens
    least.flush()
    assert_same(least.generate(prompt, 32), first)
    assert_empties(least)
