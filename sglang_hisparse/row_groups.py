"""Which layers of an index group lie side by side in a host row: those whose rows are fetched together.

Planner and host tier use the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

MOST_LAYERS = 8
"""Of a row group: a kernel takes 16 planes at once, and a layer has up to two (K and V)."""


def row_groups(layers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """How an index group of `layers`, leader first, is stored: the leader, the next layer, the next two, four, ...

    The leader is waited for, so its rows lie as close together as can be: what a short read costs is mostly the first
    touch of the host memory around it (docs/kernels.md). What is behind the leader comes under compute: the first layer
    must not wait long, and long rows are the fastest to read.
    """
    yield tuple(layers[:1])
    first, size = 1, 1
    while first < len(layers):
        yield tuple(layers[first : first + size])
        first, size = first + size, min(2 * size, MOST_LAYERS)
