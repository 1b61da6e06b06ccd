"""Small planners for cases whose answer fits in the head."""

from __future__ import annotations

from sglang_hisparse.policy import Planner, PlannerOptions, Request, Residency, State

HOT_MIN = 3


def planner_of(device: int, host: int, **options: float) -> Planner:
    """Watermarks at 1, so that only what a test asks for moves."""
    values = {
        "hot_min": HOT_MIN,
        "hot_max": 2 * HOT_MIN,
        "tables": 8,
        "low_watermark": 1.0,
        "high_watermark": 1.0,
    }
    return Planner(Residency(device + host, device, host), PlannerOptions(**(values | options)))  # type: ignore[arg-type]


def own(planner: Planner, pages: range) -> list[int]:
    """Pages that were allocated and written, and that nobody reads: the radix tree's."""
    for page in pages:
        planner.residency.allocate(page)
    planner.residency.forward_prepared()
    return list(pages)


def run(planner: Planner, row: int, pages: range | list[int], most: int = 99) -> Request:
    """A request that reads `pages`; those that are free are allocated and written."""
    residency = planner.residency
    for page in pages:
        if residency.state(page) is State.FREE:
            residency.allocate(page)
    request = Request(row, most)
    planner.open(request, pages)
    residency.forward_prepared()
    return request


def spilled(planner: Planner) -> list[int]:
    residency = planner.residency
    return [page for page in range(1, residency.logical_pages + 1) if residency.state(page) is State.SPILLED]


def spill(planner: Planner, pages: list[int]) -> None:
    """As make_room does it: readers lease what that costs."""
    planner._spill_pages(pages)
    planner.residency.check()
