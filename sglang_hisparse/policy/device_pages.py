"""Free device pages, the lowest first: what is freed piece by piece comes back in order.

A prompt's pages are then mostly neighbours in HBM, as they are on the host (host_pages.py), and neighbours in both
tiers are one page copy (docs/kernels.md).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence


class DevicePages:
    """The free ones of pages 1 .. `count`, all at first (0 is padding). Deterministic; O(log count) a page."""

    def __init__(self, count: int) -> None:
        self._free = list(range(1, count + 1))
        """heap of keys; a page is its own key until somebody shuffles"""
        self._page: Sequence[int] = range(count + 1)
        self._key: Sequence[int] = self._page

    def __len__(self) -> int:
        return len(self._free)

    def __iter__(self) -> Iterator[int]:
        return (self._page[key] for key in self._free)

    def take(self) -> int:
        """The lowest free page. IndexError where none is free."""
        return self._page[heapq.heappop(self._free)]

    def give(self, page: int) -> None:
        """`page` is free again."""
        heapq.heappush(self._free, self._key[page])

    def shuffle(self, seed: int) -> None:
        """For tests: from now on the pages that are free are handed out in another order."""
        page, pages = list(self._page), list(self)
        random.Random(seed).shuffle(pages)
        for key, shuffled in zip(self._free, pages, strict=True):
            page[key] = shuffled
        key_of = [0] * len(page)
        for key, shuffled in enumerate(page):
            key_of[shuffled] = key
        self._page, self._key = page, key_of
