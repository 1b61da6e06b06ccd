"""What the tier must know of a selector."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selector:
    """One family's facts.

    top_k: rows that one step of one request reads at most. groups: index groups, each a tuple of layers, leader
    first. prefill_reads_host: prefill takes spilled rows from the host itself; otherwise they are restored first.
    """

    name: str
    top_k: int
    groups: tuple[tuple[int, ...], ...]
    prefill_reads_host: bool


def index_groups(skips: list[bool]) -> tuple[tuple[int, ...], ...]:
    """Index groups from "layer reuses the selection before it" flags. ValueError where layer 0 reuses."""
    groups: list[list[int]] = []
    for layer, skip in enumerate(skips):
        if not skip:
            groups.append([layer])
        elif groups:
            groups[-1].append(layer)
        else:
            raise ValueError("layer 0 reuses a selection, but there is none before it")
    return tuple(tuple(group) for group in groups)
