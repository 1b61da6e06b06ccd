"""A byte-level BPE tokenizer of exactly the tiny models' vocabulary, so that text prompts work too.

Any text encodes (the 256 bytes are tokens) and any token id decodes. The rest are letter pairs and such, laid
down by rule and not trained, so that they do not depend on a version of the `tokenizers` library.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from string import ascii_lowercase as LETTERS
from string import digits as DIGITS

SPECIAL = ("<pad>", "<s>", "</s>")
PAD, BOS, EOS = range(len(SPECIAL))
SPACE = "\u0120"  # how byte-level BPE writes a space

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_alphabet() -> list[str]:
    """The 256 printable characters that stand for the bytes 0..255, in the order of the bytes."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    code = {b: b for b in shown} | {b: 256 + i for i, b in enumerate(hidden)}
    return [chr(code[b]) for b in range(256)]


def merges(count: int) -> list[tuple[str, str]]:
    """The first `count` merges: letter pairs, digit pairs, words' first letters, then letter triples."""
    pairs = list(product(LETTERS, LETTERS))
    table = [*pairs, *product(DIGITS, DIGITS), *((SPACE, letter) for letter in LETTERS)]
    table += [(SPACE, a + b) for a, b in pairs] + [(a + b, c) for a, b in pairs for c in LETTERS]
    if count > len(table):
        raise ValueError(f"a tiny tokenizer has at most {len(table)} merges, asked for {count}")
    return table[:count]


def write(folder: Path, vocab_size: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` with `vocab_size` tokens into `folder`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    first = [*SPECIAL, *byte_alphabet()]
    rules = merges(vocab_size - len(first))
    vocab = {token: i for i, token in enumerate([*first, *(a + b for a, b in rules)])}
    if len(vocab) != vocab_size:
        raise ValueError(f"the merges name only {len(vocab)} different tokens of {vocab_size}")
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=rules))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": SPECIAL[PAD],
        "bos_token": SPECIAL[BOS],
        "eos_token": SPECIAL[EOS],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
