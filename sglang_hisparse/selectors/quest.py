"""Quest on ordinary GQA models: bounds of every page's keys decide which pages a query reads.

For every complete page of `page_size` positions the elementwise minimum and maximum of its keys are kept. The
score of a page is an upper bound of q.k over its keys: sum over dimensions of max(q*min, q*max), added over the
query heads. The best pages and the newest positions are attended to; at or below `top_k` positions all are.

The recent window starts at a page boundary, so that no page is in it and among the selected ones:

    [0 ............ window) complete pages, candidates        [window .... length)  always read
    window = floor((length - recent) / page_size) * page_size
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_hisparse.config import PAGE
from sglang_hisparse.selectors.base import Selector


@dataclass(frozen=True, slots=True)
class QuestParameters:
    """Positions: `top_k` read a step at most, `recent` of them newest; selectable in pages of `page_size`."""

    top_k: int
    page_size: int
    recent: int

    def check(self) -> None:
        """ValueError where the window leaves no page to select, or does not align."""
        if self.top_k % self.page_size:
            raise ValueError(
                f"--hisparse-config: top_k {self.top_k} is not a multiple of page_size {self.page_size}"
            )
        if 3 * self.page_size > self.top_k:
            raise ValueError(
                f"--hisparse-config: top_k {self.top_k} is less than 3 pages of page_size {self.page_size}; a top_k "
                f"of {3 * self.page_size} or more works"
            )
        if self.recent + 2 * self.page_size > self.top_k:
            raise ValueError(
                f"--hisparse-config: recent_tokens {self.recent} and page_size {self.page_size} leave no page of "
                f"top_k {self.top_k} to select; recent_tokens up to {self.top_k - 2 * self.page_size} works"
            )


def quest_selector(parameters: QuestParameters, layers: int) -> Selector:
    """Every layer selects for itself; prefill is dense and takes spilled rows from the host."""
    groups = tuple((layer,) for layer in range(layers))
    return Selector("quest", parameters.top_k, groups, prefill_reads_host=True)


class QuestBounds:
    """Minimum and maximum of the keys of every logical Quest page. Owned and written by the KV pool.

    `low`, `high`: [layers, logical pages * 64 / page_size, kv_heads, head_dim], the KV dtype. Not graph-safe.
    """

    def __init__(
        self,
        layers: int,
        logical_tokens: int,
        page_size: int,
        heads: int,
        dim: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        self.page_size = page_size
        shape = (layers, (logical_tokens + PAGE) // page_size, heads, dim)
        self.low = torch.zeros(shape, dtype=dtype, device=device)
        self.high = torch.zeros(shape, dtype=dtype, device=device)

    def update(self, layer: int, slots: torch.Tensor, keys: torch.Tensor) -> None:
        """Fold `keys` [n, kv_heads, head_dim], written at `slots` int64 [n], into the bounds. A page's first
        slot starts it anew: slots of one page are written in order, from its first."""
        pages = slots // self.page_size
        started = pages[slots % self.page_size == 0]
        low, high = self.low[layer], self.high[layer]
        low[started] = torch.inf
        high[started] = -torch.inf
        low.index_reduce_(0, pages, keys, "amin")
        high.index_reduce_(0, pages, keys, "amax")

    def select(
        self, layer: int, query: torch.Tensor, slots: torch.Tensor, parameters: QuestParameters
    ) -> torch.Tensor:
        """Positions that `query` [query heads, head_dim] of one request reads, ascending, int64.

        `slots` int64 [length]: the request's slot of every position.
        """
        length = slots.numel()
        if length <= parameters.top_k:
            return torch.arange(length, device=slots.device)
        size = parameters.page_size
        window = (length - parameters.recent) // size * size
        count = (parameters.top_k - (length - window)) // size
        quest_pages = slots[0:window:size] // size
        low, high = self.low[layer][quest_pages].float(), self.high[layer][quest_pages].float()
        heads = low.shape[1]
        grouped = query.float().view(heads, -1, query.shape[-1])
        positive, negative = grouped.clamp(min=0).sum(1), grouped.clamp(max=0).sum(1)
        score = (positive * high + negative * low).sum((1, 2))
        best = torch.topk(score, count).indices.sort().values
        offsets = torch.arange(size, device=slots.device)
        chosen = (best[:, None] * size + offsets).view(-1)
        return torch.cat((chosen, torch.arange(window, length, device=slots.device)))
