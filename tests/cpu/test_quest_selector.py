"""Quest: bounds are minimum and maximum of what a page holds, and a selection is the best pages by their score."""

from __future__ import annotations

import random
import re

import pytest
import torch

from sglang_hisparse.selectors.base import index_groups
from sglang_hisparse.selectors.dsa import dsa_selector
from sglang_hisparse.selectors.quest import QuestBounds, QuestParameters, quest_selector
from sglang_hisparse.tier.layout import PAGE

SIZES = (16, 32, 64)
LOGICAL = 16 * PAGE
HEADS, DIM = 2, 8


def bounds_of(size: int, layers: int = 1, dtype: torch.dtype = torch.float32) -> QuestBounds:
    return QuestBounds(layers, LOGICAL, size, HEADS, DIM, dtype, "cpu")


def keys(generator: torch.Generator, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn((count, HEADS, DIM), generator=generator).to(dtype)


# -- bounds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", SIZES)
def test_bounds_in_any_order_and_after_reuse(size: int, dtype: torch.dtype) -> None:
    """Sequences write the slots of their pages in order, in pieces of any length, mixed in one call. Pages are
    given up at any length, and started again by others."""
    rng, generator = random.Random(size), torch.Generator().manual_seed(size)
    bounds = bounds_of(size, layers=2, dtype=dtype)
    held: dict[tuple[int, int], list[torch.Tensor]] = {}  # (layer, Quest page) -> keys since its first slot
    used: dict[int, int] = {}  # page -> slots written by its owner
    reused = 0
    for _ in range(60):
        for page in list(used):
            if rng.random() < 0.15:
                del used[page]
        for page in rng.sample(range(1, LOGICAL // PAGE + 1), 4):
            reused += page not in used and (0, page * PAGE // size) in held
            used.setdefault(page, 0)
        slots = []
        for page in rng.sample(list(used), len(used)):
            count = rng.randint(0, PAGE - used[page])
            slots += range(page * PAGE + used[page], page * PAGE + used[page] + count)
            used[page] += count
        for layer in range(2):
            written = keys(generator, len(slots), dtype)
            bounds.update(layer, torch.tensor(slots, dtype=torch.int64), written)
            for slot, key in zip(slots, written, strict=True):
                if slot % size == 0:
                    held[layer, slot // size] = []
                held[layer, slot // size].append(key)
    assert reused > 20
    for (layer, quest_page), written_keys in held.items():
        stacked = torch.stack(written_keys)
        assert torch.equal(bounds.low[layer, quest_page], stacked.amin(0)), (
            f"layer {layer}, page {quest_page}"
        )
        assert torch.equal(bounds.high[layer, quest_page], stacked.amax(0)), (
            f"layer {layer}, page {quest_page}"
        )


def test_a_rewritten_slot_widens_its_page_only() -> None:
    """Speculative tokens may be written again: bounds stay bounds."""
    bounds = bounds_of(16)
    first = torch.arange(2 * 16, dtype=torch.int64)
    bounds.update(0, first, torch.full((32, HEADS, DIM), 1.0))
    bounds.update(0, torch.tensor([20]), torch.full((1, HEADS, DIM), 5.0))
    assert (bounds.low[0, :2] == 1).all()
    assert (bounds.high[0, 0] == 1).all() and (bounds.high[0, 1] == 5).all()
    bounds.update(0, torch.tensor([16]), torch.full((1, HEADS, DIM), 2.0))
    assert (bounds.low[0, 1] == 2).all() and (bounds.high[0, 1] == 2).all(), "its first slot starts it anew"


def test_there_is_a_bound_for_every_slot() -> None:
    for size in SIZES:
        bounds = bounds_of(size)
        last = torch.tensor([LOGICAL + PAGE - 1])  # of the last page; page 0 is padding
        bounds.update(0, last, torch.ones((1, HEADS, DIM)))


# -- selection -------------------------------------------------------------------------------------------------


class Sequence:
    """One request: slots of its positions in pages of no order, and keys that are small whole numbers, so that
    scores are exact."""

    def __init__(self, seed: int, length: int, size: int) -> None:
        self.rng, self.generator = random.Random(seed), torch.Generator().manual_seed(seed)
        pages = self.rng.sample(range(1, LOGICAL // PAGE + 1), -(-length // PAGE))
        self.slots = torch.tensor([page * PAGE + i for page in pages for i in range(PAGE)][:length])
        self.keys = torch.randint(-8, 9, (length, HEADS, DIM), generator=self.generator).float()
        self.bounds = bounds_of(size)
        self.bounds.update(0, self.slots, self.keys)

    def query(self, heads: int) -> torch.Tensor:
        return torch.randint(-4, 5, (heads, DIM), generator=self.generator).float()

    def scores(self, query: torch.Tensor, pages: int, size: int) -> list[float]:
        """Over query heads, the largest that q.k could be for a key within the bounds of the page."""
        held = self.keys[: pages * size].view(pages, size, HEADS, DIM)
        share = query.shape[0] // HEADS
        result = torch.zeros(pages)
        for head in range(query.shape[0]):
            at_least, at_most = held[:, :, head // share].amin(1), held[:, :, head // share].amax(1)
            result += torch.maximum(query[head] * at_least, query[head] * at_most).sum(1)
        return result.tolist()


@pytest.mark.parametrize("query_heads", [HEADS, 3 * HEADS])
@pytest.mark.parametrize(
    ("size", "top_k", "recent"), [(16, 64, 16), (16, 160, 1), (32, 128, 64), (64, 192, 20), (64, 256, 64)]
)
def test_selection_is_the_best_pages_and_the_newest_positions(
    size: int, top_k: int, recent: int, query_heads: int
) -> None:
    parameters = QuestParameters(top_k, size, recent)
    parameters.check()
    for seed, length in enumerate([top_k + 1, top_k + size, top_k + size + 7, 500, 640, 1000, LOGICAL]):
        sequence = Sequence(seed, length, size)
        query = sequence.query(query_heads)
        chosen = sequence.bounds.select(0, query, sequence.slots, parameters)
        assert chosen.dtype == torch.int64
        positions = chosen.tolist()
        assert positions == sorted(set(positions)), "ascending, nothing twice"
        assert len(positions) <= top_k
        assert len(positions) > top_k - size, "as many as whole pages allow"
        assert positions[-recent:] == list(range(length - recent, length)), "the newest"
        window = (length - recent) // size * size
        assert [p for p in positions if p >= window] == list(range(window, length))

        old = [p for p in positions if p < window]
        pages = sorted({p // size for p in old})
        assert old == [page * size + i for page in pages for i in range(size)], "whole pages"
        scores = sequence.scores(query, window // size, size)
        others = [scores[page] for page in range(window // size) if page not in pages]
        assert min(scores[page] for page in pages) >= max(others, default=-1e9), "no better page is left out"


def test_a_score_bounds_every_key_of_the_page() -> None:
    size = 16
    sequence = Sequence(3, 512, size)
    query = sequence.query(HEADS)
    for page, score in enumerate(sequence.scores(query, 512 // size, size)):
        held = sequence.keys[page * size : (page + 1) * size]
        assert (torch.einsum("hd,nhd->n", query, held) <= score).all()


@pytest.mark.parametrize("size", SIZES)
def test_up_to_top_k_everything_is_read(size: int) -> None:
    parameters = QuestParameters(top_k=256, page_size=size, recent=32)
    for length in (1, size - 1, size, 255, 256):
        sequence = Sequence(length, length, size)
        chosen = sequence.bounds.select(0, sequence.query(HEADS), sequence.slots, parameters)
        assert chosen.tolist() == list(range(length))


def test_a_page_of_one_request_does_not_reach_another() -> None:
    """The same bounds serve all requests, by slot; layers do not mix."""
    parameters = QuestParameters(top_k=64, page_size=16, recent=16)
    bounds = bounds_of(16, layers=2)
    ours, theirs = torch.arange(PAGE, 4 * PAGE), torch.arange(4 * PAGE, 7 * PAGE)
    low = torch.zeros((3 * PAGE, HEADS, DIM))
    best = low.clone()
    best[80] = 1.0
    bounds.update(0, ours, best)
    bounds.update(0, theirs, 9 * torch.ones_like(low))
    bounds.update(1, ours, low)
    query = torch.ones((HEADS, DIM))
    chosen = bounds.select(0, query, ours, parameters).tolist()
    assert set(range(80, 96)) <= set(chosen)
    assert len(bounds.select(1, query, ours, parameters)) == 64


# -- parameters and facts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_every_position_count_has_a_page_to_select(size: int) -> None:
    """What check() lets through never leaves select() without a page, at any length."""
    for top_k in range(3 * size, 6 * size, size):
        for recent in (1, size, top_k - 2 * size):
            parameters = QuestParameters(top_k, size, recent)
            parameters.check()
            for length in range(top_k + 1, top_k + 3 * size):
                window = (length - recent) // size * size
                count = (top_k - (length - window)) // size
                assert 1 <= count <= window // size


def test_a_refused_parameter_comes_with_one_that_works() -> None:
    with pytest.raises(ValueError, match="top_k 100 is not a multiple of page_size 16"):
        QuestParameters(top_k=100, page_size=16, recent=16).check()
    with pytest.raises(ValueError) as caught:
        QuestParameters(top_k=256, page_size=64, recent=129).check()
    found = re.search(r"recent_tokens up to (\d+) works", str(caught.value))
    assert found, caught.value
    QuestParameters(top_k=256, page_size=64, recent=int(found[1])).check()
    assert int(found[1]) == 128


def test_facts_of_both_families() -> None:
    quest = quest_selector(QuestParameters(top_k=256, page_size=64, recent=64), layers=3)
    assert (quest.name, quest.top_k, quest.groups) == ("quest", 256, ((0,), (1,), (2,)))
    assert quest.prefill_reads_host
    dsa = dsa_selector(2048, [False, True, True, False])
    assert (dsa.name, dsa.top_k, dsa.groups) == ("dsa", 2048, ((0, 1, 2), (3,)))
    assert not dsa.prefill_reads_host


def test_the_first_layer_selects() -> None:
    assert index_groups([False] * 3) == ((0,), (1,), (2,))
    assert index_groups([]) == ()
    with pytest.raises(ValueError, match="layer 0 reuses a selection"):
        index_groups([True, False])
