"""What the hooks of one process share. Stock builds its classes itself, so there is one of these a process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sglang_hisparse.benchmark_aids import BenchmarkAids

if TYPE_CHECKING:
    from sglang_hisparse.capacity import Capacity
    from sglang_hisparse.config import HiSparseConfig
    from sglang_hisparse.seams.read_check import ReadCheck
    from sglang_hisparse.selectors import Selector
    from sglang_hisparse.selectors.quest import QuestBounds, QuestParameters
    from sglang_hisparse.selectors.replay import SelectionReplay
    from sglang_hisparse.tier.host_tier import HostTier


@dataclass
class Runtime:
    """`config` and `aids` are set once arguments are resolved, `capacity` and `selector` when pools are sized,
    `tier` and `replay` when they exist. Every hook is inert while the part that it needs is None."""

    config: HiSparseConfig | None = None
    selector: Selector | None = None
    capacity: Capacity | None = None
    tier: HostTier | None = None
    quest: QuestParameters | None = None
    bounds: QuestBounds | None = None
    aids: BenchmarkAids = field(default_factory=BenchmarkAids)
    replay: SelectionReplay | None = None
    read_check: ReadCheck | None = None


runtime = Runtime()
