"""What a benchmark's `model` means: a tiny checkpoint, a large shape, a local folder, or a hub name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from . import large_shapes, tiny_models, word_tokenizer
from .config import ConfigError


@dataclass(frozen=True)
class Model:
    """`args` are the server's on top of --model-path. `vocab` is 0 where only the hub knows it."""

    name: str
    path: str
    tokenizer: str
    args: tuple[str, ...]
    vocab: int


def resolve(name: str, layers: int = 0) -> Model:
    """Write what has to be written. ConfigError names what there is."""
    if name in tiny_models.RECIPES:
        words = str(word_tokenizer.ensure(tiny_models.VOCAB))
        path = str(tiny_models.ensure(name))
        return Model(name, path, words, ("--tokenizer-path", words), tiny_models.VOCAB)
    if name in large_shapes.SHAPES:
        path = str(large_shapes.ensure(name, layers or None))
        return Model(name, path, path, ("--load-format", "dummy"), large_shapes.SHAPES[name]["vocab_size"])
    if Path(name).is_dir():
        config = Path(name) / "config.json"
        vocab = json.loads(config.read_text()).get("vocab_size", 0) if config.is_file() else 0
        return Model(Path(name).name, name, name, (), vocab)
    if name.count("/") == 1 and not name.startswith((".", "/")):
        return Model(name.rsplit("/", 1)[1], name, name, (), 0)
    raise ConfigError(
        f"model: no folder, tiny model or shape {name!r}. Possible: {', '.join(tiny_models.RECIPES)} (tiny), "
        f"{', '.join(large_shapes.SHAPES)} (real attention, dummy weights), a local folder, or OWNER/NAME of the hub"
    )
