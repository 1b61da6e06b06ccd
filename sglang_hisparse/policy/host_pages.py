"""Free host pages, handed out so that the pages of one request lie close together.

What a short read over PCIe costs is mostly the first touch of the host memory around it, and a step of many requests
reads the spilled rows of one after the other (docs/kernels.md). So each owner fills a block of neighbouring pages
before it starts the next one, which is the emptiest.
"""

from __future__ import annotations

from collections.abc import Iterator

BLOCK = 64
"""Host pages of a block: megabytes of a group, so that an owner is in few places."""


class HostPages:
    """The free ones of `count` host pages, all at first. Deterministic; O(1) a page, on average over all calls."""

    def __init__(self, count: int) -> None:
        self._count = count
        sizes = [min(BLOCK, count - first) for first in range(0, count, BLOCK)]
        self._free = [(1 << size) - 1 for size in sizes]
        """block -> bit i: its page i is free"""
        self._with: list[dict[int, None]] = [{} for _ in range(BLOCK + 1)]
        """n -> blocks with n free pages"""
        self._most = BLOCK  # no block has more free pages
        for block, size in enumerate(sizes):
            self._with[size][block] = None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        """Free pages in ascending order."""
        for block, free in enumerate(self._free):
            yield from (block * BLOCK + bit for bit in range(BLOCK) if free >> bit & 1)

    def take(self, last: int) -> int:
        """A free page for who took `last` before (-1: none yet): the next one of that block, else of the block with
        most free pages, which is the one behind where that has as many. IndexError where none is free."""
        if not self._count:
            raise IndexError("no host page is free")
        block, bit = divmod(last, BLOCK)
        if last < 0 or not self._free[block]:
            block, bit = self._emptiest(block + 1), -1
        free = self._free[block]
        behind = free >> (bit + 1) << (bit + 1)
        lowest = (behind or free) & -(behind or free)
        self._change(block, free ^ lowest)
        self._count -= 1
        return block * BLOCK + lowest.bit_length() - 1

    def give(self, page: int) -> None:
        """`page` is free again."""
        block, bit = divmod(page, BLOCK)
        self._change(block, self._free[block] | 1 << bit)
        self._count += 1

    def _emptiest(self, wanted: int) -> int:
        """A block with most free pages: `wanted` where it is one."""
        while not self._with[self._most]:
            self._most -= 1
        blocks = self._with[self._most]
        return wanted if wanted in blocks else next(iter(blocks))

    def _change(self, block: int, free: int) -> None:
        del self._with[self._free[block].bit_count()][block]
        self._free[block] = free
        size = free.bit_count()
        self._with[size][block] = None
        self._most = max(self._most, size)
