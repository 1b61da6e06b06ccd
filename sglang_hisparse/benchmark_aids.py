"""Aids for benchmarks with dummy weights, switched on by environment variables so that stock systems have them too.

    SGLANG_HISPARSE_BENCH_REPLAY    JSON of `ReplayOptions`: decode selections come from a synthetic trace, so that hit
                                    rates are those of a real model; {} takes every default
    SGLANG_HISPARSE_BENCH_NO_COPY   1: resolve does everything but moves no row bytes on a miss, the no-IO oracle

Both make outputs meaningless and are refused without `--load-format dummy`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_hisparse.options import check_choice, check_number, check_whole, read_object

REPLAY = "SGLANG_HISPARSE_BENCH_REPLAY"
NO_COPY = "SGLANG_HISPARSE_BENCH_NO_COPY"
UNITS = (1, 4, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The trace to replay (`traces.py` has the model), and where it starts.

    overlap   share of a step's selection that the step before selected too, 0..1
    tail      exponent a of the other picks' stack distance: P(X > x) = (x / k) ** -a
    unit      positions of one selected unit: 1 (DSA), 4, 64 or 128; Quest: its page_size
    seed      another seed, another trace of the same statistics
    context   tokens at which a request's replay starts; rows that are shorter keep their own selection
    steps     decode steps of the trace; it starts over after them
    variants  traces that requests and index groups are spread over; each takes steps * top_k / unit * 4 B of HBM
    """

    overlap: float = 0.70
    tail: float = 1.05
    unit: int = 1
    seed: int = 1
    context: int = 32768
    steps: int = 512
    variants: int = 16

    @classmethod
    def from_json(cls, text: str) -> ReplayOptions:
        """Parse `text`; ValueError names the key, what was given and what is possible."""
        known = [field.name for field in dataclasses.fields(cls)]
        given = read_object(text, REPLAY, known, '{"overlap": 0.70, "tail": 1.05}')
        options = cls(**given)
        options.check()
        return options

    def check(self) -> None:
        """ValueError where a value is out of its range."""
        check_number(REPLAY, "overlap", self.overlap, 0, 1)
        check_number(REPLAY, "tail", self.tail, 0.05, 8)
        check_choice(REPLAY, "unit", self.unit, UNITS)
        check_whole(REPLAY, "seed", self.seed, 0, 2**32 - 1)
        check_whole(REPLAY, "context", self.context, 1, 1 << 24)
        check_whole(REPLAY, "steps", self.steps, 1, 1 << 16)
        check_whole(REPLAY, "variants", self.variants, 1, 256)

    def check_selection(self, top_k: int, context: int) -> None:
        """ValueError where steps of `top_k` positions cannot be drawn from `context` ones."""
        if top_k % self.unit:
            raise ValueError(
                f"{REPLAY}: unit {self.unit} does not divide the {top_k} positions that a step selects"
            )
        if context < 2 * top_k:
            least = self.context + 2 * top_k - context
            raise ValueError(
                f"{REPLAY}: context {self.context} is too short for {top_k} selected positions a step; "
                f"{least} or more works"
            )


@dataclass(frozen=True, slots=True)
class BenchmarkAids:
    """Which aids are on."""

    replay: ReplayOptions | None = None
    no_copy: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> BenchmarkAids:
        """What `environment` asks for; ValueError where it is not understood."""
        no_copy = environment.get(NO_COPY, "")
        if no_copy not in ("", "0", "1"):
            raise ValueError(f"{NO_COPY} must be 0 or 1, not {no_copy!r}")
        text = environment.get(REPLAY, "")
        return cls(ReplayOptions.from_json(text) if text else None, no_copy == "1")

    def names(self) -> list[str]:
        """The variables of the aids that are on."""
        return [name for name, on in ((REPLAY, self.replay is not None), (NO_COPY, self.no_copy)) if on]

    def as_dict(self) -> dict[str, Any]:
        """For /server_info."""
        return dataclasses.asdict(self)


def asked(environment: Mapping[str, str]) -> bool:
    """True where `environment` names an aid. Never raises."""
    return environment.get(REPLAY, "") != "" or environment.get(NO_COPY, "") not in ("", "0")
