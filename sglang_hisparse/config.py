"""Options of the host tier: the JSON behind `--hisparse-config`.

Stock SGLang parses that string only together with `--enable-hisparse`; the key `host_pool_gib` selects us instead.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from sglang_hisparse.options import check_choice, check_number, read_object

OPTION = "--hisparse-config"

PAGE = 64
"""Slots of a page: the unit of residency, and SGLang's --page-size."""

OPEN_PAGES = 2
"""The open page of a request and the one before it stay in HBM: a running forward may still write them."""

SELECTORS = ("auto", "quest")
AUDITS = ("off", "sampled", "full")
SPILL_ORDERS = ("position", "heat")
QUEST_PAGES = (16, 32, 64)


@dataclass(frozen=True, slots=True)
class HiSparseConfig:
    """Options as given. Sizes carry their unit in the name; `None` is resolved at start.

    host_pool_gib    GiB of pinned host memory for KV, per rank. 0: no host tier (the selector still runs).
    hot_rows         device rows a request may lease to cache spilled rows. None: 4 x top_k.
    low_watermark    device use (0..1) at which cleaning starts; below it no byte moves.
    high_watermark   device use at which spilling starts.
    selector         auto: what the model brings (DSA). quest: Quest bounds on an ordinary GQA model.
    page_size        Quest: positions of one selectable page.
    top_k            Quest: positions a step attends to, recent window included.
    recent_tokens    Quest: newest positions that are always attended to.
    spill_order      which pages of a request leave first: position (the oldest), heat (those selected least lately).
    resident_graphs  a second set of decode graphs for forwards whose requests have no spilled page (DSA on CUDA).
                     None: wherever nothing speaks against it.
    audit            compare host bytes with what was written: off, sampled (a few pages a step), full.
    force_spill      tests: share of every request's sealed pages that is spilled in every step.
    """

    host_pool_gib: float
    hot_rows: int | None = None
    low_watermark: float = 0.85
    high_watermark: float = 0.99
    selector: str = "auto"
    page_size: int | None = None
    top_k: int | None = None
    recent_tokens: int | None = None
    spill_order: str = "position"
    resident_graphs: bool | None = None
    audit: str = "off"
    force_spill: float = 0.0

    @classmethod
    def from_json(cls, text: str) -> HiSparseConfig:
        """Parse `text`; ValueError names the key, what was given and what is possible."""
        known = [field.name for field in dataclasses.fields(cls)]
        given = read_object(text, OPTION, known, '{"host_pool_gib": 64}')
        if "host_pool_gib" not in given:
            raise ValueError("--hisparse-config: host_pool_gib (GiB of pinned host memory) is required")
        config = cls(**given)
        config.check()
        return config

    def check(self) -> None:
        """ValueError where a value is out of its range."""
        check_number(OPTION, "host_pool_gib", self.host_pool_gib, 0, 1 << 20)
        check_number(OPTION, "low_watermark", self.low_watermark, 0, 1)
        check_number(OPTION, "high_watermark", self.high_watermark, 0, 1)
        check_number(OPTION, "force_spill", self.force_spill, 0, 1)
        if self.low_watermark > self.high_watermark:
            raise ValueError(
                f"--hisparse-config: low_watermark {self.low_watermark} is above high_watermark "
                f"{self.high_watermark}; cleaning has to start before spilling, for example 0.85 and 0.99"
            )
        check_choice(OPTION, "selector", self.selector, SELECTORS)
        check_choice(OPTION, "spill_order", self.spill_order, SPILL_ORDERS)
        check_choice(OPTION, "audit", self.audit, AUDITS)
        if self.resident_graphs is not None and not isinstance(self.resident_graphs, bool):
            raise ValueError(
                f"--hisparse-config: resident_graphs must be true or false, not {self.resident_graphs!r}"
            )
        if self.resident_graphs and self.selector == "quest":
            raise ValueError(
                "--hisparse-config: resident_graphs is for DSA on CUDA, Quest has no decode graphs; leave it out"
            )
        if self.resident_graphs and self.spill_order == "heat":
            raise ValueError(
                '--hisparse-config: resident_graphs does not work with "spill_order": "heat": pages are counted by '
                "resolve, which these graphs leave out; leave one of them out"
            )
        for name in ("hot_rows", "top_k", "recent_tokens"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value <= 0):
                raise ValueError(f"--hisparse-config: {name} must be a positive whole number, not {value!r}")
        if self.page_size is not None:
            check_choice(OPTION, "page_size", self.page_size, QUEST_PAGES)
        if self.selector != "quest":
            for name in ("page_size", "top_k", "recent_tokens"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f'--hisparse-config: {name} belongs to Quest; add "selector": "quest", or leave it out: '
                        "a DSA model brings its own top-k"
                    )

    def as_dict(self) -> dict[str, Any]:
        """The options for /server_info."""
        return dataclasses.asdict(self)


def selects_us(text: str | None) -> bool:
    """True where `--hisparse-config TEXT` is meant for this package and not for stock HiSparse. Never raises:
    text that is not JSON but names our key is ours to complain about."""
    if not text:
        return False
    try:
        given = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return "host_pool_gib" in text
    return isinstance(given, dict) and "host_pool_gib" in given
