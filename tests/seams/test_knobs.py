"""The test knobs do what tests that use them rely on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_hisparse.policy import PlannerOptions
from tests.cpu.tier_server import MLA, tier_of
from tests.unit.fake_server import Sizes

pytest.importorskip("sglang.srt.server_args", reason="SGLang is not installed")

OPTIONS = PlannerOptions(hot_min=1, hot_max=2, tables=8, low_watermark=0.5, high_watermark=0.8)


@pytest.mark.parametrize("allowed", [True, False])
def test_shuffled_pages_are_handed_out_in_another_order(
    allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else logical and device pages would have the same numbers, and a page map that nobody reads would do."""
    from sglang_hisparse.seams import state
    from sglang_hisparse.seams.runtime import runtime

    tier = tier_of(Sizes(40, 16, OPTIONS, reads_host=False), MLA)
    monkeypatch.setattr(runtime, "tier", tier)
    monkeypatch.setenv(state.TEST_KNOBS, "1" if allowed else "0")
    request = SimpleNamespace(server_args={"hisparse_shuffle": 7})
    answer = state.change_state(lambda *_: "stock", None, request)
    free = tier.residency.free_device
    taken = [free.take() for _ in range(40)]
    assert sorted(taken) == list(range(1, 41))
    if allowed:
        assert answer.updated and taken != sorted(taken)
    else:
        assert answer == "stock" and taken == sorted(taken)
