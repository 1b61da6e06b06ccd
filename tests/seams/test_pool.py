"""The KV pools: buffers of the device size, and every read and write through the page map."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang.srt.mem_cache.memory_pool", reason="SGLang is not installed")

import torch

from sglang_hisparse.seams import pool as seam
from sglang_hisparse.seams.runtime import runtime
from sglang_hisparse.selectors.quest import QuestParameters
from sglang_hisparse.tier.layout import PAGE

DEVICE, LOGICAL = 4, 7


class PageMap:
    """As much of the tier as a pool needs: page p lives in device page `of[p]`."""

    def __init__(self, of: dict[int, int]) -> None:
        self.map = torch.tensor([of.get(page, -1) for page in range(LOGICAL + 1)])
        self.looked_up = 0

    def rows_of(self, slots: torch.Tensor) -> torch.Tensor:
        self.looked_up += 1
        return self.map[slots // PAGE] * PAGE + slots % PAGE


@pytest.fixture
def tier(monkeypatch: pytest.MonkeyPatch) -> Iterator[PageMap]:
    made = PageMap({0: 0, 2: 4, 6: 1, 7: 3})
    capacity = SimpleNamespace(device_tokens=DEVICE * PAGE, logical_tokens=LOGICAL * PAGE)
    monkeypatch.setattr(runtime, "tier", made)
    monkeypatch.setattr(runtime, "capacity", capacity)
    monkeypatch.setattr(runtime, "quest", QuestParameters(top_k=2 * PAGE, page_size=PAGE, recent=PAGE))
    monkeypatch.setattr(runtime, "bounds", None)
    yield made


def test_keys_and_values_go_where_the_page_map_says(tier: PageMap) -> None:
    pool = seam.TieredMHATokenToKVPool(
        size=LOGICAL * PAGE, page_size=PAGE, dtype=torch.float32, head_num=2, head_dim=8, layer_num=2, device="cpu",
        enable_memory_saver=False,
    )  # fmt: skip
    assert pool.size == LOGICAL * PAGE, "SGLang sees the logical size"
    assert len(pool.k_buffer[0]) == (DEVICE + 1) * PAGE == len(pool.v_buffer[1])
    slots = torch.tensor([2 * PAGE, 6 * PAGE + 63, 7 * PAGE + 5])
    keys, values = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    pool.set_kv_buffer(SimpleNamespace(layer_id=1), slots, keys, values)
    rows = torch.tensor([4 * PAGE, PAGE + 63, 3 * PAGE + 5])
    assert torch.equal(pool.k_buffer[1][rows], keys) and torch.equal(pool.v_buffer[1][rows], values)
    assert pool.k_buffer[1].count_nonzero() == keys.numel() and not pool.k_buffer[0].any()
    assert [name for name, _ in pool.tier_buffers()[1]] == ["k", "v"]


def test_bounds_are_kept_by_slot_on_every_write(tier: PageMap) -> None:
    pool = seam.TieredMHATokenToKVPool(
        size=LOGICAL * PAGE, page_size=PAGE, dtype=torch.float32, head_num=1, head_dim=4, layer_num=1, device="cpu",
        enable_memory_saver=False,
    )  # fmt: skip
    keys = torch.randn(PAGE, 1, 4)
    slots = torch.arange(6 * PAGE, 7 * PAGE)
    pool.set_kv_buffer(SimpleNamespace(layer_id=0), slots, keys, keys)
    bounds: Any = runtime.bounds
    assert torch.equal(bounds.low[0][6], keys.amin(0)) and torch.equal(bounds.high[0][6], keys.amax(0))


def dsa_pool(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """A DSA pool without buffers, and what reaches stock's methods: (method, rows)."""
    calls: list[Any] = []
    stock = seam.DSATokenToKVPool
    monkeypatch.setattr(
        stock, "set_mla_kv_buffer", lambda self, layer, rows, *rest: calls.append(("write", rows.tolist()))
    )
    monkeypatch.setattr(
        stock, "get_mla_kv_buffer", lambda self, layer, rows, dtype: calls.append(("read", rows.tolist()))
    )
    pool = seam.TieredDSATokenToKVPool.__new__(seam.TieredDSATokenToKVPool)
    pool.start_layer = 3
    return pool, calls


def test_latent_rows_are_looked_up_once_a_forward(tier: PageMap, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all layers, but anew where the first layer comes again: the page map may have changed."""
    pool, calls = dsa_pool(monkeypatch)
    slots, row = torch.tensor([2 * PAGE + 1, 6 * PAGE]), torch.zeros(2, 1)
    for layer in (3, 4, 5):
        pool.set_mla_kv_buffer(SimpleNamespace(layer_id=layer), slots, row, row)
    assert calls == [("write", [4 * PAGE + 1, PAGE])] * 3 and tier.looked_up == 1
    tier.map[2] = 2
    pool.set_mla_kv_buffer(SimpleNamespace(layer_id=3), slots, row, row)
    pool.set_mla_kv_buffer(SimpleNamespace(layer_id=9), slots, row, row, layer_id_override=4)
    assert calls[3:] == [("write", [2 * PAGE + 1, PAGE])] * 2 and tier.looked_up == 2
    pool.set_mla_kv_buffer(SimpleNamespace(layer_id=4), slots[1:], row, row)
    assert calls[5:] == [("write", [PAGE])], "other locations are not taken for these"


def test_prefix_rows_are_read_where_they_are(tier: PageMap, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, calls = dsa_pool(monkeypatch)
    pool.get_mla_kv_buffer(
        SimpleNamespace(layer_id=3), torch.tensor([7 * PAGE, 2 * PAGE + 9]), torch.bfloat16
    )
    assert calls == [("read", [3 * PAGE, 4 * PAGE + 9])]


def test_kinds_that_are_not_tiered_keep_stock_pools(tier: PageMap) -> None:
    def stock(platform: Any, *, kind: str) -> str:
        return f"stock {kind}"

    assert seam.kv_pool_class(stock, None, kind="mha") is seam.TieredMHATokenToKVPool
    assert seam.kv_pool_class(stock, None, kind="dsa") is seam.TieredDSATokenToKVPool
    assert seam.kv_pool_class(stock, None, kind="swa") == "stock swa"  # type: ignore[comparison-overlap]
