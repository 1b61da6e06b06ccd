"""Admission arithmetic, in pages."""

from __future__ import annotations

import pytest

from sglang_hisparse.config import OPEN_PAGES
from sglang_hisparse.policy import Request
from sglang_hisparse.policy.admission import (
    can_finish,
    chunk_reserve,
    decode_pages,
    footprint,
    hot_charge,
    longest_prefill,
    prefill_pages,
    running_footprint,
)


@pytest.mark.parametrize(("most", "pages"), [(1, 1), (6, 6), (7, 7), (8, 7), (1000, 7)])
def test_a_decoding_request_needs_hot_pages_open_pages_and_the_one_it_starts_next(
    most: int, pages: int
) -> None:
    assert decode_pages(most, hot_min=7 - OPEN_PAGES - 1) == pages


def test_a_prefill_needs_its_prompt_or_the_chunk_once_for_all() -> None:
    assert prefill_pages(40, reads_host=False) == 40
    assert prefill_pages(40, reads_host=True) == 0
    assert chunk_reserve(8, reads_host=False) == 0
    assert chunk_reserve(8, reads_host=True) == 8


def test_the_footprint_falls_when_the_prompt_is_complete() -> None:
    request = Request(row=0, most_pages=50, prompt_pages=20, prefill_pages=20)
    assert footprint(request, hot_min=4) == 20
    request.pages = list(range(1, 21))
    assert footprint(request, hot_min=4) == 4 + OPEN_PAGES + 1
    small = Request(row=1, most_pages=3, prompt_pages=2, prefill_pages=2)
    assert footprint(small, hot_min=4) == 3, "decoding may need more than the prefill"
    assert running_footprint([request, small], hot_min=4) == 10
    assert running_footprint([], hot_min=4) == 0


@pytest.mark.parametrize(
    ("most_pages", "charge"),
    [
        ([], 0),
        ([30], 0),
        ([10, 20], 0),  # all of them fit HBM
        ([31], 0),  # one share is left out of the logical size
        ([20, 20], 4),
        ([20, 20, 20], 8),
        ([40, 2], 2),  # a short request never leases more than its pages
    ],
)
def test_hot_rows_are_charged_beyond_the_first_share(most_pages: list[int], charge: int) -> None:
    assert hot_charge(most_pages, hot_min=4, device_pages=30) == charge


@pytest.mark.parametrize(
    ("reads_host", "chunked", "pages"), [(False, True, 30), (True, True, None), (True, False, 24)]
)
def test_the_longest_prefill(reads_host: bool, chunked: bool, pages: int | None) -> None:
    assert longest_prefill(30, hot_min=4, reads_host=reads_host, chunked=chunked) == pages


@pytest.mark.parametrize(
    ("requests", "longest", "fits"),
    [
        ([(40, 0)], 30, True),  # alone: the logical space bounds it
        ([(31, 0), (30, 0), (30, 0)], 30, True),  # one that cannot come back, two that can
        ([(31, 0), (34, 0)], 30, False),  # 65 and 4 hot pages beyond the first 4: more than 68
        ([(31, 0), (33, 0)], 30, True),
        ([(99, 0), (99, 0)], None, True),
        ([(20, 30), (34, 0), (10, 0)], None, True),  # a prompt under way and the longest beside it
        ([(20, 30), (35, 0), (10, 0)], None, False),
        ([(90, 33), (31, 0), (34, 0)], 30, False),  # grows beyond what comes back: its longest counts
        ([(20, 20), (44, 0), (10, 0)], 40, True),
        ([(20, 20), (44, 0), (45, 0)], 40, False),
    ],
)
def test_what_cannot_be_retracted_fits_at_its_longest(
    requests: list[tuple[int, int]], longest: int | None, fits: bool
) -> None:
    assert can_finish(requests, longest, hot_min=4, logical_pages=68) is fits
