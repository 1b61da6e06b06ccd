"""Decode graphs without resolve on CUDA: look-ups equal the reference, and SGLang's fused top-k finds the device rows
that resolve would have, while pages move between replays."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from sglang_hisparse.kernels import reference
from sglang_hisparse.kernels.map_rows import map_pages, map_rows
from sglang_hisparse.tier.layout import PAGE

pytest.importorskip("sglang.srt.server_args", reason="SGLang is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

PAGES, K = 5000, 2048


def page_map(seed: int, share: float = 1.0) -> torch.Tensor:
    """A permutation of device pages; all but `share` of the pages are on the host or nowhere."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.cat((torch.zeros(1), torch.randperm(PAGES, generator=generator) + 1)).int()
    gone = torch.rand(PAGES + 1, generator=generator) >= share
    gone[0] = False
    values[gone] = -1 - torch.randint(0, 1000, (int(gone.sum()),), generator=generator).int()
    return values


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(0,), (1,), (64,), (3, 2048), (257, 1000)])
def test_small_rows_equal_the_reference(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    values = page_map(1, 0.6)
    slots = torch.randint(-70, (PAGES + 1) * PAGE, shape, dtype=dtype)
    found = map_rows(values.cuda(), slots.cuda())
    assert found.dtype == dtype and torch.equal(found.cpu(), reference.map_rows(values, slots))
    beyond = torch.tensor([(PAGES + 1) * PAGE, 2**31 - 1], dtype=dtype)
    assert map_rows(values.cuda(), beyond.cuda()).tolist() == [-1, -1]
    strided = slots.repeat(2, *[1] * (slots.dim() - 1)).t() if slots.dim() == 2 else slots
    assert torch.equal(map_rows(values.cuda(), strided.cuda()).cpu(), reference.map_rows(values, strided))


@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 517), (256, 2560)])
def test_small_tables_equal_the_reference(shape: tuple[int, int]) -> None:
    values = page_map(2, 0.6)
    table = torch.randint(-3, PAGES + 4, shape, dtype=torch.int32)
    assert torch.equal(map_pages(values.cuda(), table.cuda()).cpu(), reference.map_pages(values, table))


@dataclass(frozen=True)
class Metadata:
    real_page_table: torch.Tensor
    topk_v2_plan: torch.Tensor
    page_size: int = PAGE


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_captured_top_k_finds_device_rows(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    """Scores, lengths, page tables and the page map change between replays of one graph."""
    from sglang.kernels.ops.attention.dsv4.topk import plan_topk_v2
    from sglang.srt.layers.attention.dsa.dsa_topk_backend import _topk_transform_v2_paged
    from sglang.srt.model_executor.runner_utils.capture_mode import _set_capture_attention_variant

    from sglang_hisparse.seams import resident
    from sglang_hisparse.seams.runtime import runtime

    columns = 72
    mapped = page_map(3).cuda()
    tier = SimpleNamespace(device_table_of=lambda table: map_pages(mapped, table))
    monkeypatch.setattr(runtime, "tier", tier)
    table = torch.zeros(batch, columns, dtype=torch.int32, device="cuda")
    lengths = torch.full((batch,), columns * PAGE, dtype=torch.int32, device="cuda")
    logits = torch.zeros(batch, columns * PAGE, device="cuda")
    metadata = Metadata(table, plan_topk_v2(lengths))
    backend = SimpleNamespace(forward_metadata=metadata)

    def forward() -> torch.Tensor:
        resident.make_device_table(None, None, backend, None)
        return resident.map_topk(_topk_transform_v2_paged, logits, lengths, K, metadata)

    _set_capture_attention_variant(resident.RESIDENT)
    try:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            forward()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = forward()
    finally:
        _set_capture_attention_variant(None)

    generator = torch.Generator().manual_seed(4)
    for turn in range(10):
        values = page_map(10 + turn, 0.95 if turn % 2 else 1.0)
        resident_pages = (values > 0).nonzero().view(-1)
        chosen = torch.randint(len(resident_pages), (batch, columns), generator=generator)
        mapped.copy_(values)
        table.copy_(resident_pages[chosen].int())
        lengths.copy_(torch.randint(1, columns * PAGE + 1, (batch,), generator=generator))
        # Distinct scores: the top-k of a row is one set.
        scores = torch.stack([torch.randperm(columns * PAGE, generator=generator) for _ in range(batch)])
        logits.copy_(scores.float())
        metadata.topk_v2_plan.copy_(plan_topk_v2(lengths))
        graph.replay()
        rows, at, length = found.cpu(), table.cpu().long(), lengths.tolist()
        for row in range(batch):
            best = scores[row, : length[row]].topk(min(K, length[row])).indices
            wanted = values[at[row, best // PAGE]].long() * PAGE + best % PAGE
            got = rows[row][rows[row] >= 0]
            assert torch.equal(got.long().sort().values, wanted.sort().values), f"turn {turn}, row {row}"
