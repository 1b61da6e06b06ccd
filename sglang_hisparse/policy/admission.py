"""Who may start: every admitted request must be able to go on with all others at their smallest footprint.

    smallest footprint of a request that decodes min(its pages, hot_min + open pages + the one it starts next)
    of one in prefill                           at least what its prefill needs in HBM at once
    beside them, once                           the chunk that a forward writes, where prefill reads the host

A new request waits while the footprints would not fit the device pool together. Pure arithmetic, in pages.
"""

from __future__ import annotations

from collections.abc import Iterable

from sglang_hisparse.config import OPEN_PAGES
from sglang_hisparse.policy.requests import Request

DEFERRALS = {
    "tokens": "SGLang's own budget: logical pages that are free or evictable",
    "tokens_beside_hot_rows": "logical pages beside the hot rows that all requests together make necessary",
    "device_footprint": "the smallest footprints on the device",
    "unretractable": "logical pages for requests that could not be retracted, at their longest",
    "waiting_chunk": "logical pages for the next chunk of a prompt, which goes first",
}
"""Why a waiting request may have to wait on: what was short. Counted once a scheduling pass."""


def decode_pages(most_pages: int, hot_min: int) -> int:
    """Device pages without which a decoding request cannot take its next step."""
    return min(most_pages, hot_min + OPEN_PAGES + 1)


def prefill_pages(prompt_pages: int, reads_host: bool) -> int:
    """Device pages that one prefill needs at once beyond decoding: the whole prompt where it reads HBM only.
    Where it reads the host it needs none of its own: see `chunk_reserve`."""
    return 0 if reads_host else prompt_pages


def chunk_reserve(chunk_pages: int, reads_host: bool) -> int:
    """Device pages for what one forward writes, counted once for all requests together: a scheduling pass
    prefills at most one chunk. Part of `prefill_pages` where prefill reads HBM only."""
    return chunk_pages if reads_host else 0


def footprint(request: Request, hot_min: int) -> int:
    """Device pages that `request` needs at the least."""
    decode = decode_pages(request.most_pages, hot_min)
    return max(decode, request.prefill_pages) if request.in_prefill() else decode


def running_footprint(requests: Iterable[Request], hot_min: int) -> int:
    """Device pages that the requests holding KV need at the least, together."""
    return sum(footprint(request, hot_min) for request in requests)


def hot_charge(most_pages: Iterable[int], hot_min: int, device_pages: int) -> int:
    """Device pages that hot rows take from what both tiers hold together: none while all requests fit HBM,
    else the least hot rows of each, less the one share that the logical size leaves out already."""
    pages = list(most_pages)
    if sum(pages) <= device_pages:
        return 0
    return max(0, sum(min(hot_min, p) for p in pages) - hot_min)


def longest_prefill(device_pages: int, hot_min: int, reads_host: bool, chunked: bool) -> int | None:
    """Pages of the longest sequence that prefill could compute; None: every logical length. Where prefill reads HBM
    only, the device has to hold it; where it writes a prompt in one forward, beside the hot and open pages."""
    if not reads_host:
        return device_pages
    return None if chunked else device_pages - hot_min - OPEN_PAGES


def can_finish(
    requests: Iterable[tuple[int, int]], longest: int | None, hot_min: int, logical_pages: int
) -> bool:
    """Whether what SGLang cannot retract fits at its longest: `requests` as (pages at its longest, pages of its prompt
    where decode steps come between its chunks, else 0).

    A request that came to be longer than `longest`, what prefill can compute, could not come back: retraction
    begins with the others. A prompt under way is not retracted, nor is the last request that decodes beside it.
    """
    kept: list[int] = []
    others: list[int] = []
    prefilling = last_is_kept = False
    for most, prompt in requests:
        outgrows = longest is not None and most > longest
        if outgrows or prompt:
            kept.append(most if outgrows else prompt)
        else:
            others.append(most)
        prefilling |= prompt > 0
        last_is_kept |= outgrows and prompt == 0
    if prefilling and not last_is_kept:
        kept += sorted(others)[-1:]
    hot = sum(min(hot_min, pages) for pages in kept) - hot_min
    return len(kept) <= 1 or sum(kept) + hot <= logical_pages
