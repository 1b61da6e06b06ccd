"""What the benchmarks ask of SGLang is something that it has: flags of every configuration, the large shape."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

pytest.importorskip("sglang.srt.server_args")

from sglang.srt.configs.model_config import ModelConfig, dsa_layer_skips_topk, is_deepseek_dsa
from sglang.srt.server_args import ServerArgs
from transformers import AutoTokenizer

from bench_serving import large_shapes, word_tokenizer
from bench_serving.config import document, parse
from bench_serving.models import resolve
from bench_serving.points import server_for

CONFIGS = sorted((Path(__file__).parents[2] / "bench_serving" / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_server_flags_are_known(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    config = parse(document(path))
    model = resolve(config.model if "/" in config.model else "somebody/else")
    for system in config.systems:
        command = server_for(config, model, system, tmp_path / "log").command
        _, unknown = parser.parse_known_args(command[3:])
        assert unknown == [], system.name


def test_sglang_takes_the_large_shape_for_a_dsa_model(tmp_path: Path) -> None:
    folder = large_shapes.ensure("glm52-shaped", out=tmp_path / "model")
    model = ModelConfig(str(folder))
    assert is_deepseek_dsa(model.hf_config)
    layers = range(model.hf_config.num_hidden_layers)
    selecting = tuple(layer for layer in layers if not dsa_layer_skips_topk(model.hf_config, layer))
    assert selecting == large_shapes.footprint(large_shapes.shape("glm52-shaped")).selecting
    assert (model.kv_lora_rank, model.hf_config.index_topk, model.num_attention_heads) == (512, 2048, 64)
    assert model.context_len > 131072


def test_words_are_tokens_and_back(tmp_path: Path) -> None:
    word_tokenizer.write(tmp_path, 2048)
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path))
    tokens = [0, 5, 17, 2044, 5]
    text = tokenizer.decode(tokens)
    assert text == "0 5 17 2044 5" and tokenizer.encode(text) == tokens
    assert len(tokenizer) == tokenizer.vocab_size == 2048 and tokenizer.num_special_tokens_to_add() == 0
    assert all(tokenizer.decode([token]) for token in range(2045))
    said = [{"role": "user", "content": "5 6"}]
    chat = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    assert tokenizer.encode(chat) == [5, 6, 2046]
