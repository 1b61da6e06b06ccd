"""Synthetic selection traces with the locality of a trained model, and what a cache makes of them.

The model is an LRU stack. Units (a unit is 1, 4, 64 ... positions) stand in the order of their last selection. A step
selects k of them: `overlap` * k at random among the first k, which are the selection of the step before, and the rest
at distinct distances x >= k with P(X > x) = (x / k) ** -tail, cut off at the end of the stack. What was selected
moves to the front, the repeated ones above the others. A unit that decoding completes enters right behind them.

With overlap 0.70 and tail 1.05 an LRU cache of k, 2k and 4k units misses about 30, 14 and 7 % of a step, as was
published for GLM-5.1 (30, 13.4 and 6.7 %).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Trace = NDArray[np.int32]
"""[steps, k]: the units that each step selects, distinct within a step, in no order."""

_ROUNDS = 64
"""Draws of stack distances before the few that are still missing are taken at random."""


def generate(*, k: int, context: int, unit: int, steps: int, overlap: float, tail: float, seed: int) -> Trace:
    """A trace of `steps` decode steps. Step s selects complete units of the first `context` + s positions only.

    ValueError where fewer than 2k units are complete at the start.
    """
    first = context // unit
    if not 0 < k <= first // 2:
        raise ValueError(
            f"{k} units a step need a context of {2 * max(k, 1) * unit} positions; got {context}"
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(first).astype(np.int32)
    trace = np.empty((steps, k), np.int32)
    for step in range(steps):
        for fresh in range(len(order), (context + step) // unit):
            order = np.concatenate((order[:k], [np.int32(fresh)], order[k:]))
        repeated = int(overlap * k * (step + 1)) - int(overlap * k * step)
        near = rng.permutation(k)[:repeated]
        far = _distances(rng, k, len(order), k - repeated, tail)
        chosen = order[np.concatenate((near, far))]
        left = np.ones(len(order), bool)
        left[near] = left[far] = False
        order = np.concatenate((chosen, order[left]))
        trace[step] = rng.permutation(chosen)
    return trace


def _distances(rng: np.random.Generator, k: int, end: int, count: int, tail: float) -> NDArray[np.int64]:
    """`count` distinct stack distances of [k, end)."""
    found = np.empty(0, np.int64)
    for _ in range(_ROUNDS):
        if len(found) >= count:
            return found[:count]
        above = rng.random(2 * count) * (1 - (end / k) ** -tail)  # P(X <= x) of the draw, cut off at `end`
        drawn = np.minimum((k * (1 - above) ** (-1 / tail)).astype(np.int64), end - 1)
        found = np.concatenate((found, drawn))
        found = found[np.sort(np.unique(found, return_index=True)[1])]
    rest = np.setdiff1d(np.arange(k, end), found)
    return np.concatenate((found, rng.permutation(rest)))[:count]


def shuffled(trace: Trace, context_units: int, seed: int) -> Trace:
    """The same trace with the units below `context_units` renamed at random: all statistics stay."""
    names = np.arange(max(context_units, int(trace.max()) + 1), dtype=np.int32)
    names[:context_units] = np.random.default_rng(seed).permutation(context_units)
    return names[trace]


def overlaps(trace: Trace) -> NDArray[np.float64]:
    """[steps - 1]: share of each selection that the step before selected too."""
    before = np.zeros(int(trace.max()) + 1, np.int64)
    shares = np.empty(len(trace) - 1)
    for step in range(1, len(trace)):
        before[trace[step - 1]] = step
        shares[step - 1] = (before[trace[step]] == step).mean()
    return shares


def lru_misses(trace: Trace, entries: int) -> NDArray[np.int64]:
    """[steps]: misses of each step in a cache of `entries` >= k units that starts empty.

    Replacement is that of the resolve kernel: the entries unused for the most steps give way, none that this step
    uses; ties by entry.
    """
    steps, k = trace.shape
    if entries < k:
        raise ValueError(f"a cache of {entries} entries does not hold the {k} units of a step")
    holds = np.full(entries, -1, np.int64)
    used = np.full(entries, -1, np.int64)
    entry_of = np.full(int(trace.max()) + 1, -1, np.int64)
    misses = np.empty(steps, np.int64)
    for step, chosen in enumerate(trace):
        entry = entry_of[chosen]
        used[entry[entry >= 0]] = step
        missing = chosen[entry < 0]
        misses[step] = len(missing)
        victims = np.sort(np.argsort(used, kind="stable")[: len(missing)])
        evicted = holds[victims]
        entry_of[evicted[evicted >= 0]] = -1
        holds[victims], used[victims] = missing, step
        entry_of[missing] = victims
    return misses
