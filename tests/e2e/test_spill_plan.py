"""A running server sized its pools as the planner does for the same config.json."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sglang_hisparse.capacity import TokenBytes, size_pools
from sglang_hisparse.planning.footprint import token_bytes
from sglang_hisparse.planning.gpus import GPUS
from sglang_hisparse.planning.inputs import Inputs
from sglang_hisparse.planning.models import find_model
from sglang_hisparse.planning.plan import sizing_arguments
from tests.e2e.conftest import QUEST, Serve


def test_the_capacity_block_is_the_planners(quest_server: Serve, qwen3_path: Path) -> None:
    """The server keeps float32 rows, twice what the planner knows as bf16; --max-total-tokens bounds the pool."""
    server = quest_server(host_pool_gib=0.1, max_total_tokens=16384, audit="full")
    capacity = server.hisparse()["capacity"]
    model = replace(find_model(str(qwen3_path)), top_k=QUEST["top_k"])
    gpu = replace(GPUS["H200"], chunk_tokens=server.info()["chunked_prefill_size"])
    inputs = Inputs(model, gpu, context=capacity["context_length"], max_running=capacity["request_slots"])
    half = token_bytes(model, 1, "bf16")
    token = TokenBytes(2 * half.kv, 2 * half.host, 2 * half.index)
    planned = size_pools(
        budget_bytes=1 << 40,
        host_pool_gib=0.1,
        **{**sizing_arguments(inputs, token), "most_device_tokens": 16384},
    )
    assert planned.as_dict() == capacity
