"""Resolve and the rows behind it on a side stream: what is fetched, in which order, and who waits.

A leader's selection is resolved as soon as it is known, beside what is left to do before its attention; the layers
behind it get their rows one after the other, each under the compute of the layers before it:

    main   indexer | queries, new keys                   | wait | leader's attention | ... | wait | layer 1 ...
    side           | resolve (leader's rows, list) | rows of layer 1 | rows of layer 2 | rows of layer 3 |

Where many requests decode, the leader's rows come from the list as well, request after request:

    side           | resolve (list) | leader's rows | rows of layer 1 | rows of layer 2 ...

Both streams are part of a captured decode graph. The list is shared by all index groups: the next leader resolves
after this group's last layer has waited. On the CPU everything runs in program order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from sglang_hisparse.kernels import resolve as kernels
from sglang_hisparse.tier.layout import Group

SWEPT_REQUESTS = 48
"""Requests of a step from which on the leader's rows are swept. Resolve reads those of all requests at once, from all
over the host pool; but it starts to read before it knows where rows go, and fewer requests have several thread blocks
each (docs/kernels.md has both times)."""


class ListedFetch:
    """One per tier, for steps of up to `batch` requests that select up to `entries` entries each.

    `copy_rows` False: nothing is fetched (the oracle of benchmarks).
    """

    def __init__(self, batch: int, entries: int, device: torch.device, copy_rows: bool) -> None:
        self.batch = batch
        self.misses = kernels.MissList.create(batch, entries, device)
        self._copy_rows = copy_rows
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ready: dict[int, torch.cuda.Event] = {}  # layer -> its rows are there; while it has not waited

    @staticmethod
    def sweeps(batch: int) -> bool:
        """Whether the leader's rows are fetched from the list as well."""
        return batch >= SWEPT_REQUESTS

    @classmethod
    def lists(cls, groups: Sequence[Group], batch: int) -> bool:
        """Whether resolve lists what `batch` requests miss in an index group, and `start` fetches some of it."""
        return len(groups) > 1 or cls.sweeps(batch)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """The side stream, behind what was issued on the current one. Graph-safe on CUDA, nothing on the CPU."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def start(self, groups: Sequence[Group], batch: int) -> None:
        """Right behind the leader's resolve on the side stream: fetch what it listed. Graph-safe on CUDA.

        groups  those of one index group, the leader's first
        batch   requests of the step, at most `self.batch`
        """
        leader, *behind = groups
        if self._copy_rows and self.sweeps(batch):
            kernels.fetch_listed(leader, self.misses, batch, follows_resolve=True)
        self._there(leader)
        for group in behind if self._copy_rows else ():
            kernels.fetch_listed(group, self.misses, batch)
            self._there(group)

    def _there(self, group: Group) -> None:
        if self._stream is not None:
            ready = torch.cuda.Event()
            ready.record(self._stream)
            self._ready.update(dict.fromkeys(group.layers, ready))

    def wait(self, layer: int) -> None:
        """Before `layer` reads: the current stream goes on once its rows are there. Graph-safe."""
        ready = self._ready.pop(layer, None)
        if ready is not None:
            torch.cuda.current_stream().wait_event(ready)
