"""Stock's HiSparse state (its HiSparseCoordinator's tensors) in the state of a placement, and its swap-in kernels.

For every layer of stock its own host rows and device rows; the tables are those of one layer.
"""

from __future__ import annotations

from typing import Any

import torch

from sglang_hisparse.tier.layout import PAGE

from .pool import HostBytes, expected_bytes
from .selections import Placement

BLOCK_SIZE = 960
"""`swap_in_block_size` of stock's server, as nobody sets it."""

COPY_BLOCKS = 4
"""Blocks of stock's copy for layers that share a selection (HiSparseCoordinator._prefetch_copy_blocks)."""

_POISON = 0x5A


class Stock:
    """`hosts`: one uint8 [rows, row_bytes] a layer; the first is the layer that selects."""

    def __init__(self, placement: Placement, pool: HostBytes, hosts: list[torch.Tensor]) -> None:
        self.placement, self.pool, self.hosts = placement, pool, hosts
        device, (batch, hot) = pool.device, placement.hot.shape
        self.hot, self.row_bytes = hot, hosts[0].shape[1]
        padded = hot + PAGE  # the newest token's page
        pages = batch * padded // PAGE
        self.buffers = [
            torch.empty((1 + pages) * PAGE, self.row_bytes, dtype=torch.uint8, device=device) for _ in hosts
        ]
        generator = torch.Generator(device=device).manual_seed(1)
        locs = PAGE * (1 + torch.randperm(pages, generator=generator, device=device)).unsqueeze(1)
        locs = (locs + torch.arange(PAGE, device=device)).view(batch, padded)
        self.buffer_locs = locs.to(torch.int32)
        everything = torch.arange(placement.context, device=device).expand(batch, -1)
        self.host_locs = torch.full((batch, placement.context + PAGE), -1, dtype=torch.int64, device=device)
        self.host_locs[:, :-PAGE] = placement.host_rows(everything)
        self.buffer_tokens = torch.full((batch, padded), -1, dtype=torch.int32, device=device)
        self.lru_slots = torch.empty(batch, hot, dtype=torch.int16, device=device)
        oldest_first = placement.age.argsort(dim=1, descending=True, stable=True)
        self._fresh = (placement.hot.to(torch.int32), oldest_first.to(torch.int16))
        self.request = torch.arange(batch, device=device)
        self.seq_lens = torch.full((batch,), placement.context, device=device)
        self.real = torch.full((1,), batch, dtype=torch.int32, device=device)
        self.selection = torch.empty(batch, placement.k, dtype=torch.int32, device=device)
        self.out = torch.empty_like(self.selection)
        self.plan = {
            "miss_src": torch.zeros(batch, placement.k, dtype=torch.int64, device=device),
            "miss_dst": torch.zeros(batch, placement.k, dtype=torch.int32, device=device),
            "miss_count": torch.zeros(batch, dtype=torch.int32, device=device),
        }

    def choose(self, tokens: torch.Tensor) -> None:
        """What the launches to come select: tokens [batch, k]."""
        self.tokens = tokens
        self.selection.copy_(tokens)

    def reset(self) -> None:
        self.buffer_tokens[:, : self.hot].copy_(self._fresh[0])
        self.lru_slots.copy_(self._fresh[1])

    def launch(self, record_plan: bool = False, skip_io: bool = False) -> None:
        """Stock's swap-in of the layer that selects."""
        if self.pool.device.type != "cuda":
            emulate(self)
            return
        from sglang.kernels.ops.kvcache.hisparse import load_cache_to_device_buffer_mla

        plan: dict[str, Any] = self.plan if record_plan else {}
        load_cache_to_device_buffer_mla(
            top_k_tokens=self.selection,
            device_buffer_tokens=self.buffer_tokens,
            host_cache_locs=self.host_locs,
            device_buffer_locs=self.buffer_locs,
            host_cache=self.hosts[0],
            device_buffer=self.buffers[0],
            top_k_device_locs=self.out,
            req_pool_indices=self.request,
            seq_lens=self.seq_lens,
            lru_slots=self.lru_slots,
            item_size_bytes=self.row_bytes,
            num_top_k=self.placement.k,
            hot_buffer_size=self.hot,
            page_size=1,
            block_size=BLOCK_SIZE,
            num_real_reqs=self.real,
            skip_io=skip_io,
            **plan,
        )

    def launch_shared(self) -> None:
        """Stock's copies for the layers that share the selection, from the plan that `launch` recorded."""
        if self.pool.device.type != "cuda":
            source, target = self.plan["miss_src"], self.plan["miss_dst"]
            planned = torch.arange(source.shape[1]) < self.plan["miss_count"].unsqueeze(1)
            for host, buffer in zip(self.hosts[1:], self.buffers[1:], strict=True):
                buffer[target[planned].long()] = host[source[planned]]
            return
        from sglang.kernels.ops.kvcache.hisparse import copy_cache_planned_mla

        for host, buffer in zip(self.hosts[1:], self.buffers[1:], strict=True):
            copy_cache_planned_mla(
                **self.plan,
                num_real_reqs=self.real,
                host_cache=host,
                device_buffer=buffer,
                item_size_bytes=self.row_bytes,
                num_blocks=COPY_BLOCKS,
            )

    def poison(self) -> None:
        """Reset, with the right bytes in the hot entries that the selection uses and no others anywhere."""
        self.reset()
        base = self.request.unsqueeze(1) * self.placement.context
        used = torch.isin(base + self.placement.hot, base + self.tokens)
        device_rows = self.buffer_locs[:, : self.hot][used].long()
        host_rows = self.placement.host_rows(self.placement.hot)[used]
        for host, buffer in zip(self.hosts, self.buffers, strict=True):
            buffer.fill_(_POISON)
            buffer[device_rows] = expected_bytes(host, host_rows, self.pool)

    def wrong_rows(self) -> int:
        """Selected rows whose bytes in any layer are not those of their host rows, after a launch on `poison`."""
        host_rows = self.placement.host_rows(self.tokens).flatten()
        out = self.out.flatten().long()
        bad = out < 0
        for host, buffer in zip(self.hosts, self.buffers, strict=True):
            wanted = expected_bytes(host, host_rows, self.pool)
            bad |= (buffer[out.clamp(min=0)] != wanted).any(dim=1)
        return int(bad.sum())

    def missed(self) -> int:
        """Entries that a launch replaced since `reset`."""
        return int((self.buffer_tokens[:, : self.hot] != self._fresh[0]).sum())


def emulate(stock: Stock) -> None:
    """What stock's swap-in kernel does with these tensors, request by request: for rehearsals on the CPU."""
    for request in range(stock.placement.batch):
        lru = stock.lru_slots[request].tolist()
        tokens, locs = stock.buffer_tokens[request], stock.buffer_locs[request].long()
        selected = stock.selection[request].tolist()
        held = {int(tokens[slot]): slot for slot in lru}
        used = {held[token] for token in selected if token in held}
        victims = iter([slot for slot in lru if slot not in used])
        taken: list[int] = []
        for column, token in enumerate(selected):
            if token not in held:
                slot = next(victims)
                source = stock.host_locs[request, token]
                stock.buffers[0][locs[slot]] = stock.hosts[0][source]
                tokens[slot] = token
                stock.plan["miss_src"][request, len(taken)] = source
                stock.plan["miss_dst"][request, len(taken)] = locs[slot]
                taken.append(slot)
                held[token] = slot
            stock.out[request, column] = locs[held[token]]
        stock.plan["miss_count"][request] = len(taken)
        order = [*victims, *taken, *[slot for slot in lru if slot in used]]
        stock.lru_slots[request] = torch.tensor(order, dtype=torch.int16)
