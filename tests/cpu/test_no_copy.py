"""The no-IO oracle: the tier asks the kernel to leave missed rows as they are, and counts no bytes for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sglang_hisparse.kernels import resolve
from sglang_hisparse.policy import PlannerOptions
from tests.cpu.tier_server import MLA, tier_of
from tests.unit.fake_server import Sizes

OPTIONS = PlannerOptions(hot_min=2, hot_max=4, tables=8, low_watermark=0.5, high_watermark=0.8)


@pytest.mark.parametrize("copy_rows", [True, False])
def test_what_the_kernel_is_asked_for(monkeypatch: pytest.MonkeyPatch, copy_rows: bool) -> None:
    asked: dict[str, Any] = {}

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        asked.update(kwargs)
        kwargs["stats"][2] += 5
        return args[2]

    tier = tier_of(Sizes(12, 24, OPTIONS, reads_host=False), MLA)
    assert tier.copy_rows
    tier.copy_rows = copy_rows
    monkeypatch.setattr(resolve, "resolve", watched)
    tier.resolve(0, torch.full((1, 8), -1, dtype=torch.int32), torch.tensor([0]))
    assert asked["read_rows"] is copy_rows
    assert tier.counters()["selected_missed"] == 5
    assert (tier.counters()["bytes_to_device"] > 0) is copy_rows
