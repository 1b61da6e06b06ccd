"""Replayed selections inside a captured CUDA graph equal those on the CPU, for batches that change under it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sglang_hisparse.benchmark_aids import ReplayOptions
from sglang_hisparse.selectors.replay import SelectionReplay, slots_of

pytest.importorskip("sglang.srt.server_args", reason="SGLang is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

CONTEXT, STEPS, K, ROWS, WIDTH = 8192, 64, 2048, 40, 8400
LEADERS = [0, 1, 5]


@pytest.mark.parametrize("unit", [1, 64])
@pytest.mark.parametrize("positions", [True, False], ids=["positions", "slots"])
def test_captured_hook_equals_cpu(monkeypatch: pytest.MonkeyPatch, positions: bool, unit: int) -> None:
    from sglang_hisparse.seams import benchmark
    from sglang_hisparse.seams.runtime import runtime

    options = ReplayOptions(context=CONTEXT, steps=STEPS, variants=3, unit=unit)
    on_cpu = SelectionReplay(options, K, len(LEADERS), ROWS, "cpu")
    replay = SelectionReplay(options, K, len(LEADERS), ROWS, "cuda")
    monkeypatch.setattr(runtime, "replay", replay)
    table = torch.randperm(ROWS * WIDTH, dtype=torch.int32).view(ROWS, WIDTH)
    benchmark._decode.begin(replay, LEADERS, table.cuda())

    batch_size, fill = 8, 3  # the last `fill` rows pad the graph's batch
    rows = torch.zeros(batch_size, dtype=torch.int64, device="cuda")
    tokens = torch.ones(batch_size, dtype=torch.int64, device="cuda")
    own = torch.full((len(LEADERS), batch_size, K), -7, dtype=torch.int32, device="cuda")
    mode = SimpleNamespace(is_decode=lambda: True)
    batch = SimpleNamespace(forward_mode=mode, req_pool_indices=rows, seq_lens=tokens)
    metadata = SimpleNamespace(force_unfused_topk=positions)

    def forward() -> torch.Tensor:
        results = [
            benchmark.replay_topk(own[group].clone(), None, batch, layer, None, None, metadata)
            for group, layer in enumerate(LEADERS)
        ]
        return torch.stack(results)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        forward()  # as SGLang does, once before capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = forward()
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        real_rows = torch.randperm(ROWS, generator=generator)[: batch_size - fill]
        real_tokens = torch.randint(
            CONTEXT - 20, CONTEXT + 2 * STEPS, (batch_size - fill,), generator=generator
        )
        rows.copy_(torch.cat((real_rows, torch.zeros(fill, dtype=torch.int64))))
        tokens.copy_(torch.cat((real_tokens, torch.ones(fill, dtype=torch.int64))))
        graph.replay()
        chosen, replayed = on_cpu.select(rows.cpu(), tokens.cpu())
        wanted = chosen if positions else slots_of(chosen, rows.cpu(), table)
        wanted = torch.where(replayed.view(1, -1, 1), wanted, -7)
        assert torch.equal(found.cpu(), wanted)
        assert not replayed[-fill:].any()
