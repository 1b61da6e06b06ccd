"""Requests that prefill could not compute again: retracted last, and ended where they are retracted all the same."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sglang_hisparse.config import PAGE

pytest.importorskip("sglang.srt.runtime_context", reason="SGLang is not installed")

DEVICE = 20


@pytest.fixture(autouse=True)
def tier(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A tier whose prefill reads HBM only, and as much of SGLang as the hooks touch."""
    from sglang_hisparse.seams import lifecycle
    from sglang_hisparse.seams.runtime import runtime

    made = SimpleNamespace(
        capacity=SimpleNamespace(device_pages=DEVICE, host_pages=30, hot_min_pages=4),
        selector=SimpleNamespace(prefill_reads_host=False),
    )
    monkeypatch.setattr(runtime, "tier", made)
    monkeypatch.setattr(lifecycle, "get_schedule", lambda: SimpleNamespace(chunked_prefill_size=512))
    scheduler: Any = ModuleType("sglang.srt.managers.scheduler")
    scheduler._make_abort_req = lambda req, finished_reason: (req, finished_reason)
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.scheduler", scheduler)
    return made


def request_of(prompt: int, output: int) -> Any:
    trace = SimpleNamespace(abort=lambda abort_info: None)
    return SimpleNamespace(
        origin_input_ids=[1] * prompt,
        output_ids=[1] * output,
        time_stats=SimpleNamespace(trace_ctx=trace),
    )


def test_who_cannot_come_back_is_kept_longest() -> None:
    from sglang_hisparse.seams.longest import retraction_order

    requests = [request_of(900, tokens) for tokens in (1000, 10, 380, 381, 20)]
    assert retraction_order([1, 0, 4, 2, 3], requests) == [0, 3, 1, 4, 2]


def test_it_ends_with_both_numbers_where_it_is_retracted_all_the_same() -> None:
    from sglang_hisparse.seams.longest import queue_request

    queued: list[Any] = []
    sent: list[Any] = []
    released: list[Any] = []
    scheduler = SimpleNamespace(
        _release_aborted_request=released.append, send_abort_output=lambda abort, req: sent.append(abort)
    )

    def original(scheduler: Any, req: Any, is_retracted: bool) -> None:
        queued.append((req, is_retracted))

    fits, grown = request_of(DEVICE * PAGE - 1, 1), request_of(1000, DEVICE * PAGE - 999)
    queue_request(original, scheduler, fits, True)
    queue_request(original, scheduler, grown, True)
    assert queued == [(fits, True)]
    assert released == [grown]
    [(ended, reason)] = sent
    assert ended is grown and reason["status_code"] == 503
    assert f"with {DEVICE * PAGE + 1} tokens; prefill can compute {DEVICE * PAGE} again" in reason["message"]


@pytest.mark.parametrize(
    ("host_pages", "reads_host", "chunk", "longest"),
    [
        (0, False, 512, None),
        (30, False, 512, DEVICE),
        (30, True, 512, None),
        (30, True, -1, DEVICE - 4 - 2),
        (30, True, None, DEVICE - 4 - 2),
    ],
)
def test_longest_prefill(
    tier: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    host_pages: int,
    reads_host: bool,
    chunk: int | None,
    longest: int | None,
) -> None:
    from sglang_hisparse.seams import lifecycle

    tier.capacity.host_pages, tier.selector.prefill_reads_host = host_pages, reads_host
    monkeypatch.setattr(lifecycle, "get_schedule", lambda: SimpleNamespace(chunked_prefill_size=chunk))
    assert lifecycle.longest_prefill_of(tier) == longest


def test_a_prompt_longer_than_any_prefill_is_refused_when_it_arrives(
    tier: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sixth number of SGLang's worker info is the longest prompt."""
    from sglang_hisparse.seams.forward import limit_input

    info: Any = tuple(range(4990, 5002))
    assert limit_input(info, None) == (*info[:5], DEVICE * PAGE, *info[6:])
    short: Any = (0, 0, 0, 0, 0, 77, 0)
    assert limit_input(short, None) == short
    tier.capacity.host_pages = 0
    assert limit_input(info, None) == info
