"""A tokenizer whose words are numbers: token 17 is the text "17", and back.

Stock's benchmark client takes a request's first token to be there when its *text* is no longer empty. A byte-level
tokenizer holds back half a character, and a special token has no text at all, so that a model with random weights
would report wrong times. Here every token has a text of its own, and a prompt of n tokens becomes exactly n tokens
again, also where a data set sends text.
"""

from __future__ import annotations

import json
from pathlib import Path

from . import tiny_models
from .cache import written_once

SPECIAL = ("<unk>", "<s>", "</s>")
"""The last ids of the vocabulary, because a model that produces NaN answers with token 0."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<s>{% endif %}"
)


def write(folder: Path, vocab_size: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` with `vocab_size` tokens into `folder`."""
    words = vocab_size - len(SPECIAL)
    vocab = {str(token): token for token in range(words)} | {
        token: words + place for place, token in enumerate(SPECIAL)
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": words + place,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for place, token in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": SPECIAL[0]},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": SPECIAL[0],
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[2],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def ensure(vocab_size: int) -> Path:
    """A cached folder with the tokenizer of `vocab_size` tokens, written now if it is not there."""
    target = tiny_models.cache_folder() / f"words-{vocab_size}"
    return written_once(target, "tokenizer_config.json", lambda folder: write(folder, vocab_size))
