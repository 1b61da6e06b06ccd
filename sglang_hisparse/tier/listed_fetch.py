"""Rows that resolve lists and leaves to other launches: when, in which order, and on which stream.

The layers behind a leader get theirs on a side stream, each under the compute of the layer before it:

    main   resolve (leader's rows, list) | leader's layer | wait | layer 1 | wait | layer 2 | layer 3
    side                                 | rows of layer 1 | rows of layers 2 and 3 |

First one layer, then twice as many each time: the first must not wait long, and long reads are the fastest.

Where many requests read a large host pool, the leader's rows come from the list as well, request after request:

    main   resolve (list) | leader's rows | leader's layer | wait | layer 1 ...
    side                                  | rows of layer 1 | rows of layers 2 and 3 ...

Both streams are part of a captured decode graph. The list is shared by all groups: the next leader resolves after
this group's last layer has waited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from sglang_hisparse.kernels import resolve as kernels
from sglang_hisparse.tier.layout import Group

SWEPT_REQUESTS = 32
"""Requests of a step from which on the leader's rows may be swept. Fewer have several thread blocks each, and resolve
starts to read before it knows where the rows go."""

REACH_BYTES = 3 << 29
"""Host bytes of a group from which on the order of reads matters: short rows that span up to 1.5 GiB are read at the
speed of the link whatever their order (docs/kernels.md)."""


def worth_sweeping(host_bytes: int, requests: int) -> bool:
    """Whether a leader's rows are fetched by a launch of their own, behind resolve, request after request."""
    return requests >= SWEPT_REQUESTS and host_bytes > REACH_BYTES


def in_growing_parts(layers: Sequence[int]) -> Iterator[Sequence[int]]:
    """One layer, the next two, the next four, ..."""
    first, size = 0, 1
    while first < len(layers):
        yield layers[first : first + size]
        first, size = first + size, 2 * size


class ListedFetch:
    """One per tier on CUDA, for steps of up to `batch` requests that select up to `entries` entries each.

    `copy_rows` False: nothing is fetched (the oracle of benchmarks).
    """

    def __init__(self, batch: int, entries: int, device: torch.device, copy_rows: bool) -> None:
        self.batch = batch
        self.misses = kernels.MissList.create(batch, entries, device)
        self._copy_rows = copy_rows
        self._stream = torch.cuda.Stream(device)
        self._ready: dict[int, torch.cuda.Event] = {}  # layer -> its rows are there; while it has not waited

    def sweeps(self, group: Group, batch: int) -> bool:
        """Whether the rows of the group's leader are fetched from the list as well."""
        return batch <= self.batch and worth_sweeping(group.host.nbytes, batch)

    def lists(self, group: Group, batch: int) -> bool:
        """Whether resolve lists what `batch` requests miss, and `start` fetches it or a part of it."""
        return batch <= self.batch and (len(group.layers) > 1 or self.sweeps(group, batch))

    def planes(self, group: Group, batch: int) -> int:
        """How many planes resolve itself fetches where it lists."""
        return 0 if self.sweeps(group, batch) else group.leader_planes

    def start(self, group: Group, batch: int) -> None:
        """Right behind the leader's resolve on the current stream: fetch what it listed. Graph-safe."""
        if not self._copy_rows:
            return
        leader, *behind = group.layers
        if self.sweeps(group, batch):
            kernels.fetch_listed(group, self.misses, batch, *group.planes_of(leader), follows_resolve=True)
        if not behind:
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for layers in in_growing_parts(behind):
                first, last = group.planes_of(layers[0])[0], group.planes_of(layers[-1])[1]
                kernels.fetch_listed(group, self.misses, batch, first, last)
                ready = torch.cuda.Event()
                ready.record()
                self._ready.update(dict.fromkeys(layers, ready))

    def wait(self, layer: int) -> None:
        """Before `layer` reads: the current stream goes on once its rows are there. Graph-safe."""
        ready = self._ready.pop(layer, None)
        if ready is not None:
            torch.cuda.current_stream().wait_event(ready)
