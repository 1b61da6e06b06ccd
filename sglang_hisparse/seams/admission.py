"""Admission of new requests: stock's token budget, and the smallest footprints on the device beside it."""

from __future__ import annotations

from typing import Any, NamedTuple

from sglang.srt.mem_cache.prefill_budget import PrefillBudget

from sglang_hisparse.capacity import ceil_pages
from sglang_hisparse.config import PAGE
from sglang_hisparse.policy.admission import (
    can_finish,
    chunk_reserve,
    decode_pages,
    hot_charge,
    prefill_pages,
    running_footprint,
)


class Admitted(NamedTuple):
    """The request that `check_prefill` said yes to, in pages: its smallest footprint on the device, its length with
    the output that stock reckons with (4,096 tokens at most) and with all that it may give, and its prompt where
    decode steps come between its chunks."""

    device: int
    reckoned: int
    longest: int
    between: int


NOBODY = Admitted(0, 0, 0, 0)


class TieredPrefillBudget(PrefillBudget):
    """Budget of one scheduling pass. Queries change nothing but a count of deferrals."""

    def __init__(self, allocator: Any, tree_cache: Any, *, num_mixed_decode_tokens: int = 0) -> None:
        super().__init__(allocator, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens)
        self.tier = allocator.tier
        self.chunk_pages = allocator.lifecycle.chunk_pages
        self.hot_min = self.tier.capacity.hot_min_pages
        self.longest_prefill = allocator.lifecycle.longest_prefill
        requests = self.tier.residency.requests.values()
        self.footprint = running_footprint(requests, self.hot_min)
        self.longest = [request.most_pages for request in requests]
        self.interleaves = allocator.lifecycle.interleaves
        self.unretractable = [
            (r.most_pages, r.prompt_pages if r.in_prefill() and self.interleaves else 0) for r in requests
        ]
        self._candidate = NOBODY
        self._chunk_waits = False
        self._most_new = 0

    def check_prefill(
        self,
        *,
        extend_input_len: int,
        total_tokens: int,
        max_new_tokens: int,
        input_tokens: int,
        swa_host_hit_length: int,
        chunk_limit: int | None,
        auxiliary_swa_host_hit_length: int = 0,
    ) -> tuple[bool, int | None]:
        """Stock's answer, and no unless the request fits beside the smallest footprints of all others."""
        fits, limit = super().check_prefill(
            extend_input_len=extend_input_len,
            total_tokens=total_tokens,
            max_new_tokens=max_new_tokens,
            input_tokens=input_tokens,
            swa_host_hit_length=swa_host_hit_length,
            chunk_limit=chunk_limit,
            auxiliary_swa_host_hit_length=auxiliary_swa_host_hit_length,
        )
        at_most, self._most_new = ceil_pages(input_tokens + max(max_new_tokens, self._most_new)), 0
        if self._chunk_waits:
            return self._defer("waiting_chunk")
        capacity, reads_host = self.tier.capacity, self.tier.selector.prefill_reads_host
        prompt, most = ceil_pages(input_tokens), ceil_pages(input_tokens + max_new_tokens)
        device = max(decode_pages(most, self.hot_min), prefill_pages(prompt, reads_host))
        chunked = chunk_limit is not None and extend_input_len > chunk_limit
        between = prompt if chunked and self.interleaves else 0
        if not self.longest and self._fits_alone(at_most, input_tokens - extend_input_len):
            self._candidate = Admitted(device, most, at_most, between)
            return True, chunk_limit
        if not fits:
            return self._defer("tokens")
        longest = [*self.longest, most]
        charge = hot_charge(longest, self.hot_min, capacity.device_pages)
        chunk = chunk_reserve(self.chunk_pages or prompt, reads_host)
        if self.longest and self.footprint + device + chunk > capacity.device_pages:
            return self._defer("device_footprint")
        if total_tokens + charge * PAGE > self.remaining_total:
            return self._defer("tokens_beside_hot_rows")
        kept = [*self.unretractable, (at_most, between)]
        if not can_finish(kept, self.longest_prefill, self.hot_min, capacity.logical_pages):
            return self._defer("unretractable")
        self._candidate = Admitted(device, most, at_most, between)
        return fits, limit

    def about(self, req: Any) -> None:
        """The next `check_prefill` is about `req`, and not only about the output that stock reckons with."""
        self._most_new = max(req.sampling_params.max_new_tokens - len(req.output_ids), 0)

    def can_allocate_prefill(
        self, *, paged_input: int, extend_input_len: int, max_new_tokens: int, chunk_limit: int | None
    ) -> bool:
        """What stock asks instead of `check_prefill` without a prefix cache, where the output's length is known."""
        fits: bool = super().can_allocate_prefill(
            paged_input=paged_input,
            extend_input_len=extend_input_len,
            max_new_tokens=max_new_tokens,
            chunk_limit=chunk_limit,
        )
        return (
            fits
            and self.check_prefill(
                extend_input_len=extend_input_len,
                total_tokens=extend_input_len + max_new_tokens + PAGE,
                max_new_tokens=max_new_tokens,
                input_tokens=extend_input_len,
                swa_host_hit_length=0,
                chunk_limit=chunk_limit,
            )[0]
        )

    def _fits_alone(self, most: int, prefix_tokens: int) -> bool:
        """Whether a request of `most` pages at its longest fits while no other holds KV. To the page: stock keeps a
        page more, and would leave a request that takes all there is waiting for ever."""
        return most * PAGE - prefix_tokens <= self._available_and_evictable()

    def available_chunk_tokens(self, chunk_limit: int) -> int | None:
        """Stock's answer for the chunk of a prompt that is under way, but no more than what can be had: running
        requests that decode between two chunks may have taken more than was reckoned with. None where not a page is
        left: then the chunk waits, and nobody is admitted before it, until they end or are retracted."""
        limit: int | None = super().available_chunk_tokens(chunk_limit)
        there = self._available_and_evictable()
        if limit is not None and there < limit:
            limit = there if there >= PAGE else None
        self._chunk_waits = limit is None
        return limit

    def _defer(self, reason: str) -> tuple[bool, None]:
        self.tier.deferred[reason] = self.tier.deferred.get(reason, 0) + 1
        return False, None

    def reserve(
        self,
        extend_input_len: int,
        max_new_tokens: int,
        *,
        extra_tokens: int = 0,
        chunk_limit: int | None = None,
        is_chunked_continuation: bool = False,
    ) -> None:
        """A request is admitted: charge it in tokens as stock does, and its footprint."""
        super().reserve(
            extend_input_len,
            max_new_tokens,
            extra_tokens=extra_tokens,
            chunk_limit=chunk_limit,
            is_chunked_continuation=is_chunked_continuation,
        )
        if not is_chunked_continuation:
            admitted = self._candidate
            self.footprint += admitted.device
            self.longest.append(admitted.reckoned)
            self.unretractable.append((admitted.longest, admitted.between))
            self._candidate = NOBODY


def prefill_candidate(adder: Any, req: Any, **kwargs: Any) -> None:
    """Tell our budget which request the question is about."""
    if isinstance(adder.memory_budget, TieredPrefillBudget):
        adder.memory_budget.about(req)
