"""SGLang's paged allocator with our pages behind it, and the rows of its requests: driven as the scheduler does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_hisparse.capacity import ceil_pages
from sglang_hisparse.config import OPEN_PAGES
from sglang_hisparse.policy import PlannerOptions, State
from tests.unit.fake_server import Sizes

pytest.importorskip("sglang.srt.mem_cache.allocator.paged", reason="SGLang is not installed")

import torch

from sglang_hisparse.seams import allocator as allocator_seam
from sglang_hisparse.seams import lifecycle as lifecycle_seam
from sglang_hisparse.seams.runtime import runtime
from sglang_hisparse.tier.layout import PAGE
from tests.cpu.tier_server import MLA, tier_of

OPTIONS = PlannerOptions(hot_min=2, hot_max=4, tables=8, low_watermark=0.6, high_watermark=0.9)

NO_TREE = SimpleNamespace(supports_prefix_sharing=lambda: False)


class Scheduler:
    """Batches, rows and lengths as SGLang keeps them; no model, no prefix cache beyond `share`."""

    def __init__(self, sizes: Sizes) -> None:
        self.tier = tier_of(sizes, MLA)
        self.pool = SimpleNamespace(req_to_token=torch.zeros((8, sizes.logical * PAGE), dtype=torch.int32))
        self.lifecycle = lifecycle_seam.RequestLifecycle(self.tier, self.pool, 4 * PAGE)
        self.allocator = allocator_seam.TieredPageAllocator(
            sizes.logical * PAGE, PAGE, torch.bfloat16, "cpu", SimpleNamespace(), need_sort=False
        )
        self.allocator.attach_tier(self.tier, self.lifecycle)
        self.lengths: dict[int, int] = {}

    def request(self, row: int, prefix: int) -> Any:
        held = row in self.lengths
        return SimpleNamespace(
            rid=str(row),
            kv=SimpleNamespace(holds_kv=held, req_pool_idx=row if held else None),
            full_untruncated_fill_ids=[1] * (prefix + 4 * PAGE),
            origin_input_ids=[1] * (prefix + 4 * PAGE),
            sampling_params=SimpleNamespace(max_new_tokens=PAGE),
            prefix_len=prefix,
            priority=None,
        )

    def extend(self, row: int, tokens: int, prefix: torch.Tensor | None = None) -> bool:
        """A chunk of a prompt, or a new request behind `prefix`. False where there was no room."""
        if row not in self.lengths:
            prefix = torch.zeros(0, dtype=torch.int32) if prefix is None else prefix
            self.pool.req_to_token[row, : len(prefix)] = prefix
            before = len(prefix)
        else:
            before = self.lengths[row]
        tree = SimpleNamespace(
            token_to_kv_pool_allocator=self.allocator,
            prefix_device_indices=lambda req: self.pool.req_to_token[row, :before].long(),
        )
        batch = SimpleNamespace(tree_cache=tree, reqs=[self.request(row, before)])
        done: bool = lifecycle_seam.allocate_extend(lambda _: self._extend(row, before, tokens), batch)
        return done

    def _extend(self, row: int, before: int, tokens: int) -> bool:
        start, end = torch.tensor([before]), torch.tensor([before + tokens])
        last = self.pool.req_to_token[row, before - 1 : before].long() if before else torch.tensor([-1])
        slots = self.allocator.alloc_extend(start, start, end, end, last, tokens)
        if slots is None:
            if row not in self.lengths:
                self.tier.planner.close(-1)
                self.lifecycle.clear()
            return False
        self._follow(row, before, slots)
        return True

    def decode(self, row: int) -> bool:
        length = self.lengths[row]
        pages = PAGE * (length % PAGE == 0)
        request = self.request(row, length)
        fits = self.allocator.check_decode_capacity(num_tokens=pages, tree_cache=NO_TREE, requests=[request])
        if not fits:
            return False
        total = torch.tensor([length + 1])
        slots = self.allocator.alloc_decode(
            total, total, self.pool.req_to_token[row, length - 1 : length].long()
        )
        assert slots is not None, "check_decode_capacity promised too much"
        self._follow(row, length, slots)
        self.tier.begin_forward([row])
        return True

    def _follow(self, row: int, before: int, slots: torch.Tensor) -> None:
        self.lengths[row] = before + len(slots)
        self.pool.req_to_token[row, before : self.lengths[row]] = slots.to(torch.int32)
        self.lifecycle.alloc_to_lengths(
            req_pool_indices_cpu=torch.tensor([row]), target_seq_lens_cpu=torch.tensor([self.lengths[row]])
        )

    def share(self, row: int, other: int, pages: int) -> None:
        """The radix tree finds that the first `pages` of both say the same: `row` reads those of `other`."""
        mine = self.pool.req_to_token[row, : pages * PAGE].clone().long()
        self.pool.req_to_token[row, : pages * PAGE] = self.pool.req_to_token[other, : pages * PAGE]
        self.allocator.free(mine)

    def finish(self, row: int, kept: int = 0) -> None:
        """Frees all but the first `kept` tokens, which others read, and the row."""
        self.allocator.free(self.pool.req_to_token[row, kept : self.lengths.pop(row)].long())
        self.lifecycle.free(row)

    def check(self) -> None:
        self.lifecycle.refresh()
        residency, allocator = self.tier.residency, self.allocator
        residency.check()
        free = allocator.get_all_free_pages().tolist()
        assert list(allocator._mirror) == free
        assert {p for p in range(1, residency.logical_pages + 1) if residency.state(p) is State.FREE} == {
            *free
        }
        assert residency.requests.keys() == self.lengths.keys()
        for row, length in self.lengths.items():
            pages = (self.pool.req_to_token[row, :length:PAGE] // PAGE).tolist()
            assert residency.requests[row].pages == pages, f"row {row}"


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`scheduler(sizes)`: stock's global configuration is not there."""
    settings = SimpleNamespace(chunked_prefill_size=4 * PAGE, prefill_decode_interval=0)
    monkeypatch.setattr(lifecycle_seam, "get_schedule", lambda: settings)
    monkeypatch.setattr(allocator_seam.PagedTokenToKVPoolAllocator, "evict_to_free_tokens", lambda *_: None)

    def make(sizes: Sizes) -> Scheduler:
        made = Scheduler(sizes)
        monkeypatch.setattr(runtime, "tier", made.tier)
        return made

    yield make


