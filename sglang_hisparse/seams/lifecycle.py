"""Which request holds which pages, followed on the CPU.

SGLang's request pool lets one side cache follow its rows (`attach_aux_cache`): it is told after every allocation and
when a row is freed. Pages come from the allocator, in batch order. The radix tree may rewrite a row to pages that it
holds already; it frees the duplicates, which marks the request stale, and its row is read back before its next use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.runtime_context import get_schedule

from sglang_hisparse.capacity import ceil_pages
from sglang_hisparse.policy import Request
from sglang_hisparse.policy.admission import longest_prefill, prefill_pages
from sglang_hisparse.seams.cached_tokens import remember_hit
from sglang_hisparse.seams.runtime import runtime
from sglang_hisparse.tier.host_tier import HostTier
from sglang_hisparse.tier.layout import PAGE


class RequestLifecycle:
    """The side cache of one ReqToTokenPool. Runs on the scheduler's thread and stream."""

    def __init__(self, tier: HostTier, req_to_token_pool: Any, chunk_tokens: int | None) -> None:
        self.tier, self.pool = tier, req_to_token_pool
        self.chunk_pages = ceil_pages(chunk_tokens) if chunk_tokens else None
        self.longest_prefill = longest_prefill_of(tier)
        self.interleaves = (get_schedule().prefill_decode_interval or 0) > 0
        """decode steps may come between two chunks of a prompt"""
        self.clear()

    # -- interface of SGLang's side cache --------------------------------------------------------------------

    @property
    def dense_capacity(self) -> int:
        """Tokens that requests may hold together."""
        return self.tier.capacity.logical_tokens

    def alloc_to_lengths(
        self, *, req_pool_indices_cpu: torch.Tensor, target_seq_lens_cpu: torch.Tensor
    ) -> None:
        """Rows got slots up to these lengths: give them the pages that the allocator just handed out, in order."""
        planner, residency = self.tier.planner, self.tier.residency
        if not (self._taken or self._opening or residency.may_be_stale):
            return  # every request stays within its page: what nearly every decode step consists of
        for row, length in zip(req_pool_indices_cpu.tolist(), target_seq_lens_cpu.tolist(), strict=True):
            request = residency.requests.get(row)
            if request is None:
                request = self._opening.popleft()
                planner.rename(request, row)
            count = (length + PAGE - 1) // PAGE - (request.length + PAGE - 1) // PAGE
            request.length = length
            if count == 0 and not request.stale:
                continue
            pages = [self._taken.popleft() for _ in range(count)]
            if request.stale:
                planner.reread(request, self._row_pages(request))
            else:
                residency.attach(request, pages)
        if self._taken or self._opening:
            raise RuntimeError(
                f"HiSparse: {len(self._taken)} allocated pages and {len(self._opening)} requests found no row; the "
                "allocation of this SGLang release works differently from the one the seams were made for"
            )

    def free(self, row: int) -> None:
        """The request gave its row back."""
        self.tier.planner.close(row)

    def clear(self) -> None:
        self._taken: deque[int] = deque()
        self._opening: deque[Request] = deque()

    reset_allocator = clear

    # -- from the allocator and the scheduler hooks ----------------------------------------------------------

    def allocated(self, pages: list[int]) -> None:
        """The allocator handed out `pages`."""
        self._taken.extend(pages)

    def opening(self, request: Request, pages: list[int]) -> None:
        """A request is about to get a row; it reads `pages` already."""
        self.tier.planner.open(request, pages)
        self._opening.append(request)

    def refresh(self) -> None:
        """Read back the rows that the radix tree rewrote."""
        residency = self.tier.residency
        if not residency.may_be_stale:
            return
        for request in residency.requests.values():
            if request.stale:
                self.tier.planner.reread(request, self._row_pages(request))
        residency.may_be_stale = False

    def _row_pages(self, request: Request) -> list[int]:
        row = self.pool.req_to_token[request.row, : request.length : PAGE]
        return (row // PAGE).tolist()


def longest_prefill_of(tier: HostTier) -> int | None:
    """Pages of the longest prompt; None where every logical length works."""
    capacity, chunked = tier.capacity, (get_schedule().chunked_prefill_size or 0) > 0
    if capacity.host_pages == 0:
        return None
    return longest_prefill(
        capacity.device_pages, capacity.hot_min_pages, tier.selector.prefill_reads_host, chunked
    )


def allocate_extend(original: Callable[..., Any], batch: Any) -> Any:
    """Around SGLang's allocation for a prefill batch: open new requests with their prefix, bring the prefix back to
    HBM where prefill reads it there, then let stock allocate."""
    allocator = batch.tree_cache.token_to_kv_pool_allocator
    tier, lifecycle = runtime.tier, getattr(allocator, "lifecycle", None)
    if tier is None or lifecycle is None:
        return original(batch)
    lifecycle.refresh()
    requests = [_request_of(batch, req, tier, lifecycle, -1 - i) for i, req in enumerate(batch.reqs)]
    if not tier.selector.prefill_reads_host:
        _bring_back(tier, allocator, requests)
    return original(batch)


def _request_of(batch: Any, req: Any, tier: HostTier, lifecycle: RequestLifecycle, key: int) -> Request:
    if req.kv.holds_kv:
        request = tier.request_of(req.kv.req_pool_idx)
        assert request is not None, f"request {req.rid} holds row {req.kv.req_pool_idx}, but was never opened"
        return request
    prompt = ceil_pages(len(req.full_untruncated_fill_ids))
    longest = len(req.origin_input_ids) + req.sampling_params.max_new_tokens
    request = Request(
        row=key,
        most_pages=max(ceil_pages(longest), prompt),
        prompt_pages=prompt,
        prefill_pages=prefill_pages(prompt, tier.selector.prefill_reads_host),
        length=req.prefix_len,
    )
    pages: list[int] = []
    if req.prefix_len:
        pages = (batch.tree_cache.prefix_device_indices(req)[::PAGE] // PAGE).tolist()
    remember_hit(req, tier, pages)
    lifecycle.opening(request, pages)
    return request


def _bring_back(tier: HostTier, allocator: Any, requests: list[Request]) -> None:
    """Every page of `requests` to HBM: by spilling others, then by evicting what nobody reads, then by taking hot
    rows, which a prefill does not read. `Room.borrow_room` says why that is always enough."""
    planner, residency = tier.planner, tier.residency
    if planner.restore_all(requests):
        return
    gone = planner.hold(requests)
    allocator.ensure_device(
        len(gone)
    )  # also where that many cannot be had: what was evicted may be enough, in turns
    if planner.restore_all(requests, borrow=True):
        return
    raise RuntimeError(
        f"HiSparse: {len(gone)} spilled prefix pages cannot be brought back for prefill: "
        f"{len(residency.free_device)} of {residency.device_pages} device pages are free. This is a bug in "
        "admission; please report it"
    )
