"""KV pools whose buffers hold device pages only, while stock sees the logical size.

`size` stays the logical token count, as every user of the pool expects; KV buffers are created with the device page
count and every write goes through the page map. Index keys (and Quest bounds) are addressed by slot and span `size`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, MHATokenToKVPool, unwrap_write_loc

from sglang_hisparse.seams.runtime import runtime
from sglang_hisparse.selectors.quest import QuestBounds

Create = Callable[[], None]


def create_device_sized(pool: Any, create: Create) -> None:
    """Run stock's buffer creation with the device size in place of the logical one."""
    capacity = runtime.capacity
    assert capacity is not None, "the pool is built after sizing"
    logical, pool.size = pool.size, capacity.device_tokens
    try:
        create()
    finally:
        pool.size = logical


class TieredMHATokenToKVPool(MHATokenToKVPool):
    """K and V apart, for Quest. Also owns the Quest bounds, updated on every write. Not graph-safe (CPU)."""

    def _create_buffers(self) -> None:
        create_device_sized(self, super()._create_buffers)
        assert runtime.quest is not None
        runtime.bounds = QuestBounds(
            self.layer_num,
            self.size,
            runtime.quest.page_size,
            self.head_num,
            self.head_dim,
            self.store_dtype,
            self.device,
        )

    def _store_kv_layer(
        self, layer_idx: int, loc: torch.Tensor, cache_k: torch.Tensor, cache_v: torch.Tensor
    ) -> None:
        assert runtime.tier is not None and runtime.bounds is not None
        runtime.bounds.update(layer_idx, loc, cache_k)
        super()._store_kv_layer(layer_idx, runtime.tier.rows_of(loc), cache_k, cache_v)

    def tier_buffers(self) -> dict[int, list[tuple[str, torch.Tensor]]]:
        """layer -> its buffers, for the tier's layout."""
        return {i: [("k", self.k_buffer[i]), ("v", self.v_buffer[i])] for i in range(self.layer_num)}


class TieredDSATokenToKVPool(DSATokenToKVPool):
    """Joint latent rows for DSA. Rows of the locations of one forward are looked up once, at its first layer;
    CUDA-graph safe: each captured graph looks them up itself."""

    _written: tuple[Any, torch.Tensor] | None = None

    def _create_buffers(self) -> None:
        create_device_sized(self, super()._create_buffers)

    def _write_rows(self, layer_id: int, loc: torch.Tensor) -> torch.Tensor:
        assert runtime.tier is not None
        key = (loc.data_ptr(), loc.shape)
        if layer_id == self.start_layer or self._written is None or self._written[0] != key:
            self._written = (key, runtime.tier.rows_of(loc))
        return self._written[1]

    def set_mla_kv_buffer(
        self,
        layer: Any,
        loc_info: Any,
        cache_k_nope: torch.Tensor,
        cache_k_rope: torch.Tensor,
        layer_id_override: int | None = None,
    ) -> None:
        layer_id = layer.layer_id if layer_id_override is None else layer_id_override
        rows = self._write_rows(layer_id, unwrap_write_loc(loc_info)[0])
        super().set_mla_kv_buffer(layer, rows, cache_k_nope, cache_k_rope, layer_id_override)
        if runtime.read_check is not None:
            runtime.read_check.written(layer_id, unwrap_write_loc(loc_info)[0], rows)

    def get_mla_kv_buffer(
        self, layer: Any, loc: torch.Tensor, dst_dtype: torch.dtype | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert runtime.tier is not None
        return super().get_mla_kv_buffer(layer, runtime.tier.rows_of(loc), dst_dtype)

    def tier_buffers(self) -> dict[int, list[tuple[str, torch.Tensor]]]:
        """layer -> its buffers, for the tier's layout."""
        return {i: [("kv", self.kv_buffer[i])] for i in range(self.layer_num)}


def kv_pool_class(original: Callable[..., Any], platform: Any, *, kind: str) -> type | None:
    """Our pool for the kinds that we tier; stock's choice otherwise."""
    if runtime.capacity is None:
        return original(platform, kind=kind)
    return {"mha": TieredMHATokenToKVPool, "dsa": TieredDSATokenToKVPool}.get(kind) or original(
        platform, kind=kind
    )
