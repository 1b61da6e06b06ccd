"""Decode graphs without resolve: which one a forward takes, and that its selections are device rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_hisparse.config import HiSparseConfig
from sglang_hisparse.policy import PlannerOptions
from sglang_hisparse.tier.host_tier import HostTier
from sglang_hisparse.tier.layout import PAGE
from tests.cpu.tier_server import MLA, tier_of
from tests.unit.fake_server import Sizes

pytest.importorskip("sglang.srt.server_args", reason="SGLang is not installed")

OPTIONS = PlannerOptions(hot_min=1, hot_max=2, tables=8, low_watermark=0.5, high_watermark=0.8)
ROWS, PAGES, K = 3, 8, 16


@dataclass(frozen=True)
class Metadata:
    real_page_table: torch.Tensor
    page_size: int = PAGE


@pytest.fixture
def tier(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostTier]:
    """A tier whose page map is a permutation, in a process that captures a resident graph."""
    from sglang.srt.model_executor.runner_utils.capture_mode import _set_capture_attention_variant

    from sglang_hisparse.seams import dsa, resident
    from sglang_hisparse.seams.runtime import runtime

    tier = tier_of(Sizes(40, 16, OPTIONS, reads_host=False), MLA)
    tier.tables.page_map[1:41] = torch.randperm(40).int() + 1
    monkeypatch.setattr(runtime, "tier", tier)
    monkeypatch.setattr(runtime, "config", HiSparseConfig(1, resident_graphs=True))
    monkeypatch.setattr(resident, "_capture", resident._Capture())
    monkeypatch.setattr(dsa, "_reading", None)
    _set_capture_attention_variant(resident.RESIDENT)
    yield tier
    _set_capture_attention_variant(None)


def top_k(logits: torch.Tensor, lengths: torch.Tensor, topk: int, metadata: Any) -> torch.Tensor:
    """Stands in for stock's kernel: positions through the page table that it is given."""
    positions = logits.topk(topk).indices
    pages = metadata.real_page_table.gather(1, positions // PAGE)
    return (pages * metadata.page_size + positions % PAGE).to(torch.int32)


def attend(layer: int, selection: torch.Tensor) -> torch.Tensor:
    """What attention of `layer` reads."""
    from sglang_hisparse.seams import dsa

    dsa._reading = dsa._Reading(layer, SimpleNamespace(req_pool_indices=torch.arange(ROWS)), decode=True)
    return dsa.device_rows(selection, SimpleNamespace(), selection)


def after_indexer(layer: int, mode: Any, selection: torch.Tensor | None) -> torch.Tensor | None:
    """What the indexer of `layer` returns with the hook behind it."""
    from sglang_hisparse.seams import dsa

    batch = SimpleNamespace(forward_mode=mode, req_pool_indices=torch.arange(ROWS))
    return dsa.start_rows(selection, None, None, None, None, batch, layer_id=layer)


def head(table: torch.Tensor) -> Metadata:
    from sglang_hisparse.seams.resident import make_device_table

    metadata = Metadata(table)
    make_device_table(None, None, SimpleNamespace(forward_metadata=metadata), None)
    return metadata


def test_selections_come_out_as_device_rows(tier: HostTier) -> None:
    """Of every leader and its followers, in two forwards; SGLang's own table stays logical."""
    from sglang_hisparse.seams.resident import map_topk

    generator = torch.Generator().manual_seed(2)
    for _ in range(2):
        table = torch.stack([torch.randperm(40, generator=generator)[:PAGES] + 1 for _ in range(ROWS)]).int()
        metadata, kept = head(table), table.clone()
        for same in tier.layout.index_groups:
            logits = torch.rand(ROWS, PAGES * PAGE, generator=generator)
            selection = map_topk(top_k, logits, None, K, metadata)
            wanted = tier.rows_of(top_k(logits, None, K, metadata))
            for layer in [layer for group in same for layer in group.layers]:
                assert torch.equal(attend(layer, selection), wanted)
        assert torch.equal(table, kept), "the indexer reads its keys by it"
    assert tier.counters()["selected_resident"] == 0, "nobody resolved"


def test_a_selection_that_took_another_way_stops_the_capture(tier: HostTier) -> None:
    from sglang_hisparse.seams.resident import map_topk

    metadata = head(torch.ones(ROWS, PAGES, dtype=torch.int32))
    logits = torch.rand(ROWS, PAGES * PAGE)
    first, second = (groups[0] for groups in tier.layout.index_groups[:2])
    selection = map_topk(top_k, logits, None, K, metadata)
    attend(first.layers[0], selection)
    with pytest.raises(RuntimeError, match=r'layer 3 did not come from .* "resident_graphs": false'):
        attend(second.layers[0], top_k(logits, None, K, metadata))


def test_other_graphs_and_eager_forwards_resolve(tier: HostTier) -> None:
    from sglang.srt.model_executor.runner_utils.capture_mode import _set_capture_attention_variant

    from sglang_hisparse.seams import resident

    logits = torch.rand(ROWS, PAGES * PAGE)
    table = torch.arange(1, ROWS * PAGES + 1, dtype=torch.int32).view(ROWS, PAGES)
    for variant in (resident.TIERED, None):
        _set_capture_attention_variant(variant)
        selection = resident.map_topk(top_k, logits, None, K, head(table))
        assert resident._capture.table is None
        assert torch.equal(selection, top_k(logits, None, K, Metadata(table)))
        assert torch.equal(attend(0, selection), tier.rows_of(selection))
        for follower in (1, 2):
            assert torch.equal(attend(follower, selection), tier.rows_of(selection))
    assert tier.counters()["selected_resident"] == 2 * ROWS * K


def test_a_selection_is_resolved_behind_the_indexer(tier: HostTier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, where a decode without a resident graph selects; attention takes what came of it, or resolves itself."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.model_executor.runner_utils.capture_mode import _set_capture_attention_variant

    from sglang_hisparse.seams import dsa, resident

    def resolved() -> int:
        return int(tier.counters()["selected_resident"]) // (ROWS * K)

    waited: list[int] = []
    monkeypatch.setattr(tier, "wait_for_rows", waited.append)
    selection = torch.randint(PAGE, 41 * PAGE, (ROWS, K), dtype=torch.int32)
    for mode, layer in ((ForwardMode.EXTEND, 0), (ForwardMode.DECODE, 1)):  # layer 1 follows
        _set_capture_attention_variant(None)
        assert after_indexer(layer, mode, selection) is selection and not resolved()
    _set_capture_attention_variant(resident.RESIDENT)
    assert after_indexer(0, ForwardMode.DECODE, selection) is selection and not resolved()
    _set_capture_attention_variant(None)
    assert after_indexer(0, ForwardMode.DECODE, None) is None and not resolved()
    for steps in (1, 2):
        assert after_indexer(0, ForwardMode.DECODE, selection) is selection and resolved() == steps
        assert not waited, "before anything is read"
        for layer in (0, 1, 2):
            assert torch.equal(attend(layer, selection), tier.rows_of(selection))
        assert resolved() == steps and not dsa._early
        assert waited == [0, 1, 2], "every layer, the leader as well"
        waited.clear()
        selection = selection.flip(1)
    attend(0, selection)
    assert resolved() == 3 and waited == [0], "nobody resolved before"

    after_indexer(0, ForwardMode.DECODE, selection)
    padded = torch.nn.functional.pad(selection, (0, 0, 0, 2), value=-1)  # as stock does where q has more rows
    for layer in (0, 1, 2):
        rows = attend(layer, padded)
        assert torch.equal(rows[:ROWS], tier.rows_of(selection)) and (rows[ROWS:] == -1).all()


def test_sorted_by_slot(tier: HostTier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests sort selections, so that attention sums in the order in which stock does."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.model_executor.runner_utils.capture_mode import _set_capture_attention_variant

    from sglang_hisparse.seams import dsa, resident

    monkeypatch.setattr(dsa, "SORTED", True)
    table = torch.arange(1, ROWS * PAGES + 1, dtype=torch.int32).view(ROWS, PAGES)
    metadata, logits = head(table), torch.rand(ROWS, PAGES * PAGE)
    slots = top_k(logits, None, K, metadata).sort(dim=-1, descending=True).values
    found = attend(0, resident.map_topk(top_k, logits, None, K, metadata))
    assert torch.equal(found, tier.rows_of(slots))

    _set_capture_attention_variant(None)
    selected = after_indexer(0, ForwardMode.DECODE, slots.flip(1))
    assert selected is not None and torch.equal(selected, slots)
    assert torch.equal(attend(0, selected), tier.rows_of(slots))


def test_which_graph_a_forward_takes(tier: HostTier) -> None:
    from sglang_hisparse.seams.resident import RESIDENT, TIERED, graph_variants
    from sglang_hisparse.seams.runtime import runtime

    variants = graph_variants(None, None)
    assert variants.capture_labels == (RESIDENT, TIERED)
    batch = SimpleNamespace(seq_lens_cpu=torch.tensor([3, 1000]))
    tier.begin_forward([])
    assert [variants.select(batch), variants.select(batch)] == [RESIDENT, RESIDENT]
    assert tier.counters()["selected_resident"] == len(MLA) * (3 + tier.selector.top_k)
    assert variants.select(SimpleNamespace(seq_lens_cpu=None)) == RESIDENT
    tier.nothing_spilled = False
    assert variants.select(batch) == TIERED
    assert tier.counters()["selected_resident"] == len(MLA) * (3 + tier.selector.top_k)

    assert graph_variants("stock's own", None) == "stock's own"
    runtime.config = HiSparseConfig(1)
    assert graph_variants(None, None) is None, "off unless asked for"


def test_replayed_selections_become_rows(tier: HostTier, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_hisparse.benchmark_aids import ReplayOptions
    from sglang_hisparse.seams import benchmark
    from sglang_hisparse.seams.runtime import runtime
    from sglang_hisparse.selectors.replay import SelectionReplay

    context, width = 300, 400
    replay = SelectionReplay(ReplayOptions(context=context, steps=5), K, 3, ROWS, "cpu")
    monkeypatch.setattr(runtime, "replay", replay)
    rng = random.Random(5)
    table = torch.tensor([[rng.randrange(PAGE, 40 * PAGE) for _ in range(width)] for _ in range(ROWS)]).int()
    decode = benchmark._Decode()
    decode.begin(replay, [0, 3, 4], table)
    monkeypatch.setattr(benchmark, "_decode", decode)
    batch = SimpleNamespace(
        forward_mode=SimpleNamespace(is_decode=lambda: True),
        req_pool_indices=torch.arange(ROWS),
        seq_lens=torch.tensor([context, context - 1, context + 2]),
    )
    own = torch.full((ROWS, K), 7, dtype=torch.int32)
    chosen, _ = replay.select(batch.req_pool_indices, batch.seq_lens)
    metadata = SimpleNamespace(force_unfused_topk=False)
    found = benchmark.replay_topk(own.clone(), None, batch, 0, None, None, metadata)
    for row in (0, 2):
        assert torch.equal(found[row], tier.rows_of(table[row][chosen[0, row].long()]))
    assert torch.equal(found[1], own[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"dsa_topk_backend": "flashinfer"},
            "Use --dsa-topk-backend sgl-kernel, or leave resident_graphs out",
        ),
        ({"attn_dp_size": 2}, "their collectives would not meet. Drop --attn-dp-size"),
        ({"enable_return_indexer_topk": True}, "Drop --enable-return-indexer-topk"),
    ],
)
def test_refused_together(change: dict[str, Any], message: str) -> None:
    from sglang_hisparse.seams.args import _check_resident

    good = {
        "dsa_topk_backend": "sgl-kernel",
        "attn_dp_size": 1,
        "enable_return_indexer_topk": False,
    }
    _check_resident(SimpleNamespace(**good))
    with pytest.raises(ValueError, match='"resident_graphs": true') as caught:
        _check_resident(SimpleNamespace(**{**good, **change}))
    assert message in str(caught.value)


def test_refused_with_the_older_top_k(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_hisparse.seams.args import _check_resident

    monkeypatch.setenv("SGLANG_OPT_USE_TOPK_V2", "0")
    with pytest.raises(ValueError, match="Unset SGLANG_OPT_USE_TOPK_V2, or leave resident_graphs out"):
        _check_resident(SimpleNamespace(dsa_topk_backend="sgl-kernel"))


def test_left_open_they_are_on_wherever_nothing_speaks_against_them() -> None:
    from sglang_hisparse.seams.args import _resident_graphs

    def resolved(config: HiSparseConfig, **change: Any) -> bool:
        good = {"dsa_topk_backend": "sgl-kernel", "attn_dp_size": 1, "enable_return_indexer_topk": False}
        return _resident_graphs(SimpleNamespace(**{**good, **change}), config)

    assert resolved(HiSparseConfig(1)) is True
    assert resolved(HiSparseConfig(1), attn_dp_size=2) is False
    assert resolved(HiSparseConfig(1, resident_graphs=False)) is False
    assert resolved(HiSparseConfig(1, spill_order="heat")) is False
    assert resolved(HiSparseConfig(1, selector="quest")) is False
