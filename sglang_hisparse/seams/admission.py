"""Admission of new requests: stock's token budget, and the smallest footprints on the device beside it."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.prefill_budget import PrefillBudget

from sglang_hisparse.capacity import ceil_pages
from sglang_hisparse.config import PAGE
from sglang_hisparse.policy.admission import (
    chunk_reserve,
    decode_pages,
    hot_charge,
    prefill_pages,
    running_footprint,
)


class TieredPrefillBudget(PrefillBudget):
    """Budget of one scheduling pass. Queries change nothing but a count of deferrals."""

    def __init__(self, allocator: Any, tree_cache: Any, *, num_mixed_decode_tokens: int = 0) -> None:
        super().__init__(allocator, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens)
        self.tier = allocator.tier
        self.chunk_pages = allocator.lifecycle.chunk_pages
        self.hot_min = self.tier.capacity.hot_min_pages
        requests = self.tier.residency.requests.values()
        self.footprint = running_footprint(requests, self.hot_min)
        self.longest = [request.most_pages for request in requests]
        self._candidate = (0, 0)

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
        if not fits:
            return self._defer("tokens")
        prompt, most = ceil_pages(input_tokens), ceil_pages(input_tokens + max_new_tokens)
        device = max(
            decode_pages(most, self.hot_min), prefill_pages(prompt, self.tier.selector.prefill_reads_host)
        )
        charge = hot_charge([*self.longest, most], self.hot_min, self.tier.capacity.device_pages)
        chunk = chunk_reserve(self.chunk_pages or prompt, self.tier.selector.prefill_reads_host)
        if self.longest and self.footprint + device + chunk > self.tier.capacity.device_pages:
            return self._defer("device_footprint")
        if total_tokens + charge * PAGE > self.remaining_total:
            return self._defer("tokens_beside_hot_rows")
        self._candidate = (device, most)
        return fits, limit

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
            device, most = self._candidate
            self.footprint += device
            self.longest.append(most)
            self._candidate = (0, 0)
