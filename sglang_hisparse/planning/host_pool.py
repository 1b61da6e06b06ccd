"""The smallest useful host pool: from there on, more host memory lets no further request run.

Every host page needs its index keys in HBM, so a larger host pool leaves fewer device pages. Of the two bounds on
requests the one by footprints in HBM falls with the host pool and the one by bytes rises; the most requests run where
they cross.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sglang_hisparse.capacity import GIB, Capacity, ceil_pages, request_bounds
from sglang_hisparse.config import PAGE

Size = Callable[[float], Capacity | None]
"""host_pool_gib -> what the server would size, or None where it would refuse: HBM is too small for it."""


def pool_gib(pages: int, host_bytes: float) -> float:
    """A host_pool_gib with four decimals that holds `pages`; `host_bytes` is one token's row."""
    return math.ceil(pages * PAGE * host_bytes / GIB * 1e4) / 1e4


def smallest_pool(size: Size, without: Capacity, slots: int) -> tuple[float, int]:
    """(smallest host_pool_gib that lets the most requests run, how many). (0, resident ones) where none helps.

    `without`: the sizing without a host pool. `slots`: most requests that run at once.
    """
    context, hot_min, host_bytes = without.context_length, without.hot_min_pages, without.token_bytes.host
    resident = min(slots, without.resident_requests)

    def at(pages: int) -> Capacity | None:
        return size((pages + 0.5) * PAGE * host_bytes / GIB)

    def bounds(pages: int) -> tuple[int, int] | None:
        sized = at(pages)
        if sized is None:
            return None
        return request_bounds(sized.device_pages, sized.host_pages, hot_min, context, sized.beside_pages)

    def crossed(pages: int) -> bool:
        found = bounds(pages)
        return found is None or found[0] <= found[1]

    def requests(pages: int) -> int:
        found = bounds(pages) if pages > hot_min else None
        return min(slots, *found) if found else 0

    enough = hot_min + 1 + slots * (ceil_pages(context) + hot_min)
    cross = first(crossed, hot_min + 1, enough)
    most = max(requests(cross), requests(cross - 1))
    if most <= resident:
        return 0.0, resident
    start = cross if requests(cross - 1) < most else cross - 1
    pages = first(lambda count: requests(count) >= most, hot_min + 1, start)
    return pool_gib(pages, host_bytes), most


def first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest number from `low` to `high` for which `holds`; once true it stays true. `high` if none does."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
