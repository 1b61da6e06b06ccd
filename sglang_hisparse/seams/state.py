"""What an operator reads through /server_info, and what a test may change through /set_internal_state."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable
from typing import Any

from sglang_hisparse import __version__
from sglang_hisparse.pin import SGLANG
from sglang_hisparse.seams.runtime import runtime
from sglang_hisparse.tier.host_tier import HostTier

TEST_KNOBS = "SGLANG_HISPARSE_TEST"
"""Environment variable that makes the test knobs of /set_internal_state work."""


def internal_state(result: Any, controller: Any, request: Any) -> Any:
    """`internal_states[i].hisparse` of /server_info: options, seams, capacity, counters, page states."""
    tier = runtime.tier
    if tier is not None and runtime.config is not None:
        from sglang_hisparse.seams.apply import installed

        result.internal_state["hisparse"] = {
            "version": __version__,
            "sglang": SGLANG,
            "seams": installed(),
            "options": runtime.config.as_dict(),
            "selector": tier.selector.name,
            "capacity": tier.capacity.as_dict(),
            "pages": tier.pages_by_state(),
            "counters": tier.counters(),
        }
    return result


def change_state(original: Callable[..., Any], controller: Any, request: Any) -> Any:
    """Test knobs, only where the environment allows them:

    hisparse_force_spill   share of sealed pages spilled in every step
    hisparse_shuffle       seed: permute the free device pages, so that a page map cannot be the identity
    hisparse_flip_byte     n: damage one host byte of the n-th spilled page, for the audit's test
    """
    knobs = {key: value for key, value in request.server_args.items() if key.startswith("hisparse_")}
    tier = runtime.tier
    if not knobs or tier is None or os.environ.get(TEST_KNOBS) != "1":
        return original(controller, request)
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    for key, value in knobs.items():
        if key == "hisparse_force_spill":
            tier.planner.options = dataclasses.replace(tier.planner.options, force_spill=float(value))
        elif key == "hisparse_shuffle":
            random.Random(value).shuffle(tier.residency.free_device)
        elif key == "hisparse_flip_byte":
            _flip(tier, int(value))
        else:
            return SetInternalStateReqOutput(updated=False)
    return SetInternalStateReqOutput(updated=True)


def _flip(tier: HostTier, which: int) -> None:
    residency = tier.residency
    spilled = [h for p, h in enumerate(residency.host) if h >= 0 and residency.device[p] < 0]
    tier.mover.synchronize()
    tier.layout.groups[0].host[spilled[which % len(spilled)] * 64, 0] ^= 1
