"""Rows of an index group's followers, fetched on a side stream under the compute between the leader and them.

    main   resolve (leader's rows, list of misses) | leader's attention and MLP | wait | follower's attention
    side                                           | followers' rows -----------+

Both streams are part of a captured decode graph. The list is shared by all groups: the next leader resolves after
this group's followers have waited.
"""

from __future__ import annotations

import torch

from sglang_hisparse.kernels import resolve as kernels
from sglang_hisparse.tier.layout import Group

SPLIT_ROWS = 24576
"""Misses of all requests of a step up to which the leader's rows come first and the followers' apart. With more, the
followers' rows take longer than the compute that could hide them, by more than one long read a miss saves
(docs/kernels.md)."""


class FollowerFetch:
    """One per tier on CUDA, for steps of up to `batch` requests that select up to `entries` entries each."""

    def __init__(self, batch: int, entries: int, device: torch.device, copy_rows: bool) -> None:
        self.batch = batch
        self.misses = kernels.MissList.create(batch, entries, device)
        self._copy_rows = copy_rows
        self._stream = torch.cuda.Stream(device)
        self._fetching: int | None = None

    @staticmethod
    def split_below(batch: int) -> int:
        """Misses of a request from which on all planes are fetched at once, when `batch` requests are resolved."""
        return max(1, SPLIT_ROWS // max(1, batch))

    def start(self, group: Group, batch: int) -> None:
        """Behind the leader's resolve on the current stream: fetch what it listed. Graph-safe."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            kernels.fetch_followers(group, self.misses, batch, copy_rows=self._copy_rows)
        self._fetching = group.index

    def wait(self, group: Group) -> None:
        """Before a follower reads: the current stream goes on once the group's rows are there. Graph-safe."""
        if self._fetching == group.index:
            torch.cuda.current_stream().wait_stream(self._stream)
            self._fetching = None
