"""The fake server of tests/unit over a real HostTier: its forwards write and read bytes, through the tables."""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch

from sglang_hisparse.capacity import Capacity, TokenBytes
from sglang_hisparse.config import HiSparseConfig
from sglang_hisparse.selectors import Selector
from sglang_hisparse.tier.host_tier import HostTier
from sglang_hisparse.tier.layout import PAGE
from tests.unit.fake_server import FakeServer, Sequence, Sizes

ROWS_OF_REQUESTS = 32
OFFSETS = torch.arange(PAGE)

MHA = ((0,), (1,))
"""Every layer selects for itself; K and V rows."""
MLA = ((0, 1, 2), (3,), (4, 5))
"""Index groups of several layers; one joint row a layer."""


def buffers_of(groups: tuple[tuple[int, ...], ...], rows: int) -> dict[int, list[tuple[str, torch.Tensor]]]:
    """KV buffers in the shapes of both pools: [rows, heads, dim] of K and V, or [rows, 1, dim]."""
    result = {}
    for layer in sorted(layer for group in groups for layer in group):
        if groups is MHA:
            shapes = {"k": (2, 8), "v": (2, 4)}
            result[layer] = [
                (name, torch.zeros((rows, *s), dtype=torch.bfloat16)) for name, s in shapes.items()
            ]
        else:
            result[layer] = [("kv", torch.zeros((rows, 1, 16 * (1 + layer % 3)), dtype=torch.uint8))]
    return result


def tier_of(sizes: Sizes, groups: tuple[tuple[int, ...], ...], audit: str = "off") -> HostTier:
    options = sizes.options
    capacity = Capacity(
        device_pages=sizes.device,
        host_pages=sizes.host,
        logical_pages=sizes.logical,
        hot_min_pages=options.hot_min,
        hot_max_pages=options.hot_max,
        hot_tables=options.tables,
        table_bytes=0,
        resident_requests=0,
        tiered_requests=0,
        context_length=0,
        token_bytes=TokenBytes(1, 1, 1),
    )
    config = HiSparseConfig(
        host_pool_gib=1,
        low_watermark=options.low_watermark,
        high_watermark=options.high_watermark,
        audit=audit,
        spill_order=options.spill_order,
        force_spill=options.force_spill,
    )
    selector = Selector("test", options.hot_min * PAGE, groups, sizes.reads_host)
    buffers = buffers_of(groups, (sizes.device + 1) * PAGE)
    return HostTier(config, capacity, selector, buffers, ROWS_OF_REQUESTS, torch.device("cpu"))


class TierServer(FakeServer):
    """`written[page, layer, plane]`: uint8 [64, row_bytes] that a forward wrote last, while `content` has the page."""

    def __init__(
        self, sizes: Sizes, rng: random.Random, groups: tuple[tuple[int, ...], ...], audit: str = "off"
    ):
        super().__init__(sizes, rng.randrange)
        self.tier = tier_of(sizes, groups, audit)
        self.residency, self.planner = self.tier.residency, self.tier.planner
        self.written: dict[tuple[int, int, int], torch.Tensor] = {}
        self.bytes = torch.Generator().manual_seed(rng.getrandbits(32))
        self.resolved = 0

    def planes(self, layer: int) -> list:  # type: ignore[type-arg]
        return list(self.tier.layout.of_layer(layer).planes)

    @property
    def layers(self) -> list[int]:
        return sorted(layer for group in self.tier.layout.groups for layer in group.layers)

    def forward(self, decoding: Iterable[Sequence] = ()) -> None:
        decoding = list(decoding)
        to_write, held = list(self.residency.fresh), list(self.residency.pinned)
        rows = [sequence.request.row for sequence in decoding]
        self.tier.begin_forward(rows if decoding else None)
        assert self.residency.journal.empty()
        if held:
            assert (self.tier.rows_of(self._slots(held)) >= 0).all(), (
                "prefill reads a page that is not in HBM"
            )
        if decoding:
            self._decode(decoding)
        for sequence in decoding:
            own = sequence.pages[sequence.in_tree :]
            to_write += own[-1 - self.pick(2) :]
        for page in dict.fromkeys(to_write):
            self.writes += 1
            self.content[page] = (page, self.writes)
            device_rows = self.tier.rows_of(self._slots([page]))
            for layer in self.layers:
                for plane, buffer in enumerate(self.planes(layer)):
                    shape = (PAGE, buffer.row_bytes)
                    data = torch.randint(0, 256, shape, dtype=torch.uint8, generator=self.bytes)
                    self.written[page, layer, plane] = buffer.rows[device_rows] = data

    @staticmethod
    def _slots(pages: list[int]) -> torch.Tensor:
        return (torch.tensor(pages)[:, None] * PAGE + OFFSETS).view(-1)

    def _decode(self, decoding: list[Sequence]) -> None:
        """Every index group selects: slots of any position, in any order, some twice, some none."""
        width = self.tier.selector.top_k
        generator = torch.Generator().manual_seed(self.pick(1 << 30))
        requests = torch.tensor([sequence.request.row for sequence in decoding] + [-1])
        for groups in self.tier.layout.index_groups:
            selection = torch.full((len(requests), width), -1, dtype=torch.int32)
            for row, sequence in enumerate(decoding):
                slots = self._slots([page for page in sequence.pages if page in self.content] or [0])
                picked = slots[torch.randint(len(slots), (width,), generator=generator)].to(torch.int32)
                none = torch.rand(width, generator=generator) < 0.1
                selection[row] = torch.where(none | (picked < PAGE), -1, picked)
            selection[-1] = selection[0]  # a padded row of a CUDA graph
            layers = [layer for group in groups for layer in group.layers]
            rows = self.tier.resolve(layers[0], selection, requests)
            for layer in layers:
                self.tier.wait_for_rows(layer)
            assert (rows[-1] == -1).all(), "a padded row reads nothing"
            assert torch.equal(rows[:-1] < 0, selection[:-1] < 0), (
                "every selected slot gets a row, and no other"
            )
            self._compare(layers, selection[:-1][rows[:-1] >= 0], rows[:-1][rows[:-1] >= 0])

    def _compare(self, layers: list[int], slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Rows of all layers of the group hold what was written for their slots."""
        self.resolved += len(slots)
        for page in (slots // PAGE).unique().tolist():
            of_page = slots // PAGE == page
            for layer in layers:
                for plane, buffer in enumerate(self.planes(layer)):
                    want = self.written[page, layer, plane][slots[of_page] % PAGE]
                    assert torch.equal(buffer.rows[rows[of_page].long()], want), f"layer {layer}, page {page}"

    def check(self) -> None:
        """Every page can be read as it was written, wherever it is, and host copies are true."""
        self.residency.check()
        if not self.residency.journal.empty() or self.residency.fresh:
            return
        assert self.tier.pages_by_state()["spilled"] >= 0
        pages = list(self.content)
        for layer in self.layers if pages else ():
            for plane, rows in enumerate(self.tier.read_rows(layer, self._slots(pages))):
                want = torch.cat([self.written[page, layer, plane] for page in pages])
                wrong = (rows != want).any(1).nonzero().view(-1)
                assert not len(wrong), f"layer {layer}, page {pages[int(wrong[0]) // PAGE]}"
