"""How often pages were selected lately, so that the coldest may leave first.

The resolve kernel counts selections a page; every few steps the counts since the last reading arrive here. What was
counted before then weighs half. Scores are whole numbers, count << reading: the order of two pages does not depend on
rounding, and nothing has to be halved page by page.

A page that is written anew starts as hot as the hottest of the last reading: the newest positions are selected most,
and it had no chance to be counted yet. Equal scores leave the order by position as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

READINGS_KEPT = 32
"""Readings after which scores are scaled back. A count that is so old weighs 2 ** -32, and is dropped."""


class Heat:
    """Scores of logical pages. Written by `add` (a reading) and by `Residency` (pages that change their content)."""

    def __init__(self) -> None:
        self.readings = 0
        """counts up with every reading: an order that was made from scores holds until it changes"""
        self.clear()

    def clear(self) -> None:
        """Forget every page."""
        self._scores: dict[int, int] = {}
        self._shift = READINGS_KEPT
        self._hottest = 1
        self.readings += 1

    def add(self, counts: Mapping[int, int]) -> None:
        """A reading: logical page -> selections since the last one. Pages without any may be left out. O(counts)."""
        self.readings += 1
        self._shift += 1
        if self._shift == 2 * READINGS_KEPT:
            scaled = ((page, score >> READINGS_KEPT) for page, score in self._scores.items())
            self._scores = {page: score for page, score in scaled if score}
            self._shift = READINGS_KEPT
        for page, count in counts.items():
            if count > 0:
                self._scores[page] = self._scores.get(page, 0) + (count << self._shift)
        self._hottest = max(1, max(counts.values(), default=1))

    def written(self, page: int) -> None:
        """`page` gets other content: what was counted for it says nothing any more."""
        self._scores[page] = self._hottest << self._shift

    def forget(self, page: int) -> None:
        """Nobody owns `page` any more."""
        self._scores.pop(page, None)

    def of(self, page: int) -> int:
        """Score of `page`: compare it with others, it has no unit."""
        return self._scores.get(page, 0)
