"""How many requests the list of misses is made for, and that its memory is not given to KV as well."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

GIB = 1 << 30


@pytest.mark.parametrize(
    ("sizes", "most", "wanted"),
    [([1, 2, 160], None, 160), ([1, 2, 4], None, 64), ([], 256, 256), ([], None, 64), (None, 8, 64)],
    ids=["graphs", "small graphs", "most", "no graphs", "few"],
)
def test_as_many_as_the_largest_graph(
    sizes: list[int] | None, most: int | None, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sglang.srt.server_args", reason="SGLang is not installed")
    from sglang_hisparse.kernels.resolve import MissList
    from sglang_hisparse.seams import sizing

    decode = SimpleNamespace(bs=sizes, max_bs=most)
    graph = SimpleNamespace(cuda_graph_config=SimpleNamespace(decode=decode))
    monkeypatch.setattr(sizing, "get_exec", lambda: SimpleNamespace(graph=graph))
    assert sizing.requests_at_once() == wanted
    misses = MissList.create(wanted, 2048, "cpu")
    assert MissList.bytes(wanted, 2048) == misses.rows.nbytes + misses.count.nbytes
    assert MissList.bytes(sizing.LEAST_AT_ONCE, 2048) <= (1 << 20) + 256


@pytest.mark.parametrize(
    ("device", "host_pool_gib", "taken"),
    [("cuda:0", 4.0, True), ("cuda:0", 0.0, False), ("cpu", 4.0, False)],
    ids=["tier on CUDA", "no host pool", "CPU"],
)
def test_kv_gets_what_the_list_leaves(
    device: str, host_pool_gib: float, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sglang.srt.server_args", reason="SGLang is not installed")
    from sglang_hisparse.capacity import Capacity, TokenBytes
    from sglang_hisparse.config import HiSparseConfig
    from sglang_hisparse.kernels.resolve import MissList
    from sglang_hisparse.seams import sizing
    from sglang_hisparse.seams.runtime import runtime
    from sglang_hisparse.selectors.dsa import dsa_selector

    budgets: list[int] = []

    def size_pools(budget_bytes: int, **options: Any) -> Capacity:
        budgets.append(budget_bytes)
        return sized(budget_bytes=budget_bytes, **options)

    sized = sizing.size_pools
    selector = dsa_selector(2048, [False, True])
    for name in ("selector", "capacity"):
        monkeypatch.setattr(runtime, name, None)
    monkeypatch.setattr(runtime, "config", HiSparseConfig(host_pool_gib))
    monkeypatch.setattr(sizing, "size_pools", size_pools)
    monkeypatch.setattr(sizing, "requests_at_once", lambda: 96)
    monkeypatch.setattr(sizing, "_selector_and_bytes", lambda *_: (selector, TokenBytes(1312, 1312, 132)))
    schedule = SimpleNamespace(chunked_prefill_size=8192, max_total_tokens=None)
    monkeypatch.setattr(sizing, "get_schedule", lambda: schedule)
    parallel = SimpleNamespace(dp_size=1, tp_size=1, nnodes=1, tp_rank=0)
    monkeypatch.setattr(sizing, "get_parallel", lambda: parallel)
    configurator = SimpleNamespace(
        device=device, is_draft_worker=False, model_config=SimpleNamespace(context_len=32768),
        _profile_available_bytes=lambda _: 2 * GIB, resolve_max_num_reqs=lambda tokens: 48,
    )  # fmt: skip
    stock = SimpleNamespace(max_total_num_tokens=1, max_running_requests=48)

    config = sizing.resolve_pool_config(lambda *_: stock, configurator, 0)

    assert budgets == [2 * GIB - taken * MissList.bytes(96, 2048)]
    assert runtime.capacity is not None and config.max_total_num_tokens == runtime.capacity.logical_tokens
