"""What an operator reads through /server_info, and what a test may change through /set_internal_state."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

from sglang_hisparse import __version__
from sglang_hisparse.config import PAGE, HiSparseConfig
from sglang_hisparse.pin import BUILT_ON, SGLANG
from sglang_hisparse.policy import State
from sglang_hisparse.seams.runtime import runtime
from sglang_hisparse.tier.host_tier import HostTier

TEST_KNOBS = "SGLANG_HISPARSE_TEST"
"""Environment variable that makes the test knobs of /set_internal_state work."""


def internal_state(result: Any, controller: Any, request: Any) -> Any:
    """`internal_states[i].hisparse` of /server_info, one a data-parallel rank: version, pin, seams with fingerprints,
    options in force, capacity; counters, page states, requests that hold KV. Beside it `hisparse_benchmark_aids`,
    where one is on."""
    tier = runtime.tier
    if runtime.aids.names():
        replay = runtime.replay
        result.internal_state["hisparse_benchmark_aids"] = {
            "outputs": "meaningless",
            **runtime.aids.as_dict(),
            **(replay.as_dict() if replay is not None else {}),
        }
    if tier is not None and runtime.config is not None:
        from sglang_hisparse.seams.apply import installed

        result.internal_state["hisparse"] = {
            "version": __version__,
            "pin": {"sglang": SGLANG, **BUILT_ON},
            "seams": installed(),
            "options": resolved_options(runtime.config, tier),
            "selector": tier.selector.name,
            "capacity": tier.capacity.as_dict(),
            "pages": tier.pages_by_state(),
            "requests": len(tier.residency.requests),
            "counters": tier.counters(),
        }
        if runtime.read_check is not None:
            names = ("rows_compared", "rows_different")
            result.internal_state["hisparse"]["read_check"] = dict(
                zip(names, runtime.read_check.counts.tolist(), strict=True)
            )
    return result


def resolved_options(config: HiSparseConfig, tier: HostTier) -> dict[str, Any]:
    """Every option as it is in force: what was left open has its value, `None` is what the selector does not have."""
    quest = runtime.quest
    return {
        **config.as_dict(),
        "hot_rows": tier.capacity.hot_max_pages * PAGE,
        "top_k": tier.selector.top_k,
        "page_size": quest.page_size if quest else None,
        "recent_tokens": quest.recent if quest else None,
    }


def change_state(original: Callable[..., Any], controller: Any, request: Any) -> Any:
    """Test knobs, only where the environment allows them:

    hisparse_force_spill   share of sealed pages spilled in every step
    hisparse_shuffle       seed: permute the free device pages, so that a page map cannot be the identity
    hisparse_flip_byte     n: damage one host byte of the n-th spilled page, for the audit's test
    hisparse_damage_page   n: zero the n-th spilled page on the host, all layers
    hisparse_check         check the accounting now, against stock's free list; a difference ends the server
    """
    knobs = {key: value for key, value in request.server_args.items() if key.startswith("hisparse_")}
    tier = runtime.tier
    if not knobs or tier is None or os.environ.get(TEST_KNOBS) != "1":
        return original(controller, request)
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    taken = True
    for key, value in knobs.items():
        if key == "hisparse_force_spill":
            tier.planner.options = dataclasses.replace(tier.planner.options, force_spill=float(value))
        elif key == "hisparse_shuffle":
            tier.residency.free_device.shuffle(value)
        elif key == "hisparse_flip_byte":
            taken = taken and _flip(tier, int(value))
        elif key == "hisparse_damage_page":
            taken = taken and _damage(tier, int(value))
        elif key == "hisparse_check":
            _check(tier, controller.scheduler.token_to_kv_pool_allocator)
        else:
            taken = False
    return SetInternalStateReqOutput(updated=taken)


def _spilled(tier: HostTier, which: int) -> int | None:
    """First host row of the n-th spilled page, counted around; None where nothing is spilled."""
    residency = tier.residency
    spilled = [h for p, h in enumerate(residency.host) if h >= 0 and residency.device[p] < 0]
    tier.mover.synchronize()
    return spilled[which % len(spilled)] * PAGE if spilled else None


def _flip(tier: HostTier, which: int) -> bool:
    row = _spilled(tier, which)
    if row is not None:
        tier.layout.planes[0].host[row, 0] ^= 1
    return row is not None


def _damage(tier: HostTier, which: int) -> bool:
    row = _spilled(tier, which)
    if row is not None:
        for plane in tier.layout.planes:
            plane.host[row : row + PAGE].zero_()
    return row is not None


def _check(tier: HostTier, allocator: Any) -> None:
    """AssertionError where the tier's pages and stock's free list do not add up to the logical pages."""
    residency = tier.residency
    residency.check()
    free = allocator.get_all_free_pages().tolist()
    owned = [p for p in range(1, residency.logical_pages + 1) if residency.state(p) is not State.FREE]
    assert sorted(free + owned) == list(range(1, residency.logical_pages + 1)), (
        f"{len(free)} free and {len(owned)} owned pages are not the {residency.logical_pages} logical ones"
    )
    assert list(allocator._mirror) == free, "the mirror of stock's free list is off"
