"""The environment variables of the benchmark aids: what they take, and what they say about the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sglang_hisparse.benchmark_aids import NO_COPY, REPLAY, BenchmarkAids, ReplayOptions, asked

ISSUE = '{"overlap":0.70,"tail":1.05,"unit":1,"seed":1,"context":32768,"steps":512}'


def test_defaults_are_those_of_the_issue() -> None:
    assert ReplayOptions.from_json("{}") == ReplayOptions.from_json(ISSUE)
    assert BenchmarkAids.of({REPLAY: ISSUE}).replay == ReplayOptions()
    assert BenchmarkAids.of({}) == BenchmarkAids.of({REPLAY: "", NO_COPY: "0"}) == BenchmarkAids()


def test_what_is_on() -> None:
    aids = BenchmarkAids.of({REPLAY: '{"seed": 7}', NO_COPY: "1"})
    assert aids.names() == [REPLAY, NO_COPY]
    assert aids.as_dict()["replay"]["seed"] == 7 and aids.as_dict()["no_copy"]
    assert BenchmarkAids.of({NO_COPY: "1"}).names() == [NO_COPY]
    json.dumps(aids.as_dict())


@pytest.mark.parametrize("environment", [{REPLAY: "{"}, {REPLAY: "{}"}, {NO_COPY: "1"}, {NO_COPY: "yes"}])
def test_asked(environment: dict[str, str]) -> None:
    assert asked(environment) and not asked({}) and not asked({NO_COPY: "0", REPLAY: ""})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "must be a JSON object, not [1]"),
        (
            {"overlapp": 0.7},
            "unknown key 'overlapp'. Did you mean 'overlap'? Known keys: overlap, tail, unit",
        ),
        ({"overlap": 1.2}, "overlap must be a number from 0 to 1, not 1.2"),
        ({"overlap": True}, "overlap must be a number from 0 to 1, not True"),
        ({"tail": 0}, "tail must be a number from 0.05 to 8, not 0"),
        ({"unit": 2}, "unit must be one of 1, 4, 16, 32, 64, 128, not 2"),
        ({"seed": -1}, "seed must be a whole number from 0 to 4294967295, not -1"),
        ({"seed": 1.5}, "seed must be a whole number from 0 to 4294967295, not 1.5"),
        ({"context": 0}, "context must be a whole number from 1 to 16777216, not 0"),
        ({"steps": "many"}, "steps must be a whole number from 1 to 65536, not 'many'"),
        ({"variants": 0}, "variants must be a whole number from 1 to 256, not 0"),
    ],
)
def test_refused(given: Any, message: str) -> None:
    text = given if isinstance(given, str) else json.dumps(given)
    with pytest.raises(ValueError) as caught:
        BenchmarkAids.of({REPLAY: text})
    assert REPLAY in str(caught.value) and message in str(caught.value)


def test_no_copy_refused() -> None:
    with pytest.raises(ValueError, match=f"{NO_COPY} must be 0 or 1, not 'yes'"):
        BenchmarkAids.of({NO_COPY: "yes"})


def test_selection_that_cannot_be_drawn() -> None:
    ReplayOptions(context=4096).check_selection(2048, 4096)
    with pytest.raises(ValueError, match=r"unit 64 does not divide the 100 positions"):
        ReplayOptions(unit=64).check_selection(100, 32768)
    with pytest.raises(ValueError, match=r"context 4000 is too short for 2048 .* 4096 or more works"):
        ReplayOptions(context=4000).check_selection(2048, 4000)
