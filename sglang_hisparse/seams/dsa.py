"""DSA on CUDA: selections become device rows at the one function that every backend's fused top-k passes.

In decode the leader of an index group resolves, right behind the indexer, so that rows arrive while queries are made;
the layers behind it reuse them. In a resident graph (resident.py) the top-k found the rows itself. In extend the prefix
has been brought back, so slots are only mapped. `-1` stays `-1`; the selection itself is never written, since the
indexer and its followers still hold it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention.dsa.dsa_topk_backend import TopkTransformMethod

from sglang_hisparse.seams.read_check import EXTEND_STRIDE
from sglang_hisparse.seams.resident import check_mapped, resident_graph
from sglang_hisparse.seams.runtime import runtime
from sglang_hisparse.tier.host_tier import HostTier

SORTED = os.environ.get("SGLANG_HISPARSE_TEST_SORT") == "1"
"""Tests: sort every selection. Stock's top-k writes a selection in an order that varies from run to run, and attention
sums in that order; with it fixed, also without a tier, runs can be compared bit for bit."""


@dataclass(slots=True)
class _Reading:
    """The attention call that is being prepared."""

    layer: int
    batch: Any
    decode: bool


_reading: _Reading | None = None
_early: dict[int, torch.Tensor] = {}
"""leader -> rows of its selection, from the indexer to its attention"""
_group_rows: dict[int, torch.Tensor] = {}


def start_rows(
    result: torch.Tensor | None,
    indexer: Any,
    x: Any,
    q_lora: Any,
    positions: Any,
    forward_batch: Any,
    layer_id: int,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor | None:
    """After the indexer: a decode's selection is resolved, and what it misses fetched, beside what is left to do before
    attention. CUDA-graph safe."""
    tier = runtime.tier
    if tier is None or result is None or layer_id not in tier.layout.leaders:
        return result
    if forward_batch.forward_mode.is_decode() and not resident_graph():
        if SORTED:
            result = result.sort(dim=-1, descending=True).values
        _early[layer_id] = tier.resolve(layer_id, result, forward_batch.req_pool_indices)
    return result


def read_decode(original: Callable[..., Any], backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Around forward_decode: remember layer and batch for `device_rows`."""
    return _read(True, original, backend, *args, **kwargs)


def read_extend(original: Callable[..., Any], backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Around forward_extend: the same."""
    return _read(False, original, backend, *args, **kwargs)


def _read(
    decode: bool,
    original: Callable[..., Any],
    backend: Any,
    q: Any,
    k: Any,
    v: Any,
    layer: Any,
    forward_batch: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    global _reading
    if runtime.tier is None:
        return original(backend, q, k, v, layer, forward_batch, *args, **kwargs)
    _reading = _Reading(layer.layer_id, forward_batch, decode)
    try:
        return original(backend, q, k, v, layer, forward_batch, *args, **kwargs)
    finally:
        _reading = None


def device_rows(result: torch.Tensor, backend: Any, topk_indices: torch.Tensor) -> torch.Tensor:
    """After the fused top-k's page table: slots -> device rows, int32 [rows, k]. CUDA-graph safe."""
    tier, reading = runtime.tier, _reading
    if tier is not None and reading is not None and reading.decode and resident_graph():
        return _resident_rows(tier, reading.layer, result)
    if SORTED and result is not None:
        result = result.sort(dim=-1, descending=True).values
    if tier is None or reading is None or result is None:
        return result
    if not reading.decode:
        if backend.get_topk_transform_method(reading.batch.forward_mode) == TopkTransformMethod.RAGGED:
            return result
        rows = tier.rows_of(result)
        if runtime.read_check is not None:
            runtime.read_check.read(reading.layer, result[::EXTEND_STRIDE], rows[::EXTEND_STRIDE])
        return rows
    group = tier.layout.of_layer(reading.layer)
    if reading.layer in tier.layout.leaders:
        early = _early.pop(reading.layer, None)
        if early is None:  # an indexer that goes another way
            early = tier.resolve(reading.layer, result, reading.batch.req_pool_indices)
        _group_rows[group.index] = early
    tier.wait_for_rows(reading.layer)
    rows = _group_rows[group.index]
    if len(rows) < len(result):  # attention has padded its rows since the indexer
        rows = torch.nn.functional.pad(rows, (0, 0, 0, len(result) - len(rows)), value=-1)
    if runtime.read_check is not None:
        runtime.read_check.read(reading.layer, result, rows)
    return rows


def _resident_rows(tier: HostTier, layer: int, rows: torch.Tensor) -> torch.Tensor:
    """Rows that the fused top-k of a resident graph has found already."""
    if layer in tier.layout.leaders:
        check_mapped(layer)
    if SORTED:
        rows = rows.gather(-1, tier.slots_of(rows).argsort(dim=-1, descending=True))
    if runtime.read_check is not None:
        runtime.read_check.read(layer, tier.slots_of(rows), rows)
    return rows


def map_prefix(result: Any, backend: Any, forward_batch: Any) -> Any:
    """After the metadata of an extend: the flattened prefix table, read row by row from the KV buffer, holds device
    rows instead of slots."""
    tier, metadata = runtime.tier, backend.forward_metadata
    if tier is not None and metadata is not None and metadata.page_table_1_flattened is not None:
        # The metadata is a frozen dataclass that other objects hold already, so it is changed in place.
        object.__setattr__(metadata, "page_table_1_flattened", tier.rows_of(metadata.page_table_1_flattened))
    return result
