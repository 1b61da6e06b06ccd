"""Replayed selections on CPU tensors: the same functions run in the decode graph on CUDA (tests/gpu)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sglang_hisparse import traces
from sglang_hisparse.benchmark_aids import ReplayOptions
from sglang_hisparse.selectors.quest import QuestParameters
from sglang_hisparse.selectors.replay import SelectionReplay, slots_of

CONTEXT, STEPS, K = 500, 12, 64
OPTIONS = ReplayOptions(context=CONTEXT, steps=STEPS, variants=3)
GROUPS, ROWS = 4, 10


def replay_of(unit: int = 1) -> SelectionReplay:
    options = ReplayOptions(context=CONTEXT, steps=STEPS, variants=3, unit=unit)
    return SelectionReplay(options, K, GROUPS, ROWS, "cpu")


def expected(unit: int, group: int, row: int, step: int) -> list[int]:
    """Positions by the definition, in plain Python."""
    base = traces.generate(
        k=K // unit, context=CONTEXT, unit=unit, steps=STEPS, overlap=0.70, tail=1.05, seed=1
    )
    chosen = traces.shuffled(base, CONTEXT // unit, 1 + (group + row) % 3)[step]
    return [int(u) * unit + i for u in chosen for i in range(unit)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("unit", [1, 4])
def test_rows_of_every_kind(unit: int, dtype: torch.dtype) -> None:
    replay = replay_of(unit)
    rows = torch.tensor([3, 0, 9, 5, -1, 3, 0], dtype=dtype)
    tokens = torch.tensor(
        [CONTEXT, CONTEXT + 5, CONTEXT + STEPS - 1, CONTEXT - 1, CONTEXT + 2, CONTEXT + STEPS + 4, 1],
        dtype=dtype,
    )
    positions, replayed = replay.select(rows, tokens)
    assert positions.dtype == torch.int32 and positions.shape == (GROUPS, len(rows), K)
    assert replayed.tolist() == [True, True, True, False, False, True, False]
    for i, step in ((0, 0), (1, 5), (2, STEPS - 1), (5, 4)):
        for group in range(GROUPS):
            found = positions[group, i].tolist()
            assert found == expected(unit, group, int(rows[i]), step)
            assert len(set(found)) == K and min(found) >= 0 and max(found) < tokens[i]
    assert (positions[:, ~replayed] < CONTEXT).all(), "safe to look up, though not used"
    one, _ = replay.select(rows, tokens, slice(2, 3))
    assert (one[0] == positions[2]).all()


def test_neighbours_differ() -> None:
    replay = replay_of()
    positions, _ = replay.select(torch.arange(2), torch.full((2,), CONTEXT))
    first, second = positions[0, 0].tolist(), positions[0, 1].tolist()
    assert first != second and positions[1, 0].tolist() != first


def test_overlap_of_a_request_that_decodes() -> None:
    options = ReplayOptions(context=2000, steps=200, overlap=0.59)
    replay = SelectionReplay(options, 100, 1, 2, "cpu")
    steps = [replay.select(torch.tensor([1]), torch.tensor([2000 + s]))[0][0, 0] for s in range(200)]
    assert abs(traces.overlaps(torch.stack(steps).numpy()).mean() - 0.59) < 0.01
    assert abs(replay.as_dict()["trace_overlap"] - 0.59) < 0.01


def test_slots() -> None:
    replay = replay_of()
    req_to_token = torch.from_numpy(np.random.default_rng(0).permutation(ROWS * 600).astype(np.int32))
    req_to_token = req_to_token.view(ROWS, 600)
    rows, tokens = torch.tensor([2, -1, 9]), torch.tensor([CONTEXT + 1, 7, CONTEXT + STEPS])
    positions, replayed = replay.select(rows, tokens)
    slots = slots_of(positions, rows, req_to_token)
    assert slots.dtype == torch.int32 and slots.shape == positions.shape
    for i in replayed.nonzero().view(-1).tolist():
        assert (slots[:, i] == req_to_token[rows[i]][positions[:, i].long()]).all()


def test_short_rows_stay_inside_a_short_table() -> None:
    """A row below the context looks up step 0, whose positions fit any table that can hold the context."""
    replay = replay_of()
    rows = torch.full((STEPS,), ROWS - 1)
    positions, replayed = replay.select(rows, torch.arange(CONTEXT - STEPS, CONTEXT))
    slots_of(positions, rows, torch.zeros(ROWS, CONTEXT, dtype=torch.int32))
    assert not replayed.any()


QUEST = QuestParameters(top_k=512, page_size=64, recent=128)


def test_quest_reads_pages_of_the_trace_and_the_recent_window() -> None:
    options = ReplayOptions(context=2048, steps=130, unit=64, variants=2)
    replay = SelectionReplay(options, 0, 4, 8, "cpu", QUEST)
    count = (512 - 128 - 63) // 64
    own = torch.arange(7)
    assert replay.quest_positions(1, 2, 2047, own) is own
    pages_before: set[int] = set()
    overlaps = []
    for length in range(2048, 2048 + 130):
        positions = replay.quest_positions(1, 2, length, own)
        assert positions.dtype == torch.int64 and (positions.diff() > 0).all()
        window = (length - 128) // 64 * 64
        assert positions[positions >= window].tolist() == list(range(window, length))
        pages = set((positions[positions < window] // 64).tolist())
        assert len(pages) == count and len(positions) == count * 64 + length - window <= 512
        overlaps.append(len(pages & pages_before) / count)
        pages_before = pages
    assert abs(np.mean(overlaps[1:]) - 0.70) < 0.02


@pytest.mark.parametrize(
    ("options", "quest", "message"),
    [
        ({"unit": 4}, QUEST, "unit 4 is not Quest's page_size 64"),
        ({"unit": 64, "context": 700}, QUEST, "context 700 is too short for 320 .* 768 or more works"),
        ({"context": 100}, None, "context 100 is too short for 64 .* 128 or more works"),
        ({"unit": 128}, None, "unit 128 does not divide the 64 positions"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, int], quest: QuestParameters, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SelectionReplay(ReplayOptions(**options), K, 1, 1, "cpu", quest)
