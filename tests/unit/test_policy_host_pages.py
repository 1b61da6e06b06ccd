"""Which host pages a request gets: close together, whoever else takes some in between."""

from __future__ import annotations

import random

import pytest

from sglang_hisparse.policy.host_pages import BLOCK, HostPages
from tests.unit.planner_cases import own, planner_of, run


def taken(pages: HostPages, count: int, last: int = -1) -> list[int]:
    result: list[int] = []
    for _ in range(count):
        last = pages.take(last)
        result.append(last)
    return result


def test_an_owner_fills_a_block_and_goes_on_behind_it() -> None:
    pages = HostPages(3 * BLOCK)
    first = taken(pages, BLOCK - 1)
    assert first == list(range(BLOCK - 1))
    assert taken(pages, 2) == [BLOCK, BLOCK + 1], "another owner starts a block of its own"
    assert taken(pages, 2, first[-1]) == [BLOCK - 1, 2 * BLOCK], "the block behind is in use, another is free"
    pages = HostPages(3 * BLOCK)
    pages.give(pages.take(2 * BLOCK - 1))
    assert taken(pages, BLOCK + 1) == [*range(BLOCK), BLOCK], "the one behind where all are free"


def test_the_emptiest_block_is_next_and_the_last_page_is_found() -> None:
    pages = HostPages(3 * BLOCK + 5)
    everything = taken(pages, 3 * BLOCK + 5)
    assert sorted(everything) == list(range(3 * BLOCK + 5)) and not pages
    for page in (3, BLOCK + 7, BLOCK + 9, 3 * BLOCK):
        pages.give(page)
    assert list(pages) == [3, BLOCK + 7, BLOCK + 9, 3 * BLOCK]
    assert taken(pages, 2) == [BLOCK + 7, BLOCK + 9]
    assert sorted(taken(pages, 2)) == [3, 3 * BLOCK]
    with pytest.raises(IndexError, match="no host page is free"):
        pages.take(3)
    assert not HostPages(0) and not list(HostPages(0))


@pytest.mark.parametrize("count", [1, BLOCK, 5 * BLOCK + 3])
def test_no_page_is_lost_or_handed_out_twice(count: int) -> None:
    rng, pages, held = random.Random(count), HostPages(count), {-1}
    for _ in range(20 * count):
        if len(held) > 1 and (rng.random() < 0.45 or not pages):
            page = rng.choice(sorted(held - {-1}))
            held.remove(page)
            pages.give(page)
        else:
            page = pages.take(rng.randrange(-1, count))
            assert page not in held
            held.add(page)
        assert len(pages) == count + 1 - len(held)
    assert {-1, *range(count)} - set(pages) == held


def test_requests_that_are_cleaned_in_turns_keep_apart() -> None:
    """Every step cleans a few pages of each, as decoding does, and idle ones beside them."""
    planner = planner_of(400, 8 * BLOCK, low_watermark=0.0)
    residency = planner.residency
    requests = [run(planner, row, range(1 + 60 * row, 1 + 60 * row + 60)) for row in range(3)]
    idle = own(planner, range(300, 340))
    for index in range(1, 41):
        for request in requests:
            residency.clean(request.pages[index])
        residency.clean(idle[index - 1])
    for pages in (*(request.pages[1:41] for request in requests), idle):
        host = [residency.host[page] for page in pages]
        assert host == list(range(host[0], host[0] + 40)) and host[0] % BLOCK == 0
    residency.check()


def test_pages_that_took_turns_on_the_host_do_not_scatter() -> None:
    """Requests of random length come and go; what a request has on the host stays within few blocks."""
    rng, planner = random.Random(5), planner_of(600, 40 * BLOCK, tables=32, low_watermark=0.0)
    residency, free = planner.residency, list(range(600 + 40 * BLOCK, 0, -1))
    running, spread = [], []
    for row in range(200):
        if len(running) == 8:
            leaving = running.pop(rng.randrange(8))
            blocks = {residency.host[page] // BLOCK for page in leaving.pages if residency.host[page] >= 0}
            spread.append(len(blocks))
            pages = list(leaving.pages)
            for page in pages:
                residency.release(page)
            free.extend(pages)
            planner.close(leaving.row)
        count = rng.randrange(BLOCK, 3 * BLOCK)
        assert planner.make_room(count)
        running.append(run(planner, row, [free.pop() for _ in range(count)]))
        for request in running:
            pages = [free.pop()]
            assert planner.make_room(1)
            residency.allocate(*pages)
            residency.attach(request, pages)
        planner.step()
        residency.forward_prepared()
    residency.check()
    assert sum(spread) / len(spread) < 3, "a request has two blocks of pages on average"
