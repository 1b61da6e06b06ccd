"""Benchmark aids at their seams: refused outside dummy weights, and put behind the indexer's top-k."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench_serving import tiny_models
from sglang_hisparse.benchmark_aids import NO_COPY, REPLAY, ReplayOptions

pytest.importorskip("sglang.srt.server_args", reason="SGLang is not installed")

TIER = {"host_pool_gib": 0.1, "selector": "quest", "top_k": 512}
CONTEXT, STEPS, K, ROWS = 300, 5, 32, 6


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny_models.ensure("qwen3-tiny")


@pytest.fixture(autouse=True)
def aids_off() -> Iterator[None]:
    """Every test starts and ends with the process's aids off."""
    from sglang_hisparse.benchmark_aids import BenchmarkAids
    from sglang_hisparse.seams.runtime import runtime

    yield
    runtime.aids, runtime.replay, runtime.config = BenchmarkAids(), None, None


def resolve(model: Path, hisparse: dict[str, Any] | None = None, **flags: Any) -> None:
    from sglang.srt.server_args import ServerArgs

    from sglang_hisparse.seams.args import resolve_arguments

    given: dict[str, Any] = {"device": "cpu", "dtype": "float32", "skip_tokenizer_init": True, **flags}
    text = None if hisparse is None else json.dumps(hisparse)
    resolve_arguments(ServerArgs.resolve_once, ServerArgs(str(model), hisparse_config=text, **given))


@pytest.mark.parametrize("variable", [(REPLAY, '{"unit": 64}'), (NO_COPY, "1")], ids=["replay", "no-copy"])
def test_refused_without_dummy_weights(
    model: Path, monkeypatch: pytest.MonkeyPatch, variable: tuple[str, str]
) -> None:
    monkeypatch.setenv(*variable)
    with pytest.raises(ValueError) as caught:
        resolve(model, TIER)
    assert f"{variable[0]} is a benchmark aid" in str(caught.value)
    assert "needs --load-format dummy, not auto" in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "hisparse", "flags", "message"),
    [
        ({REPLAY: '{"overlapp": 1}'}, TIER, {}, "unknown key 'overlapp'"),
        ({REPLAY: '{"unit": 64}'}, None, {}, "the model Qwen3ForCausalLM has no selection that is replayed"),
        ({REPLAY: '{"unit": 64}'}, TIER, {}, "context 32768 is not below the context length 32768"),
        (
            {REPLAY: '{"unit": 64}'},
            TIER,
            {"speculative_algorithm": "NGRAM"},
            "does not work with --speculative-algorithm: verified tokens",
        ),
        (
            {REPLAY: '{"unit": 64}'},
            TIER,
            {"enable_mixed_chunk": True},
            "does not work with --enable-mixed-chunk: decode rows",
        ),
        ({NO_COPY: "1"}, None, {}, "SGLANG_DEBUG_HISPARSE_SKIP_IO=1"),
    ],
)
def test_refused(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    hisparse: dict[str, Any] | None,
    flags: dict[str, Any],
    message: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError) as caught:
        resolve(model, hisparse, load_format="dummy", **flags)
    assert message in str(caught.value)


