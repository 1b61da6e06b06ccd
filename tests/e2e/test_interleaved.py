"""--prefill-decode-interval: running requests go on between the chunks of a prompt, and come to fill both tiers."""

from __future__ import annotations

from bench_serving.prompts import random_prompts
from sglang_hisparse.capacity import GIB
from sglang_hisparse.config import PAGE
from tests.e2e.compare import assert_empties, assert_same
from tests.e2e.conftest import Serve
from tests.e2e.test_least_host import PAGE_BYTES

HOST_PAGES = 12


def test_running_requests_outgrow_what_was_reckoned_with(quest_server: Serve) -> None:
    """Admission reckons with 8 output tokens, 640 come. Nothing fails, whoever is retracted comes back, and all others
    give what they give alone."""
    server = quest_server(
        host_pool_gib=(HOST_PAGES + 0.1) * PAGE_BYTES / GIB,
        max_total_tokens=32 * PAGE,
        top_k=256,
        recent_tokens=64,
        args=("--chunked-prefill-size", "128", "--prefill-decode-interval", "80"),
        env={"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "8"},
    )
    server.change(hisparse_shuffle=5)
    prompts = random_prompts([40, 42, 41, 900, 40, 1000], seed=5)
    lengths = [640, 650, 660, 60, 600, 60]
    found = server.generate(prompts, lengths)
    assert [len(answer.tokens) for answer in found] == lengths
    calm = [place for place, answer in enumerate(found) if not answer.retractions]
    assert 0 < len(calm) < len(found)
    assert_empties(server)
    for place in calm:
        assert_same([found[place]], server.generate([prompts[place]], lengths[place]))
        server.flush()
