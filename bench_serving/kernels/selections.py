"""What requests have selected: hot tokens, and selections with an exact number of misses among them.

Both systems get the same requests, tokens, host rows and hot entries; how old the entries are is the same too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_hisparse.tier.layout import PAGE


@dataclass(frozen=True, slots=True)
class Placement:
    """`batch` requests of `context` tokens, all spilled, whose pages lie at random in the host pool, or together.

    host_page  int64 [batch, context / 64]  host page of each page of a request; distinct within a request
    hot        int64 [batch, hot]           token held by each hot entry, distinct
    age        int64 [batch, hot]           steps since the entry was used: geometric, at most 30
    fresh      int64 [batch, k]             tokens that no hot entry holds
    """

    host_page: torch.Tensor
    hot: torch.Tensor
    age: torch.Tensor
    fresh: torch.Tensor

    @property
    def batch(self) -> int:
        return len(self.hot)

    @property
    def k(self) -> int:
        return self.fresh.shape[1]

    @property
    def context(self) -> int:
        return self.host_page.shape[1] * PAGE

    def host_rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """Host row of each token [batch, n]."""
        return self.host_page.gather(1, tokens // PAGE) * PAGE + tokens % PAGE


def place(
    batch: int,
    k: int,
    hot: int,
    pages: int,
    pool_pages: int,
    generator: torch.Generator,
    together: bool = False,
) -> Placement:
    """A random placement on the generator's device. The newest token is never hot nor selected.

    `together`: the pages of a request lie one behind the other, requests in random order over the whole pool.
    Requests share host pages only where the pool has too few. ValueError where a request has too few tokens.
    """
    device = generator.device
    if hot + k > pages * PAGE - 1 or pages > pool_pages:
        raise ValueError(
            f"{hot} hot and {k} fresh tokens of {pages} pages, in a host pool of {pool_pages} pages"
        )
    order = torch.randperm(
        pool_pages // pages if together else pool_pages, generator=generator, device=device
    )
    if together:
        place_of = order[torch.arange(batch, device=device) % len(order)]
        host_page = place_of.unsqueeze(1) * pages + torch.arange(pages, device=device)
    else:
        host_page = order[torch.arange(batch * pages, device=device) % pool_pages].view(batch, pages)
    tokens = torch.rand(batch, pages * PAGE - 1, generator=generator, device=device).argsort(dim=1)
    age = torch.rand(batch, hot, generator=generator, device=device).log2().neg().long().clamp(max=30)
    return Placement(host_page, tokens[:, :hot].contiguous(), age, tokens[:, hot : hot + k].contiguous())


def select(placement: Placement, misses: int, generator: torch.Generator) -> torch.Tensor:
    """int64 [batch, k] distinct tokens in random order, of which exactly `misses` a request are not hot."""
    batch, k = placement.batch, placement.k
    hits = k - misses
    if hits > placement.hot.shape[1]:
        raise ValueError(f"{hits} hits among {placement.hot.shape[1]} hot entries")

    def shuffled(tokens: torch.Tensor) -> torch.Tensor:
        order = torch.rand(tokens.shape, generator=generator, device=tokens.device).argsort(dim=1)
        return tokens.gather(1, order)

    chosen = [shuffled(placement.hot)[:, :hits], placement.fresh[:, :misses]]
    tokens = shuffled(torch.cat(chosen, dim=1))
    assert tokens.shape == (batch, k)
    return tokens
