"""`sglang-hisparse check` measures a real link: plausible numbers, and the kernel's own count of what it fetched."""

from __future__ import annotations

import pytest
import torch

from sglang_hisparse.tier.link_speed import Load, measure

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


def test_link_speed() -> None:
    found = measure(torch.device("cuda", 0), Load(host_bytes=1 << 28, seconds=0.1))
    assert found.error == "" and found.gather is not None
    for rate in (found.to_device, found.to_host, found.gather):
        assert 1 < rate < 1000, found
    assert found.gather < 1.2 * found.to_device, "rows cannot come faster than whole copies"
    assert found.device == torch.cuda.get_device_name(0)