@pytest.mark.parametrize("reads_host", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_pages_and_rows_are_followed(scheduler: Any, reads_host: bool, seed: int) -> None:
    """Random chunks, decode steps, rewritten rows and ends: the mirror is stock's free list, every request reads what
    its row says, and nothing stays behind."""
    rng = random.Random(seed)
    server: Scheduler = scheduler(Sizes(14, 12, OPTIONS, reads_host))
    for _ in range(150):
        running = list(server.lengths)
        action = rng.random()
        if action < 0.2 and len(running) < 6:
            row = next(row for row in range(8) if row not in running)
            server.extend(row, rng.choice([1, PAGE - 1, PAGE, 3 * PAGE, 4 * PAGE]))
            server.tier.begin_forward(None)
        elif action < 0.35 and running:
            row = rng.choice(running)
            least = ceil_pages(server.lengths[row]) + 2 + OPEN_PAGES * (len(running) - 1)
            if reads_host or least <= 14:  # as admission sees to
                server.extend(row, rng.choice([1, PAGE // 2, 2 * PAGE]))
                server.tier.begin_forward(None)
        elif action < 0.8 and running:
            row = rng.choice(running)
            for _ in range(rng.choice([1, 5, PAGE])):
                if not server.decode(row):
                    break
        elif running:
            server.finish(rng.choice(running))
        server.check()
    assert server.tier.residency.spilled > 0
    for row in list(server.lengths):
        server.finish(row)
    server.check()
    assert len(server.tier.residency.free_device) == 14
    assert len(server.tier.residency.free_host) == 12


def test_a_rewritten_row_is_read_again(scheduler: Any) -> None:
    server: Scheduler = scheduler(Sizes(14, 12, OPTIONS, reads_host=True))
    assert server.extend(0, 3 * PAGE) and server.extend(1, 3 * PAGE)
    server.tier.begin_forward(None)
    server.share(1, 0, pages=2)
    assert server.tier.residency.requests[1].stale
    server.check()
    assert server.tier.residency.requests[1].pages[:2] == server.tier.residency.requests[0].pages[:2]
    server.finish(1, kept=2 * PAGE)
    server.check()


def test_a_prefix_hit_is_read_from_the_start(scheduler: Any) -> None:
    """It comes back to HBM before its request is prefilled, and is held there until the forward."""
    server: Scheduler = scheduler(Sizes(14, 12, OPTIONS, reads_host=False))
    assert server.extend(0, 4 * PAGE)
    server.tier.begin_forward(None)
    residency, prefix = server.tier.residency, server.pool.req_to_token[0, : 2 * PAGE].clone()
    server.tier.planner._spill_pages(residency.requests[0].pages[:2])
    assert server.extend(1, PAGE, prefix)
    pages = residency.requests[1].pages
    assert len(pages) == 3 and pages[:2] == residency.requests[0].pages[:2]
    assert all(residency.device[page] >= 0 for page in pages)
    assert residency.pinned == set(pages[:2])
    server.tier.begin_forward(None)
    assert residency.pinned == set()
    server.check()


def test_a_prefill_borrows_hot_rows_and_the_decode_after_it_asks_for_them(scheduler: Any) -> None:
    """Both tiers are full; SGLang has a page. The prompt goes on, and one of the others has to be retracted."""
    options = PlannerOptions(hot_min=2, hot_max=2, tables=8, low_watermark=1.0, high_watermark=1.0)
    server: Scheduler = scheduler(Sizes(13, 6, options, reads_host=False))
    residency, planner = server.tier.residency, server.tier.planner
    assert server.extend(0, 7 * PAGE)
    server.tier.begin_forward(None)
    planner._spill_pages(residency.requests[0].pages[:3])
    assert server.extend(1, 7 * PAGE)
    server.tier.begin_forward(None)
    planner._spill_pages(residency.requests[1].pages[:3])
    assert server.extend(2, PAGE)
    server.tier.begin_forward(None)
    assert (len(residency.free_device), residency.host_room()) == (0, 0)
    assert server.allocator.available_size() == 2 * PAGE
    assert server.extend(2, PAGE), "its hot rows are not read by a prefill"
    server.tier.begin_forward(None)
    server.check()
    requests = [server.request(row, 0) for row in range(2)]
    question: dict[str, Any] = {"num_tokens": 0, "tree_cache": NO_TREE}
    assert not server.allocator.check_decode_capacity(requests=requests, **question)
    server.finish(1)
    assert server.allocator.check_decode_capacity(requests=requests[:1], **question)
    server.check()


def test_a_flush_forgets_everything(scheduler: Any) -> None:
    server: Scheduler = scheduler(Sizes(14, 12, OPTIONS, reads_host=True))
    assert server.extend(0, 4 * PAGE)
    server.tier.begin_forward(None)
    server.allocator.clear()
    server.lengths.clear()
    server.check()
    assert server.extend(0, 4 * PAGE)
    server.check()


def test_a_step_within_a_page_touches_nothing(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = scheduler(Sizes(40, 40, OPTIONS, reads_host=False))
    for row in range(2):
        assert server.extend(row, 2 * PAGE + 10)
    server.tier.begin_forward(None)
    page_map = server.tier.tables.page_map.clone()
    for name in ("forward_prepared", "attach", "allocate"):
        monkeypatch.setattr(
            server.tier.residency, name, lambda *_, name=name: pytest.fail(f"{name} was called")
        )
    for _ in range(PAGE - 10):
        assert server.decode(0) and server.decode(1) and server.tier.nothing_to_do()
    monkeypatch.undo()
    monkeypatch.setattr(allocator_seam.PagedTokenToKVPoolAllocator, "evict_to_free_tokens", lambda *_: None)
    assert torch.equal(page_map, server.tier.tables.page_map)
    assert server.decode(1) and server.decode(0), "a page each"
    server.check()
    planner, options = server.tier.planner, server.tier.planner.options
    for change in ({"force_spill": 0.5}, {"low_watermark": 0.1, "high_watermark": 0.1}):
        assert server.tier.nothing_to_do()
        planner.options = replace(options, **change)
        assert not server.tier.nothing_to_do()
        planner.options = options
    for row in (0, 1):
        assert len(server.tier.residency.requests[row].pages) == 4
    assert (server.tier.tables.page_map >= 0).sum() == (page_map >= 0).sum() + 2
