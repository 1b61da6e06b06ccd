"""Synthetic selection traces: what was asked is what they measure, and the published misses come out of them."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from sglang_hisparse import traces
from sglang_hisparse.kernels import resolve
from sglang_hisparse.kernels.reference import HOT, MISSED, OVERFLOW
from sglang_hisparse.tier.layout import PAGE, Group, HotTables, Plane, byte_rows

PUBLISHED = {1: 30.0, 2: 13.4, 4: 6.7}
"""Hot rows as a multiple of k -> missed share of a selection in percent (GLM-5.1, k = 2,048, 100,384 tokens)."""

SCALED = {"k": 256, "context": 12_544, "unit": 1}
"""An eighth of the published run."""
GLM = {"overlap": 0.70, "tail": 1.05, "seed": 1}


@pytest.mark.parametrize("overlap", [0.02, 0.44, 0.59, 0.70, 0.85, 1.0])
@pytest.mark.parametrize("tail", [0.8, 1.05])
@pytest.mark.parametrize("unit", [1, 4, 64, 128])
def test_overlap_is_the_one_asked_for(overlap: float, tail: float, unit: int) -> None:
    trace = traces.generate(
        k=2048 // unit, context=32768, unit=unit, steps=150, overlap=overlap, tail=tail, seed=3
    )
    assert abs(traces.overlaps(trace).mean() - overlap) < 0.01


@pytest.mark.parametrize("unit", [1, 4, 64, 128])
def test_selections_are_distinct_and_complete(unit: int) -> None:
    context, steps = 4096 + 17, 300
    trace = traces.generate(k=2048 // unit, context=context, unit=unit, steps=steps, **GLM)
    assert trace.dtype == np.int32 and trace.shape == (steps, 2048 // unit)
    for step, chosen in enumerate(trace):
        assert len(set(chosen.tolist())) == len(chosen)
        assert chosen.min() >= 0 and (chosen.max() + 1) * unit <= context + step
    assert trace.max() >= context // unit, "units that decoding completes are selected too"


def test_seed_and_names() -> None:
    one, again, other = (traces.generate(**SCALED, steps=40, **{**GLM, "seed": seed}) for seed in (1, 1, 2))
    assert (one == again).all() and (one != other).any()
    renamed = traces.shuffled(one, SCALED["context"], seed=9)
    assert (renamed != one).any() and (traces.overlaps(renamed) == traces.overlaps(one)).all()
    assert (traces.lru_misses(renamed, 600) == traces.lru_misses(one, 600)).all()
    fresh = one >= SCALED["context"]
    assert (renamed[fresh] == one[fresh]).all(), "units of new tokens keep their place"


def test_context_too_short() -> None:
    with pytest.raises(ValueError, match="need a context of 4096 positions; got 4095"):
        traces.generate(k=2048, context=4095, unit=1, steps=1, **GLM)


@pytest.mark.parametrize("context", [32_768, 100_384])
def test_full_size_is_quick_and_keeps_the_published_misses(context: int) -> None:
    began = time.perf_counter()
    trace = traces.generate(k=2048, context=context, unit=1, steps=512, **GLM)
    assert time.perf_counter() - began < 10
    for times, published in PUBLISHED.items():
        missed = 100 * traces.lru_misses(trace, times * 2048)[150:].mean() / 2048
        assert abs(missed - published) < 2, f"{times}k: {missed:.1f} %"


def lru_by_hand(trace: traces.Trace, entries: int) -> list[int]:
    """Misses of each step, with a dictionary in the order of last use."""
    cached: dict[int, None] = {}
    misses = []
    for chosen in trace.tolist():
        misses.append(sum(unit not in cached for unit in chosen))
        for unit in chosen:
            cached.pop(unit, None)
            cached[unit] = None
        for unit in list(cached)[: max(0, len(cached) - entries)]:
            del cached[unit]
    return misses


def test_cache_against_one_by_hand() -> None:
    """Ties within a step are broken differently, which moves single misses."""
    trace = traces.generate(k=64, context=2048, unit=1, steps=300, **GLM)
    for entries in (64, 100, 256):
        found, expected = traces.lru_misses(trace, entries), np.array(lru_by_hand(trace, entries))
        assert found[0] == expected[0] == 64
        assert abs(found.mean() - expected.mean()) < 0.5
    assert (traces.lru_misses(trace, 64) == lru_by_hand(trace, 64)).all(), "no ties: every entry is used"
    with pytest.raises(ValueError, match="63 entries does not hold the 64"):
        traces.lru_misses(trace, 63)


@pytest.mark.parametrize("times", PUBLISHED)
def test_resolve_keeps_the_published_misses(times: int) -> None:
    """The package's own replacement, on a request whose pages are all spilled."""
    k, warm, steps = SCALED["k"], 150, 500
    trace = traces.generate(**SCALED, steps=steps, **GLM)
    pages = (SCALED["context"] + steps) // PAGE + 1
    hot_rows = times * k
    buffer = torch.zeros(hot_rows + PAGE, 1, 16, dtype=torch.uint8)
    host = torch.zeros(pages * PAGE, 16, dtype=torch.uint8)
    group = Group(0, (Plane(0, "kv", byte_rows(buffer), host),))
    tables = HotTables.create(pages, 1, 1, 1, hot_rows, "cpu")
    tables.page_map[1:] = -2 - torch.arange(pages)
    tables.hot_rows[0] = torch.arange(PAGE, PAGE + hot_rows)
    tables.hot_index[0], tables.hot_len[0] = 0, hot_rows
    stats, at_warm = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    for step, chosen in enumerate(trace):
        if step == warm:
            at_warm = stats.clone()
        slots = torch.from_numpy(chosen).view(1, -1) + PAGE
        resolve.resolve(tables, group, slots, torch.zeros(1, dtype=torch.int64), 1, stats=stats)
    counted = stats - at_warm
    assert counted[OVERFLOW] == 0 and counted[HOT] + counted[MISSED] == (steps - warm) * k
    missed = 100 * counted[MISSED].item() / counted[[HOT, MISSED]].sum().item()
    assert abs(missed - PUBLISHED[times]) < 2, f"{times}k hot rows: {missed:.1f} %"
    model = 100 * traces.lru_misses(trace, hot_rows)[warm:].mean() / k
    assert abs(missed - model) < 0.5, f"{missed:.2f} %, LRU {model:.2f} %"