def test_taken_with_dummy_weights(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_hisparse.seams.runtime import runtime

    monkeypatch.setenv(REPLAY, '{"unit": 64, "context": 4096}')
    monkeypatch.setenv(NO_COPY, "1")
    resolve(model, TIER, load_format="dummy")
    assert runtime.aids.replay == ReplayOptions(unit=64, context=4096) and runtime.aids.no_copy


LEADERS = [0, 1, 4]


class Served:
    """What a model runner, a batch and the indexer's metadata have, as far as the hook looks."""

    def __init__(self) -> None:
        from sglang_hisparse.seams import benchmark
        from sglang_hisparse.seams.runtime import runtime
        from sglang_hisparse.selectors.replay import SelectionReplay

        options = ReplayOptions(context=CONTEXT, steps=STEPS, variants=2)
        self.replay = runtime.replay = SelectionReplay(options, K, len(LEADERS), ROWS, "cpu")
        self.req_to_token = torch.randperm(ROWS * 400, dtype=torch.int32).view(ROWS, 400)
        self.decode = benchmark._decode
        self.decode.begin(self.replay, LEADERS, self.req_to_token)
        self.hook = benchmark.replay_topk

    def topk(
        self,
        layer: int,
        rows: list[int],
        tokens: list[int],
        positions: bool,
        decode: bool = True,
        pad: int = 0,
    ) -> torch.Tensor:
        """The hook's result over a top-k result that holds -7."""
        mode = SimpleNamespace(is_decode=lambda: decode)
        batch = SimpleNamespace(
            forward_mode=mode, req_pool_indices=torch.tensor(rows), seq_lens=torch.tensor(tokens)
        )
        result = torch.full((len(rows) + pad, K), -7, dtype=torch.int32)
        metadata = SimpleNamespace(force_unfused_topk=positions)
        found = self.hook(result, None, batch, layer, None, None, metadata=metadata)
        assert found.dtype == torch.int32 and found.shape == result.shape
        return found


@pytest.mark.parametrize("positions", [True, False], ids=["positions", "slots"])
def test_every_leader_gets_its_part(positions: bool) -> None:
    """Two forwards, as graph capture has them: the second starts at the first leader again."""
    served = Served()
    rows = [4, 2, 0]
    for step in range(2):
        tokens = [CONTEXT + step, CONTEXT - 1, CONTEXT + 3 * STEPS + 1]
        chosen, _ = served.replay.select(torch.tensor(rows), torch.tensor(tokens))
        for group, layer in enumerate(LEADERS):
            found = served.topk(layer, rows, tokens, positions, pad=2)
            for i in (0, 2):
                wanted = chosen[group, i]
                assert (found[i] == (wanted if positions else served.req_to_token[rows[i]][wanted])).all()
            assert (found[[1, 3, 4]] == -7).all(), "short rows and filling rows keep theirs"


def test_left_alone() -> None:
    served = Served()
    assert (served.topk(0, [1], [CONTEXT], False, decode=False) == -7).all(), "prefill"
    assert (served.topk(9, [1], [CONTEXT], False) == -7).all(), "a layer that is not a leader, as of a draft"
    from sglang_hisparse.seams.runtime import runtime

    runtime.replay = None
    assert (served.topk(0, [1], [CONTEXT], False) == -7).all(), "no replay"


def test_warns_and_builds(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from sglang_hisparse.benchmark_aids import BenchmarkAids
    from sglang_hisparse.seams import benchmark
    from sglang_hisparse.seams.runtime import runtime

    monkeypatch.setattr(benchmark, "get_parallel", lambda: SimpleNamespace(tp_rank=0))
    monkeypatch.setattr(benchmark, "get_dsa_index_topk", lambda config: K)
    monkeypatch.setattr(benchmark, "dsa_layer_skips_topk", lambda config, layer: layer not in LEADERS)
    runtime.aids = BenchmarkAids(ReplayOptions(context=CONTEXT, steps=STEPS), no_copy=True)
    runner = SimpleNamespace(
        is_draft_worker=False,
        model_config=SimpleNamespace(hf_config=None, num_hidden_layers=7),
        req_to_token_pool=SimpleNamespace(req_to_token=torch.zeros(ROWS, 400, dtype=torch.int32)),
    )
    benchmark.build_replay(runner)
    assert runtime.replay is not None and runtime.replay.first.shape == (len(LEADERS), ROWS)
    assert benchmark._decode.group_of == {0: 0, 1: 1, 4: 2}
    assert "BENCHMARK AID: selections are replayed" in caplog.text
    assert "BENCHMARK AID: missed rows are not copied" in caplog.text
    assert caplog.text.count("outputs are meaningless") == 2
