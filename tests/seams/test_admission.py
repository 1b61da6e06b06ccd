"""The prefill budget: SGLang's question, our answer. A made-up allocator and tree, SGLang's own base class."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_hisparse.config import PAGE
from sglang_hisparse.policy import Request

pytest.importorskip("sglang.srt.mem_cache.prefill_budget", reason="SGLang is not installed")

DEVICE, LOGICAL, HOT_MIN = 32, 40, 8


def budget_of(
    requests: list[Request] | None = None,
    free: int = LOGICAL,
    evictable: int = 0,
    longest_prefill: int | None = DEVICE,
    interleaves: bool = False,
) -> Any:
    """A budget over `free` logical pages and `evictable` ones; `requests` hold KV."""
    from sglang_hisparse.seams.admission import TieredPrefillBudget

    tier = SimpleNamespace(
        capacity=SimpleNamespace(hot_min_pages=HOT_MIN, device_pages=DEVICE, logical_pages=LOGICAL),
        residency=SimpleNamespace(requests={r.row: r for r in requests or ()}),
        selector=SimpleNamespace(prefill_reads_host=longest_prefill is None),
        deferred={},
    )
    allocator = SimpleNamespace(
        page_size=PAGE,
        tier=tier,
        lifecycle=SimpleNamespace(chunk_pages=4, longest_prefill=longest_prefill, interleaves=interleaves),
        available_size=lambda: free * PAGE,
    )
    tree = SimpleNamespace(supports_mamba=lambda: False, evictable_size=lambda: evictable * PAGE)
    return TieredPrefillBudget(allocator, tree)


def ask(budget: Any, tokens: int, new: int, prefix: int = 0, most_new: int = 0) -> bool:
    """As PrefillAdder asks, about a request that may give out `most_new` tokens, `new` in its reckoning."""
    output = SimpleNamespace(sampling_params=SimpleNamespace(max_new_tokens=most_new or new), output_ids=[])
    budget.about(output)
    fits, limit = budget.check_prefill(
        extend_input_len=tokens - prefix,
        total_tokens=tokens - prefix + new + PAGE,
        max_new_tokens=new,
        input_tokens=tokens,
        swa_host_hit_length=0,
        chunk_limit=4 * PAGE,
    )
    assert limit == (4 * PAGE if fits else None)
    return bool(fits)


@pytest.mark.parametrize("longest_prefill", [None, DEVICE])
def test_a_request_alone_may_take_the_last_page(longest_prefill: int | None) -> None:
    """Stock keeps a page more and wants it strictly less: such a request would wait for ever."""
    for tokens in range((LOGICAL - 3) * PAGE, LOGICAL * PAGE - 40):
        assert ask(budget_of(longest_prefill=longest_prefill), tokens, 40), tokens
    assert not ask(budget_of(longest_prefill=longest_prefill), LOGICAL * PAGE - 39, 40)


def test_alone_counts_what_can_be_evicted_and_not_the_prefix() -> None:
    assert ask(budget_of(free=2, evictable=28), LOGICAL * PAGE - 40, 40, prefix=10 * PAGE)
    assert not ask(budget_of(free=2, evictable=27), LOGICAL * PAGE - 40, 40, prefix=10 * PAGE)


def test_beside_others_the_page_stays() -> None:
    other = Request(row=0, most_pages=2, prompt_pages=1, pages=[1])
    beside = budget_of([other], free=10)
    assert ask(beside, 8 * PAGE, PAGE - 1) and not ask(beside, 8 * PAGE, PAGE)
    assert beside.tier.deferred == {"tokens": 1}


def test_who_is_admitted_first_in_a_pass_is_not_alone_any_more() -> None:
    budget = budget_of(free=20)
    assert ask(budget, 10 * PAGE, 64)
    budget.reserve(10 * PAGE, 64, chunk_limit=4 * PAGE)
    assert not ask(budget, 8 * PAGE, 64)


def test_requests_that_prefill_could_not_compute_again_fit_at_their_longest() -> None:
    """4 output tokens reckoned with, or 2,000 possible: what counts is how long it may grow."""
    other = Request(row=0, most_pages=DEVICE + 4, prompt_pages=2, pages=[1, 2])
    for most_new, admitted in ((4, True), ((DEVICE - 2) * PAGE, True), ((DEVICE - 2) * PAGE + 1, False)):
        budget = budget_of([other], free=LOGICAL - 2)
        assert ask(budget, 2 * PAGE, 4, most_new=most_new) is admitted, most_new
    assert budget.tier.deferred == {"unretractable": 1}
    assert ask(budget_of([other], free=LOGICAL - 2, longest_prefill=None), 2 * PAGE, 4, most_new=LOGICAL * 32)


def test_a_prompt_between_decode_steps_fits_beside_the_longest_request() -> None:
    """It is not retracted, and SGLang keeps one request that decodes: together they must come to an end."""
    other = Request(row=0, most_pages=20, prompt_pages=1, pages=[1])
    for interleaves, pages, admitted in ((False, 13, True), (True, 12, True), (True, 13, False)):
        budget = budget_of([other], free=LOGICAL - 1, longest_prefill=None, interleaves=interleaves)
        assert ask(budget, pages * PAGE, 4) is admitted, pages
    assert budget.tier.deferred == {"unretractable": 1}


def test_a_chunk_takes_what_is_left_or_waits_and_nobody_goes_before_it() -> None:
    prompt = Request(row=0, most_pages=20, prompt_pages=18, pages=list(range(1, 9)))
    assert budget_of([prompt], free=4).available_chunk_tokens(4 * PAGE) == 4 * PAGE
    crowded = budget_of([prompt], free=1, evictable=1)
    crowded.total_offset += 100 * PAGE  # what running requests may ask for: stock goes on with a whole chunk
    assert crowded.available_chunk_tokens(4 * PAGE) == 2 * PAGE
    full = budget_of([prompt], free=0)
    assert full.available_chunk_tokens(4 * PAGE) is None
    assert not ask(full, 1, 1)
    assert full.tier.deferred == {"waiting_chunk": 1}


def test_without_a_prefix_cache_footprints_count_too() -> None:
    """SGLang asks another question then."""
    others = [Request(row=row, most_pages=20, prompt_pages=1, pages=[row + 1]) for row in range(2)]
    budget = budget_of(others, free=LOGICAL - 2)
    question: dict[str, Any] = {"max_new_tokens": 64, "chunk_limit": None}
    assert budget.can_allocate_prefill(paged_input=6 * PAGE, extend_input_len=5 * PAGE, **question)
    assert not budget.can_allocate_prefill(paged_input=13 * PAGE, extend_input_len=12 * PAGE, **question)
    assert budget.tier.deferred == {"device_footprint": 1}


def test_output_is_clipped_to_the_logical_space() -> None:
    from sglang_hisparse.seams import allocator

    clip = allocator.TieredPageAllocator.max_new_tokens_for_memory
    capacity: dict[str, Any] = {
        "token_capacity": LOGICAL * PAGE,
        "sliding_window_size": None,
        "chunk_size": None,
    }
    memory = SimpleNamespace(disable_radix_cache=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocator, "get_memory", lambda: memory)
        anyone: Any = object()
        assert clip(anyone, LOGICAL * PAGE - 50, 40, **capacity) == 40
        assert clip(anyone, LOGICAL * PAGE - 50, 400, **capacity) == 49
        assert clip(anyone, LOGICAL * PAGE, 400, **capacity) == 0


def test_footprints_of_a_pass_add_up() -> None:
    """Prefill reads HBM only: two prompts of 20 and 13 pages do not go together into 32 pages."""
    budget = budget_of(free=LOGICAL)
    assert ask(budget, 20 * PAGE, 4)
    budget.reserve(20 * PAGE, 4, chunk_limit=4 * PAGE)
    assert not ask(budget, 13 * PAGE, 4) and ask(budget, 9 * PAGE, 4)
    assert budget.tier.deferred == {"device_footprint": 1}


def test_a_continued_chunk_is_not_charged_again() -> None:
    prompt = Request(row=0, most_pages=20, prompt_pages=20, prefill_pages=20, pages=[1])
    budget = budget_of([prompt], free=LOGICAL - 4)
    before = budget.footprint
    budget.reserve(PAGE, 0, chunk_limit=4 * PAGE, is_chunked_continuation=True)
    assert (budget.footprint, budget.longest) == (before, [20])


def test_the_budget_is_told_whom_a_question_is_about() -> None:
    """24 pages of output may come, 4 tokens are reckoned with. It holds for one question."""
    from sglang_hisparse.seams.admission import prefill_candidate

    budget, prompt = budget_of(free=LOGICAL), (LOGICAL - 24) * PAGE
    output = SimpleNamespace(max_new_tokens=30 * PAGE)
    req = SimpleNamespace(sampling_params=output, output_ids=[1] * 6 * PAGE)
    question: dict[str, Any] = {
        "extend_input_len": prompt, "input_tokens": prompt, "max_new_tokens": 4, "total_tokens": prompt + 4 + PAGE,
        "swa_host_hit_length": 0, "chunk_limit": None,
    }  # fmt: skip
    for told, longest in ((True, LOGICAL), (False, LOGICAL - 23)):
        if told:
            prefill_candidate(SimpleNamespace(memory_budget=budget), req, extend_input_len=prompt)
        assert budget.check_prefill(**question)[0]
        assert budget._candidate.longest == longest
    prefill_candidate(SimpleNamespace(memory_budget=object()), req, extend_input_len=prompt)
