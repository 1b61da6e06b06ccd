"""vLLM's published calculator: the values of its page."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_hisparse.planning.like_vllm import like_vllm


@pytest.mark.parametrize(
    ("options", "resident", "tiered", "gain", "host_gib"),
    [
        ({}, 4, 39, 9.75, 134),
        ({"hot_rows": 8192}, 4, 26, 6.50, 90),
        ({"context": 32768}, 12, 56, 4.67, 77),
        ({"context": 131072}, 3, 30, 10.0, 165),
        ({"context": 1048576}, 0, 5, None, 220),
        ({"kv_dtype": "bf16"}, 2, 24, 12.0, 165),
    ],
)
def test_golden_values(
    options: dict[str, Any], resident: int, tiered: int, gain: float | None, host_gib: int
) -> None:
    """H200, TP 8, DP 1, expert parallel, 4,096 hot rows, 81,920 tokens, FP8 unless told."""
    found = like_vllm("H200", **options)
    assert (found.kv_gib, found.resident_requests, found.tiered_requests) == (17.8, resident, tiered)
    assert found.min_host_pool_gib == host_gib
    assert found.gain == (gain if gain is None else pytest.approx(gain, abs=0.005))


def test_bounds() -> None:
    """The host pool, request slots, and the fall back to full residency."""
    assert like_vllm("H200", host_pool_gib=67).binding == "host_pool"
    assert like_vllm("H200", host_pool_gib=67).tiered_requests == 19
    assert like_vllm("H200", host_pool_gib=0).tiered_requests == 4
    assert like_vllm("H200", max_running=10, host_pool_gib=134).binding == "request_slots"
    assert like_vllm("H200").binding == "device_pool"


def test_data_and_expert_parallel() -> None:
    two = like_vllm("H200", dp=2)
    assert two.tiered_requests_total == 2 * two.tiered_requests
    assert two.kv_gib > like_vllm("H200", dp=2, expert_parallel=False).kv_gib == 17.8


def test_what_does_not_fit() -> None:
    assert like_vllm("H200", tp=4).tiered_requests == 0
    with pytest.raises(ValueError, match="--gpu GH200: the published calculator knows H200, B200, B300"):
        like_vllm("GH200")
