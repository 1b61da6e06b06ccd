"""Requests as the policy sees them: which logical pages they read, in order of position."""

from __future__ import annotations

from dataclasses import dataclass, field

from sglang_hisparse.config import OPEN_PAGES


@dataclass(slots=True)
class Lease:
    """Device pages of the ordinary pool that cache spilled rows of one request."""

    table: int
    pages: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Request:
    """One request that holds KV.

    `row` is its row of SGLang's req_to_token table; `pages[i]` holds positions 64*i to 64*i+63; `length` counts the
    tokens that had a slot when the last page was added, or more.
    `most_pages`: pages at its longest; `prompt_pages`: of its prompt; `prefill_pages`: device pages that it needs at
    once while the prompt is prefilled.
    `spilled` counts its pages without a device page, `private` its pages with a device page that nobody else
    reads, `fresh` those of `private` that the forward being prepared writes for the first time.
    `order` holds indices of `pages` in the order in which they leave the device, as of reading `sorted_at` of the
    heat; empty while they leave by position. Its first page (the attention sink) leaves last and is not in it. The
    first `looked_at` places of the order were looked at by cleaning ahead; the first `gone` ones have no device page.
    """

    row: int
    most_pages: int
    prompt_pages: int = 0
    prefill_pages: int = 0
    length: int = 0
    pages: list[int] = field(default_factory=list)
    spilled: int = 0
    private: int = 0
    fresh: int = 0
    order: list[int] = field(default_factory=list)
    sorted_at: int = -1
    looked_at: int = 0
    gone: int = 0
    last_host: int = -1
    """host page that was taken last for a page of it"""
    lease: Lease | None = None
    stale: bool = False
    """its row was rewritten by the radix tree: `pages` must be read again before use"""

    def place(self, n: int) -> int:
        """Index of the page that leaves as the n-th. Pages that came after the order was made are the newest."""
        return self.order[n] if n < len(self.order) else n + 1

    def movable(self) -> int:
        """Pages that may leave the device and that only this request reads (a lower bound; O(1))."""
        return max(0, self.private - max(OPEN_PAGES, self.fresh + 1))

    def in_prefill(self) -> bool:
        """True until every page of the prompt is allocated."""
        return len(self.pages) < self.prompt_pages

    def hot_pages(self) -> int:
        """Device pages leased for hot rows."""
        return len(self.lease.pages) if self.lease else 0
