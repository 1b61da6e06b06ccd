"""The allocator: SGLang gets logical pages, each backed by a device page when it is handed out.

Stock keeps its free list on the device. A mirror of it on the CPU, changed in the same order, tells which pages an
allocation took without a synchronisation. Freed page ids are read back (one small copy on the scheduler's stream).

Order under pressure: spill, then evict from the radix tree, then (by SGLang) retract.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.runtime_context import get_memory
from sglang.srt.utils import get_num_new_pages

from sglang_hisparse.config import PAGE
from sglang_hisparse.seams.admission import TieredPrefillBudget
from sglang_hisparse.seams.lifecycle import RequestLifecycle
from sglang_hisparse.seams.runtime import runtime
from sglang_hisparse.tier.host_tier import HostTier


class TieredPageAllocator(PagedTokenToKVPoolAllocator):
    """Logical pages for SGLang. `attach_tier` must run before the first allocation."""

    tier: HostTier | None = None
    lifecycle: RequestLifecycle | None = None

    def attach_tier(self, tier: HostTier, lifecycle: RequestLifecycle) -> None:
        self.tier, self.lifecycle = tier, lifecycle
        self._tree: Any = None

    def clear(self) -> None:
        super().clear()
        self._mirror = deque(range(1, self.num_pages + 1))
        if self.tier is not None and self.lifecycle is not None:
            self.tier.planner.clear()
            self.lifecycle.clear()

    def available_size(self) -> int:
        return len(self._mirror) * PAGE  # asked several times a step; the length of a tensor takes longer

    # -- taking and giving back ------------------------------------------------------------------------------

    def _took(self, count: int) -> None:
        assert self.tier is not None and self.lifecycle is not None
        pages = [self._mirror.popleft() for _ in range(count)]
        for page in pages:
            self.tier.residency.allocate(page)
        self.lifecycle.allocated(pages)

    def alloc(self, need_size: int) -> torch.Tensor | None:
        if not self.ensure_device(need_size // PAGE):
            return None
        out = super().alloc(need_size)
        if out is not None:
            self._took(need_size // PAGE)
        return out

    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        num_new_pages: int | None = None,
    ) -> torch.Tensor | None:
        if num_new_pages is None:
            num_new_pages = get_num_new_pages(
                seq_lens=seq_lens_cpu, page_size=PAGE, prefix_lens=prefix_lens_cpu
            )
        if not self.ensure_device(num_new_pages) and not self._borrow(num_new_pages):
            return None
        out = super().alloc_extend(
            prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens, num_new_pages
        )
        if out is not None:
            self._took(num_new_pages)
        return out

    def _borrow(self, pages: int) -> bool:
        assert self.tier is not None
        return self.tier.planner.borrow_room(pages)

    def alloc_decode(
        self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor | None:
        assert self.tier is not None
        if len(self.tier.residency.free_device) < seq_lens_cpu.numel() and not self.ensure_device(
            sum(length % PAGE == 1 for length in seq_lens_cpu.tolist())
        ):
            return None
        before = self.free_pages.numel() + self.num_staged_pages
        out = super().alloc_decode(seq_lens, seq_lens_cpu, last_loc)
        count = before - self.free_pages.numel() - self.num_staged_pages
        if count:
            self._took(count)
        return out

    def _release_page_ids(self, *page_ids: torch.Tensor) -> None:
        assert self.tier is not None
        super()._release_page_ids(*page_ids)
        pages = torch.cat(page_ids).tolist()
        self._mirror.extendleft(reversed(pages))
        for page in pages:
            self.tier.residency.release(page)

    # -- capacity hooks of the scheduler ---------------------------------------------------------------------

    def create_prefill_budget(
        self, tree_cache: Any, *, num_mixed_decode_tokens: int = 0
    ) -> TieredPrefillBudget:
        self._tree = tree_cache
        return TieredPrefillBudget(self, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens)

    def max_new_tokens_for_memory(
        self,
        input_tokens: int,
        max_new_tokens: int,
        *,
        token_capacity: int,
        sliding_window_size: int | None,
        chunk_size: int | None,
    ) -> int | None:
        """Output tokens for which the logical space is large enough. Stock keeps a page more: see
        `TieredPrefillBudget._fits_alone`, which admits to the page. Without a prefix cache stock's way to admit
        needs that page."""
        if get_memory().disable_radix_cache:
            return super().max_new_tokens_for_memory(
                input_tokens,
                max_new_tokens,
                token_capacity=token_capacity,
                sliding_window_size=sliding_window_size,
                chunk_size=chunk_size,
            )
        return max(0, min(max_new_tokens, token_capacity - input_tokens - 1))

    def ensure_device(self, pages: int) -> bool:
        """Free `pages` device pages: spill first, then evict from the radix tree. False where that cannot be."""
        assert self.tier is not None
        planner, residency = self.tier.planner, self.tier.residency
        if pages <= len(residency.free_device):
            return True
        while not planner.make_room(pages):
            if (
                self._tree is None
                or not self._tree.supports_prefix_sharing()
                or not self._tree.evictable_size()
            ):
                return False
            missing = pages - len(residency.free_device)
            before = self.available_size()
            self._tree.evict(EvictParams(num_tokens=missing * PAGE))
            if self.available_size() == before:
                return False
        return True

    def evict_to_free_tokens(self, tree_cache: Any, num_tokens: int) -> bool | None:
        """Make `num_tokens` logical slots available, as stock does; device pages follow when pages are taken."""
        self._tree = tree_cache
        if self.available_size() >= num_tokens:
            return None  # what stock answers too, only sooner
        return super().evict_to_free_tokens(tree_cache, num_tokens)

    def check_decode_capacity(
        self, *, num_tokens: int, tree_cache: Any, requests: Any = None, spec_algorithm: Any = None
    ) -> bool:
        """Whether the next decode step fits: new pages, and the hot rows of what is spilled."""
        assert self.tier is not None and self.lifecycle is not None
        planner, residency = self.tier.planner, self.tier.residency
        if residency.may_be_stale:
            self.lifecycle.refresh()
        self._tree = tree_cache
        if self.available_size() < num_tokens:
            self.evict_to_free_tokens(tree_cache, num_tokens)
            if self.available_size() < num_tokens:
                return False
        if residency.grown:
            decoding = (residency.requests.get(req.kv.req_pool_idx) for req in requests or ())
            for request in planner.lacking(decoding):
                short = planner.least_hot(request.spilled) - request.hot_pages()
                if not self.ensure_device(short) or not planner.prepare_decode(request):
                    return False
        pages = -(-num_tokens // PAGE)
        return pages <= len(residency.free_device) or self.ensure_device(pages)


def paged_allocator_class(original: Callable[..., Any], platform: Any) -> type | None:
    """Our allocator where the tier is on."""
    return TieredPageAllocator if runtime.capacity is not None else original(platform)
