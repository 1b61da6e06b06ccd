"""A device pool far smaller than the work: pressure, not a knob, moves the pages.

One server: 2,048 tokens of device pool, six times that on the host, prefill in chunks of 256 tokens.
"""

from __future__ import annotations

import random
import threading
import time

import pytest

from bench_serving.prompts import random_prompts
from bench_serving.serving import Answer, Server, ServerError
from tests.e2e.compare import assert_empties, assert_idle, assert_same, counted
from tests.e2e.conftest import Expect, Serve
from tests.e2e.streams import Stream

DEVICE_TOKENS = 2048


@pytest.fixture
def small(quest_server: Serve) -> Server:
    """The server under test, its free device pages in no order."""
    server = quest_server(
        host_pool_gib=0.05,
        max_total_tokens=DEVICE_TOKENS,
        args=("--chunked-prefill-size", "256"),
        audit="sampled",
    )
    server.change(hisparse_shuffle=3)
    return server


def test_prompt_longer_than_the_device_pool(small: Server, expect: Expect) -> None:
    """Prefill reads on the host what HBM cannot hold; so does decode. Twice: the prefix is found again."""
    prompts = random_prompts([3300], seed=21)
    wanted = expect(prompts, 40)
    for cached in (0, 3300 // 64 * 64):
        with counted(small) as moved:
            found = small.generate(prompts, 40)
        assert_same(found, wanted)
        assert found[0].cached_tokens >= cached
        assert moved["selected_missed"] > 0 and moved["selected_overflow"] == 0
    pages = assert_idle(small)
    assert pages["spilled"] * 64 >= 3300 - DEVICE_TOKENS
    assert_empties(small)


def test_chunks_over_spilled_prefixes(small: Server, expect: Expect) -> None:
    """Four long conversations take turns, so that each finds its prefix on the host when its turn comes."""
    prompts = random_prompts([1500, 1300, 1450, 1400], shared=512, seed=22)
    longer = [
        [*prompt, *more] for prompt, more in zip(prompts, random_prompts([700] * 4, seed=23), strict=True)
    ]
    wanted, following = expect(prompts, 24), expect(longer, 24)
    with counted(small) as moved:
        found = [small.generate([prompt], 24)[0] for prompt in prompts]
        pages = assert_idle(small)
        again = small.generate(longer, 24)
    assert_same(found, wanted)
    assert_same(again, following)
    assert pages["spilled"] * 64 >= sum(map(len, prompts)) - 512 - DEVICE_TOKENS - 4 * 64
    assert all(answer.cached_tokens >= len(p) // 64 * 64 for answer, p in zip(again, prompts, strict=True))
    assert moved["pages_spilled"] > 0 and moved["selected_missed"] > 0
    assert_empties(small)


def test_more_requests_than_fit(small: Server, expect: Expect) -> None:
    """Ten requests of 10,000 tokens together, sent at once."""
    prompts = random_prompts([1100, 700, 1300, 900, 1200, 1000, 800, 1400, 600, 1250], shared=320, seed=24)
    wanted = expect(prompts, 32)
    with counted(small) as moved:
        assert_same(small.generate(prompts, 32), wanted)
    assert moved["pages_cleaned"] >= moved["pages_spilled"] > 0
    assert moved["deferred_admissions"] > 0
    assert_empties(small)


def test_two_hundred_requests_and_cancelled_ones(small: Server, expect: Expect) -> None:
    """Random lengths, shared beginnings, every fourth one ended by its client at a random moment, and a forced
    spill rate that keeps changing."""
    draw = random.Random(25)
    lengths = [draw.choice((20, 60, 130, 200, 330)) + draw.randrange(40) for _ in range(200)]
    prompts = random_prompts(lengths, shared=96, seed=26)
    new = [draw.randrange(2, 40) for _ in prompts]
    checked = list(range(0, 200, 20))
    wanted = expect([prompts[i] for i in checked], [new[i] for i in checked])
    cancelled = {i for i in range(200) if i % 4 == 1}
    answers: dict[int, Answer] = {}
    places = iter(range(200))
    lock = threading.Lock()

    def client(seed: int) -> None:
        mine = random.Random(seed)
        while True:
            with lock:
                place = next(places, None)
            if place is None:
                return
            stream = Stream(small, prompts[place], 400 if place in cancelled else new[place])
            if place in cancelled:
                time.sleep(mine.random() * 0.5)
                if mine.random() < 0.5:
                    stream.hang_up()
                else:
                    small.abort(stream.rid)
            else:
                answers[place] = stream.result()

    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(16)]
    for thread in clients:
        thread.start()
    while any(thread.is_alive() for thread in clients):
        small.change(hisparse_force_spill=draw.choice((0, 0, 0.4, 1)), hisparse_check=1)
        time.sleep(0.5)
    small.change(hisparse_force_spill=0)
    assert sorted(answers) == [i for i in range(200) if i not in cancelled]
    assert all(len(answers[i].tokens) == new[i] for i in answers)
    assert not any(answer.retractions for answer in answers.values())
    assert_same([answers[i] for i in checked], wanted)
    assert_empties(small)


def test_a_request_that_never_fits_is_refused(small: Server) -> None:
    """When it arrives, with the reason; the server goes on."""
    most = small.hisparse()["capacity"]["logical_tokens"]
    with pytest.raises(ServerError, match=r"answered 400: .*(longer|exceed)"):
        small.generate(random_prompts([most + 100]), 4)
    assert small.generate(random_prompts([40]), 4)[0].finish == "length"
    assert_empties(small)
