"""The tiny checkpoints: tensors of the model classes, a tokenizer for all tokens, weights that tell."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from bench_serving import tiny_models, tiny_tokenizer
from bench_serving.prompts import random_prompts
from bench_serving.tiny_models import RECIPES

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LONG, EARLY, NEW = 4000, 200, 24


@pytest.fixture(scope="module", params=["qwen3-tiny", "llama-tiny"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    return tiny_models.ensure(request.param)


@pytest.mark.parametrize("name", RECIPES)
def test_tensors_are_those_of_the_model_class(name: str) -> None:
    recipe = RECIPES[name]
    known = dict(recipe.config)
    config = transformers.AutoConfig.for_model(known.pop("model_type"), **known)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    wanted = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    draft = f"model.layers.{recipe.config['num_hidden_layers']}."  # the MTP layer is a class of its own
    written = {key: shape for key, shape, _ in recipe.tensors(recipe.config) if not key.startswith(draft)}
    assert written == wanted


@pytest.mark.parametrize("name", RECIPES)
def test_checkpoints_stay_small(name: str) -> None:
    recipe = RECIPES[name]
    numbers = sum(math.prod(shape) for _, shape, _ in recipe.tensors(recipe.config))
    assert numbers * (4 if recipe.dtype == "float32" else 2) < 300e6


def test_glm_shares_one_selection_among_four_layers() -> None:
    config = RECIPES["glm52-tiny"].config
    selecting = [layer for layer in range(config["num_hidden_layers"]) if tiny_models.selects(config, layer)]
    assert selecting == [0, 1, 2, 6]
    assert all(tiny_models.selects(RECIPES["dsv32-tiny"].config, layer) for layer in range(4))


def test_a_changed_recipe_gets_another_folder() -> None:
    recipe = RECIPES["qwen3-tiny"]
    other = tiny_models.Recipe(recipe.config | {"num_hidden_layers": 3}, recipe.tensors, recipe.dtype)
    assert recipe.fingerprint() != other.fingerprint()
    assert len({r.fingerprint() for r in RECIPES.values()}) == len(RECIPES)


def test_a_finished_checkpoint_is_kept(tmp_path: Path) -> None:
    folder = tiny_models.ensure("qwen3-tiny", tmp_path / "model")
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert tiny_models.ensure("qwen3-tiny", folder) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_weights_are_the_same_on_every_write(tmp_path: Path, checkpoint: Path) -> None:
    name = checkpoint.name.rsplit("-", 1)[0]
    again = tiny_models.ensure(name, tmp_path / "again")
    assert (again / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SystemExit, match="qwen3-tiny"):
        tiny_models.ensure("qwen3-huge")


def test_tokenizer_reads_any_text_and_writes_any_token(checkpoint: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    assert len(tokenizer) == tiny_models.VOCAB
    for text in ("the cat sat on 42 mats", "Grüße, 你好\n\tx = [1, 2]", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    for token in range(len(tiny_tokenizer.SPECIAL) + 256, tiny_models.VOCAB):
        assert tokenizer.decode([token])
    config = json.loads((checkpoint / "config.json").read_text())
    assert tokenizer.eos_token_id == config["eos_token_id"] == tiny_tokenizer.EOS


def greedy(model: Any, prompt: list[int]) -> tuple[list[int], list[float]]:
    """The greedy continuation and, of each token, how far its logit is above the second best."""
    tokens, margins, past = [], [], None
    fed = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(NEW):
            out = model(fed, past_key_values=past, use_cache=True, logits_to_keep=1)
            past, best = out.past_key_values, out.logits[0, -1].topk(2)
            tokens.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            fed = best.indices[:1][None]
    return tokens, margins


def test_output_depends_on_rows_thousands_of_tokens_back(checkpoint: Path) -> None:
    """Otherwise a lost or wrong row of the tier could pass unseen."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    prompt = random_prompts([LONG])[0]
    tokens, margins = greedy(model, prompt)
    assert len(set(tokens)) > NEW * 3 // 4, "the output collapses into few tokens"
    assert min(margins) > 1e-4, "a rounding error could change the output"
    assert median(margins) > 0.2
    for place in (3, EARLY):
        changed = list(prompt)
        changed[place] = prompt[place] + 1 if prompt[place] + 1 < tiny_models.VOCAB else prompt[place] - 1
        assert greedy(model, changed)[0] != tokens, f"token {place} of {LONG} does not matter"
