"""Pages are forced out of the device pool of a running server; outputs must not change by a bit.

One server, whose audit compares all host bytes before every forward. Its device pool would hold everything.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench_serving.prompts import random_prompts
from bench_serving.serving import Answer, Server, ServerError
from tests.e2e.compare import assert_close, assert_empties, assert_idle, assert_same, counted
from tests.e2e.conftest import Expect, Serve
from tests.e2e.streams import Stream, meanwhile, until

LENGTHS = (1400, 900, 1200, 600, 1500, 300)
PROMPTS = random_prompts(LENGTHS, shared=500)
SHORT = random_prompts([40, 150, 260, 90], shared=64, seed=5)
"""Shorter than top_k with their outputs: Quest is dense there, and so is the prefill of a retracted request."""
NEW = 24


@pytest.fixture
def tiered(quest_server: Serve) -> Server:
    """The server under test, its free device pages in no order."""
    server = quest_server(host_pool_gib=0.1, max_total_tokens=16384, audit="full")
    server.change(hisparse_shuffle=7)
    return server


def next_round(answers: list[Answer]) -> list[list[int]]:
    """The second turn of every conversation: prompt, answer, and some tokens more."""
    follow_up = random_prompts([70] * len(answers), seed=9)
    return [
        [*prompt, *answer.tokens, *more]
        for prompt, answer, more in zip(PROMPTS, answers, follow_up, strict=True)
    ]


@pytest.fixture(scope="module")
def conversation(resident: Serve) -> tuple[list[Answer], list[Answer]]:
    """Both turns on the resident server. The second finds the first one's answers in the prefix cache, with the
    rows that sparse decode wrote: prefill would compute them densely."""
    server = resident()
    first = server.generate(PROMPTS, NEW)
    return first, server.generate(next_round(first), NEW)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_equal_at_any_spill_rate(
    tiered: Server, conversation: tuple[list[Answer], list[Answer]], share: float
) -> None:
    first, second = conversation
    tiered.change(hisparse_force_spill=share)
    with counted(tiered) as moved:
        assert_same(tiered.generate(PROMPTS, NEW), first)
        between = assert_idle(tiered)
        again = tiered.generate(PROMPTS, NEW)
        following = tiered.generate(next_round(first), NEW)
    assert_same(again, first)
    assert_same(following, second)
    for prompt, answer in zip(PROMPTS, again, strict=True):
        assert answer.cached_tokens >= (len(prompt) - 1) // 64 * 64, "the prefix was not found again"
    assert moved["selected_resident"] > 0 and moved["selected_overflow"] == 0
    if share == 0:
        assert between["spilled"] == between["clean"] == 0
        assert not any(moved[name] for name in moved if name.startswith(("pages", "bytes", "selected_h")))
    else:
        # Every prefix page is there still, that share of it on the host: the second round read it there.
        prefixes = sum(-(-length // 64) - 3 for length in LENGTHS) - 4 * 6
        assert between["spilled"] >= int(share * prefixes) > 0
        assert moved["pages_spilled"] >= between["spilled"]
        assert moved["selected_missed"] > 0 and moved["selected_hot"] > 0
        assert moved["bytes_to_host"] > 0 and moved["bytes_to_device"] > 0 and moved["audited_pages"] > 0
    assert_empties(tiered)


def test_branches_of_a_shared_prefix_are_cut_off(tiered: Server, expect: Expect) -> None:
    """Five requests share 1,000 tokens; two of them end midway, the others go on as if alone."""
    prompts = random_prompts([1100, 400, 1250, 410, 1180, 420, 1150, 430, 1210], shared=1000, seed=2)[::2]
    wanted = expect(prompts[:3], 60)
    tiered.change(hisparse_force_spill=0.5)
    with counted(tiered) as moved, meanwhile(lambda: tiered.generate(prompts[:3], 60)) as others:
        aborted = Stream(tiered, prompts[3], 400)
        left = Stream(tiered, prompts[4], 400)
        aborted.wait(5)
        left.wait(5)
        tiered.abort(aborted.rid)
        left.hang_up()
        assert_same(others.result(), wanted)
    assert aborted.result().finish == "abort"
    assert 5 <= aborted.count() < 400 and left.count() < 400
    assert_idle(tiered)
    assert moved["pages_spilled"] > 0 and moved["selected_missed"] > 0
    # What they shared serves the next request, spilled or not.
    again = tiered.generate(prompts[2:3], 60)
    assert_same(again, wanted[2:3])
    assert again[0].cached_tokens >= 1000 // 64 * 64
    assert_empties(tiered)


def test_flush_frees_every_page(tiered: Server, expect: Expect) -> None:
    """Flushing is refused while requests run, and harmless to them; afterwards it frees both tiers."""
    wanted = expect(PROMPTS[:2], NEW)
    tiered.change(hisparse_force_spill=1.0)
    for _ in range(2):
        stream = Stream(tiered, PROMPTS[0], NEW)
        stream.wait(3)
        with pytest.raises(ServerError, match="Flush cache failed"):
            tiered.flush()
        assert_same([stream.result()], wanted[:1])
        assert_same(tiered.generate(PROMPTS[:2], NEW), wanted)
        assert assert_idle(tiered)["spilled"] > 0
        assert_empties(tiered)
        tiered.change(hisparse_shuffle=11)


def test_pause_in_place(tiered: Server, expect: Expect) -> None:
    """Requests stand still, the spill rate changes under them, and they go on."""
    wanted = expect(PROMPTS[:3], 40)
    tiered.change(hisparse_force_spill=0.1)
    with meanwhile(lambda: tiered.generate(PROMPTS[1:3], 40)) as others:
        stream = Stream(tiered, PROMPTS[0], 40)
        stream.wait(5)
        tiered.pause("in_place")
        try:
            before = tiered.counters()
            tiered.change(hisparse_force_spill=1.0, hisparse_check=1)
            assert tiered.counters() == before, "something moved during the pause"
            assert not others.done() and not stream.ended
        finally:
            tiered.resume()
        assert_same([stream.result(), *others.result()], wanted)
    assert tiered.counters()["pages_spilled"] > before["pages_spilled"]
    assert_empties(tiered)


def test_pages_come_back(tiered: Server, expect: Expect) -> None:
    """While requests run, all their pages leave, come back, and leave again."""
    wanted = expect(PROMPTS[:3], 90)
    with meanwhile(lambda: tiered.generate(PROMPTS[1:3], 90)) as others:
        stream = Stream(tiered, PROMPTS[0], 90)
        for share in (1.0, 0.0, 1.0, 0.0):
            stream.wait(stream.count() + 3)
            tiered.pause()
            try:
                before = tiered.counters()
                tiered.change(hisparse_force_spill=share, hisparse_check=1)
            finally:
                tiered.resume()
            stream.wait(stream.count() + 8)  # some of these were on their way already
            moves = "pages_spilled" if share else "pages_restored"
            assert tiered.counters()[moves] > before[moves], f"{moves} did not grow"
        assert_same([stream.result(), *others.result()], wanted)
    assert_empties(tiered)


@pytest.mark.parametrize("flush", [False, True], ids=["", "flushed"])
def test_pause_retracts(tiered: Server, expect: Expect, flush: bool) -> None:
    """Requests lose their KV, and with `flush` the prefix cache too, as before an update of the weights."""
    wanted = expect(SHORT, 100)
    long = expect(PROMPTS[:1], 100)
    tiered.change(hisparse_force_spill=0.5)
    with meanwhile(lambda: tiered.generate([*SHORT[1:], PROMPTS[0]], 100)) as others:
        stream = Stream(tiered, SHORT[0], 100)
        stream.wait(20)
        tiered.pause("retract")
        try:
            until(lambda: tiered.hisparse()["requests"] == 0, "taking the KV of every request")
            if flush:
                tiered.flush()
                assert tiered.hisparse()["pages"]["free"] == tiered.hisparse()["capacity"]["device_pages"]
            tiered.change(hisparse_check=1)
        finally:
            tiered.resume()
        answers = others.result()
    watched = stream.result()
    assert watched.retractions + sum(answer.retractions for answer in answers) >= 1
    assert_close([watched, *answers[:-1]], wanted)
    assert len(answers[-1].tokens) == 100 and answers[-1].tokens[:5] == long[0].tokens[:5]
    assert_empties(tiered)


def test_update_of_the_weights(tiered: Server, expect: Expect, qwen3_path: Path) -> None:
    """The same weights again: spilled KV of the old ones is gone with them, and outputs are the same."""
    wanted = expect(PROMPTS[:2], NEW)
    tiered.change(hisparse_force_spill=1.0)
    assert_same(tiered.generate(PROMPTS[:2], NEW), wanted)
    assert assert_idle(tiered)["spilled"] > 0
    done = tiered.call("/update_weights_from_disk", {"model_path": str(qwen3_path)})
    assert done["success"], done
    pages = assert_idle(tiered)
    assert pages["free"] == tiered.hisparse()["capacity"]["device_pages"] and pages["spilled"] == 0
    again = tiered.generate(PROMPTS[:2], NEW)
    assert_same(again, wanted)
    assert again[0].cached_tokens == 0
    assert_empties(tiered)


def test_openai_endpoints(tiered: Server, resident: Serve) -> None:
    """Text in, text out, with the tier at work: as the resident server answers."""
    text = " ".join(f"line {number} of a long letter;" for number in range(90))
    completion = {"model": "tiny", "prompt": text, "max_tokens": 16, "temperature": 0, "logprobs": 1}
    messages = [
        {"role": "system", "content": text},
        {"role": "user", "content": "What did line 7 say?"},
    ]
    chat = {"model": "tiny", "messages": messages, "max_tokens": 16, "temperature": 0, "logprobs": True}
    tiered.change(hisparse_force_spill=0.5)
    for path, body in (("/v1/completions", completion), ("/v1/chat/completions", chat)):
        with counted(tiered) as moved:
            found = tiered.call(path, body)
        wanted = resident().call(path, body)
        assert found["usage"] == wanted["usage"] and found["usage"]["completion_tokens"] == 16
        assert found["usage"]["prompt_tokens"] > 512, "too short to be sparse"
        assert found["choices"] == wanted["choices"]
        assert moved["selected_missed"] > 0
    assert_empties(tiered)


def test_zz_audit_stops_a_server_that_would_read_wrong_bytes(tiered: Server) -> None:
    """Last in this file: it ends the server."""
    tiered.change(hisparse_force_spill=1.0)
    tiered.generate(PROMPTS[:1], 4)
    assert tiered.hisparse()["pages"]["spilled"] > 0
    tiered.change(hisparse_flip_byte=2)
    with pytest.raises(ServerError):
        tiered.generate(PROMPTS[:1], 4)
    until(lambda: not tiered.alive, "the end of the server", 60)
    found = re.search(
        r"HiSparse audit: .*: layer 0 \(k\), page (\d+), slot (\d+), host page \d+;", tiered.log()
    )
    assert found, f"no audit message in {tiered.log_path}"
    assert int(found[2]) == int(found[1]) * 64
