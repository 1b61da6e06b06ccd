"""Our pool in the state of a placement, and one launch of resolve on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from sglang_hisparse.kernels import resolve
from sglang_hisparse.tier.layout import PAGE, Group, HotTables, Plane
from sglang_hisparse.tier.listed_fetch import ListedFetch

from .pool import HostBytes, expected_bytes
from .selections import Placement

_CLOCK = 1000
_POISON = 0xA5


class Ours:
    """One index group of `layers` planes of `row_bytes`; every request leases a hot table. One step is `launch`
    (resolve alone) or `serve` (as a server fetches a group of one layer).

    host    the index group's host rows, all layers side by side; `stored` lays the same bytes out as a tier does, a
            layer behind the other
    groups  one of all layers, or with `stored` one a layer
    """

    def __init__(
        self,
        placement: Placement,
        pool: HostBytes,
        host: torch.Tensor,
        row_bytes: int,
        layers: int = 1,
        stored: bool = False,
    ) -> None:
        self.placement, self.pool = placement, pool
        device, (batch, hot) = pool.device, placement.hot.shape
        pages = placement.host_page.numel()
        pool_pages = max(pages, len(host) // PAGE)
        hot_pages = -(-batch * hot // PAGE)
        self.planes = [
            torch.empty((1 + hot_pages) * PAGE, row_bytes, dtype=torch.uint8, device=device)
            for _ in range(layers)
        ]
        hosts = host.split(row_bytes, dim=1)
        if stored:
            first, size = host.data_ptr() - pool.buffer.data_ptr(), len(host) * row_bytes
            hosts = tuple(pool.rows(size, row_bytes, first=first + layer * size) for layer in range(layers))
        planes = [Plane(layer, "latent", rows, hosts[layer]) for layer, rows in enumerate(self.planes)]
        self.groups = tuple(Group(0, (plane,)) for plane in planes) if stored else (Group(0, tuple(planes)),)
        self.group = self.groups[0]
        self.tables = tables = HotTables.create(pool_pages, batch, 1, batch, hot, device)
        generator = torch.Generator(device=device).manual_seed(1)
        logical = 1 + torch.randperm(pool_pages, generator=generator, device=device)[:pages]
        self.logical = logical.view(placement.host_page.shape)  # page of a request -> SGLang's page
        tables.page_map[self.logical] = (-2 - placement.host_page).to(torch.int32)
        tables.hot_index.copy_(torch.arange(batch))
        tables.hot_len.fill_(hot)
        rows = PAGE * (1 + torch.randperm(hot_pages, generator=generator, device=device)).unsqueeze(1)
        rows = (rows + torch.arange(PAGE, device=device)).flatten()[: batch * hot]
        tables.hot_rows.copy_(rows.view(batch, hot))
        self._fresh = (
            self.slots(placement.hot).unsqueeze(0),
            (_CLOCK - placement.age).to(torch.int32).unsqueeze(0),
        )
        self.request = torch.arange(batch, device=device)
        self.selection = torch.empty(batch, placement.k, dtype=torch.int32, device=device)
        self.out = torch.empty_like(self.selection)
        self.stats = torch.zeros(4, dtype=torch.int64, device=device)
        self.swept = ListedFetch.sweeps(batch)
        self.misses = resolve.MissList.create(batch, placement.k, device)

    def slots(self, tokens: torch.Tensor) -> torch.Tensor:
        """SGLang's slots of tokens [batch, n]."""
        return (self.logical.gather(1, tokens // PAGE) * PAGE + tokens % PAGE).to(torch.int32)

    def choose(self, tokens: torch.Tensor) -> None:
        """What the launches to come select: tokens [batch, k]."""
        self.tokens = tokens
        self.selection.copy_(self.slots(tokens))

    def make_resident(self) -> None:
        """Every page of the requests gets a device page of its own number. For `launch` only: no rows are there."""
        self.tables.page_map[self.logical] = self.logical.to(torch.int32)

    def reset(self) -> None:
        """The hot tables as they were before the step."""
        self.tables.hot_slot.copy_(self._fresh[0])
        self.tables.hot_stamp.copy_(self._fresh[1])
        self.tables.clock.fill_(_CLOCK)

    def launch(self, **options: Any) -> None:
        resolve.resolve(
            self.tables, self.group, self.selection, self.request, 1, self.out, self.stats, **options
        )

    def serve(self) -> None:
        if not self.swept:
            self.launch()
            return
        self.launch(read_rows=False, misses=self.misses)
        resolve.fetch_listed(self.group, self.misses, len(self.request), follows_resolve=True)

    def poison(self) -> None:
        """Reset, with the right bytes in the hot entries that the selection uses and no others anywhere."""
        self.reset()
        base = self.request.unsqueeze(1) * self.placement.context
        used = torch.isin(base + self.placement.hot, base + self.tokens)
        device_rows = self.tables.hot_rows[used].long()
        host_rows = self.placement.host_rows(self.placement.hot)[used]
        for plane in self._planes():
            plane.rows.fill_(_POISON)
            plane.rows[device_rows] = expected_bytes(plane.host, host_rows, self.pool)

    def _planes(self) -> Iterator[Plane]:
        return (plane for group in self.groups for plane in group.planes)

    def wrong_rows(self) -> int:
        """Selected rows whose bytes in any plane are not those of their host rows, after a launch on `poison`."""
        host_rows = self.placement.host_rows(self.tokens).flatten()
        out = self.out.flatten().long()
        bad = out < 0
        for plane in self._planes():
            bad |= (plane.rows[out.clamp(min=0)] != expected_bytes(plane.host, host_rows, self.pool)).any(
                dim=1
            )
        return int(bad.sum())
