"""Prompts of random tokens, some of which start alike, so that prefix caching has something to find."""

from __future__ import annotations

import random
from collections.abc import Sequence

FIRST_TOKEN = 259
"""Below are the tiny tokenizer's special tokens and bytes."""


def random_prompts(
    lengths: Sequence[int], vocab: int = 2048, *, shared: int = 0, seed: int = 0
) -> list[list[int]]:
    """One prompt a length. Those at even places start with the same `shared` tokens (fewer if shorter).

    The same arguments give the same prompts on every machine.
    """
    draw = random.Random(seed)
    prefix = draw.choices(range(FIRST_TOKEN, vocab), k=shared)
    prompts = []
    for place, length in enumerate(lengths):
        start = prefix[:length] if place % 2 == 0 else []
        prompts.append(start + draw.choices(range(FIRST_TOKEN, vocab), k=length - len(start)))
    return prompts
