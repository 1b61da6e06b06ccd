"""The torch reference against a brute-force model in plain Python, over random traces of many steps."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import pytest
import torch

from sglang_hisparse.kernels import reference, resolve
from sglang_hisparse.tier.layout import PAGE, Group, HotTables, Plane, RowLayout, byte_rows

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def slot_bytes(slots: torch.Tensor, layer: int, name: str, row_bytes: int) -> torch.Tensor:
    """What the rows of `slots` [n] hold, [n, row_bytes]: different for every slot, layer, plane and byte."""
    seed = slots.unsqueeze(1) * 1009 + layer * 31 + sum(name.encode())
    return ((torch.arange(row_bytes) * 7 + seed) % 251).to(torch.uint8)


@dataclass
class World:
    """A pool: page map, rows and hot tables, plus the brute-force model's own copy of the hot tables."""

    rng: random.Random
    pages: int
    host_pages: int
    hot_rows: int
    leases: dict[int, int]
    layout: RowLayout
    tables: HotTables
    model: dict[tuple[int, int], list[list[int]]] = field(default_factory=dict)
    clock: dict[tuple[int, int], int] = field(default_factory=dict)
    fetched: list[tuple[int, int]] = field(default_factory=list)  # of the last request: slot, device row

    @classmethod
    def make(
        cls,
        rng: random.Random,
        *,
        group_layers: list[tuple[int, ...]],
        planes: list[tuple[str, tuple[int, ...], torch.dtype]],
        pages: int = 12,
        requests: int = 6,
        hot_rows: int = 24,
        usable: int = 24,
    ) -> World:
        leased = 3
        device_pages = pages + 1 + (leased * hot_rows + PAGE - 1) // PAGE
        groups = []
        for index, layers in enumerate(group_layers):
            buffers = [
                (layer, name, byte_rows(torch.zeros(device_pages * PAGE, *shape, dtype=dtype)))
                for layer in layers
                for name, shape, dtype in planes
            ]
            planned = [
                Plane(layer, name, rows, torch.zeros(pages * PAGE, rows.shape[1], dtype=torch.uint8))
                for layer, name, rows in buffers
            ]
            groups.append(Group(index, tuple(planned)))
        tables = HotTables.create(pages, requests, len(groups), leased, hot_rows, "cpu")
        hot = torch.randperm(leased * hot_rows, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
        tables.hot_rows.copy_((hot + (pages + 1) * PAGE).view(leased, hot_rows))
        tables.hot_len.fill_(usable)
        leases = {1: 2, 4: 0, 5: 1}
        for request, t in leases.items():
            tables.hot_index[request] = t
        world = cls(rng, pages, pages, hot_rows, leases, RowLayout.of(groups), tables)
        for page in range(1, pages + 1):
            world.make_resident(page)
        for group in groups:
            for t in range(leased):
                world.model[group.index, t] = [[-1, 0] for _ in range(hot_rows)]
                world.clock[group.index, t] = 0
        return world

    def fill(self, page: int, device_page: int | None, host_page: int | None) -> None:
        slots = torch.arange(page * PAGE, (page + 1) * PAGE)
        for group in self.layout.groups:
            for plane in group.planes:
                data = slot_bytes(slots, plane.layer, plane.name, plane.row_bytes)
                if device_page is not None:
                    plane.rows[device_page * PAGE : (device_page + 1) * PAGE] = data
                if host_page is not None:
                    plane.host[host_page * PAGE : (host_page + 1) * PAGE] = data

    def make_resident(self, page: int) -> None:
        self.tables.page_map[page] = page
        self.fill(page, page, None)

    def spill(self, page: int, host_page: int) -> None:
        self.tables.page_map[page] = -2 - host_page
        self.fill(page, None, host_page)
        for group in self.layout.groups:
            for plane in group.planes:
                plane.rows[page * PAGE : (page + 1) * PAGE] = 255

    def brute_force(
        self, group: Group, selection: list[list[int]], request: list[int], q: int
    ) -> list[list[int]]:
        """The semantics, one entry at a time. Updates the model's tables, returns device rows."""
        out: list[list[int]] = []
        for i, req in enumerate(request):
            rows = selection[i * q : (i + 1) * q]
            if req < 0:
                out += [[-1] * len(row) for row in rows]
                continue
            t = int(self.tables.hot_index[req])
            placed: dict[int, int] = {}
            for slot in dict.fromkeys(slot for row in rows for slot in row):
                if 0 <= slot < (self.pages + 1) * PAGE:
                    mapped = int(self.tables.page_map[slot // PAGE])
                    if mapped >= 0:
                        placed[slot] = mapped * PAGE + slot % PAGE
                    elif mapped < -1:
                        placed[slot] = -2
            spilled = [slot for slot, row in placed.items() if row == -2]
            if spilled and t < 0:
                placed.update(dict.fromkeys(spilled, -1))
            elif spilled:
                self.place_spilled(group.index, t, spilled, placed)
            out += [[placed.get(slot, -1) for slot in row] for row in rows]
        return out

    def place_spilled(self, g: int, t: int, spilled: list[int], placed: dict[int, int]) -> None:
        entries = self.model[g, t][: int(self.tables.hot_len[t])]
        self.clock[g, t] += 1
        now = self.clock[g, t]
        where = {entry[0]: e for e, entry in reversed(list(enumerate(entries)))}

        def age(entry: list[int]) -> int:
            return min(max(now - entry[1], 1), 1023)

        for slot in spilled:
            if slot in where:
                entries[where[slot]][1] = now
        used = {where[slot] for slot in spilled if slot in where}
        misses = [slot for slot in spilled if slot not in where]
        oldest = sorted(
            (e for e in range(len(entries)) if e not in used), key=lambda e: (-age(entries[e]), e)
        )
        victims = sorted(oldest[: len(misses)])
        for slot, e in itertools.zip_longest(misses, victims):
            if e is None:
                placed[slot] = -1
            else:
                entries[e][:] = [slot, now]
        self.fetched = [
            (slot, int(self.tables.hot_rows[t, e])) for slot, e in zip(misses, victims, strict=False)
        ]
        for e in (*used, *victims):
            placed[entries[e][0]] = int(self.tables.hot_rows[t, e])

    def check(self, selection: torch.Tensor, out: torch.Tensor, group: Group) -> None:
        """Tables equal the model's, and every resolved entry has the bytes of its slot in all planes."""
        for (g, t), entries in self.model.items():
            assert self.tables.hot_slot[g, t].tolist() == [slot for slot, _ in entries]
            assert self.tables.hot_stamp[g, t].tolist() == [stamp for _, stamp in entries]
            assert int(self.tables.clock[g, t]) == self.clock[g, t]
        found = out.flatten() >= PAGE
        slots, rows = selection.flatten()[found].long(), out.flatten()[found].long()
        for plane in group.planes:
            assert torch.equal(plane.rows[rows], slot_bytes(slots, plane.layer, plane.name, plane.row_bytes))


MLA = [("latent", (1, 24), torch.bfloat16)]
BYTES = [("latent", (1, 80), torch.uint8)]
MHA = [("k", (2, 16), torch.float8_e4m3fn), ("v", (2, 8), torch.float32)]


@pytest.mark.parametrize("q", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("group_layers", "planes"),
    [([(0,), (1,)], MLA), ([(0, 1, 2, 3)], BYTES), ([(3, 4), (7,)], MHA)],
    ids=["mla", "bytes-4-layers", "mha-2-layers"],
)
def test_random_traces_equal_the_brute_force_model(q, group_layers, planes):
    rng = random.Random(f"{q}{group_layers}")
    usable = rng.choice([17, 24])
    world = World.make(rng, group_layers=group_layers, planes=planes, usable=usable)
    host_free = list(range(world.host_pages))
    rng.shuffle(host_free)
    width, totals, recent = 8, torch.zeros(4, dtype=torch.int64), [70]
    for _ in range(60):
        for _ in range(rng.randrange(4)):  # pages spill, are restored, are freed and come back, in any order
            page = rng.randrange(1, world.pages + 1)
            mapped = int(world.tables.page_map[page])
            if mapped >= 0 and rng.random() < 0.8:
                world.spill(page, host_free.pop())
            else:
                if mapped < -1:
                    host_free.append(-2 - mapped)
                    rng.shuffle(host_free)
                world.make_resident(page)
        request = [*rng.sample(range(6), 3), -1]
        fresh = [rng.randrange(PAGE, (world.pages + 1) * PAGE) for _ in range(rng.choice([4, 12, 60]))]
        pool = [*fresh, *recent, -1, INT32_MIN, INT32_MAX, (world.pages + 1) * PAGE, 5]
        recent = rng.sample(fresh, 4)
        selection = [[rng.choice(pool) for _ in range(width)] for _ in range(len(request) * q)]
        group = rng.choice(world.layout.groups)
        given, stats = torch.tensor(selection, dtype=torch.int32), torch.zeros(4, dtype=torch.int64)
        ids = torch.tensor(request, dtype=rng.choice([torch.int32, torch.int64]))
        out = resolve.resolve(world.tables, group, given, ids, q, stats=stats)
        assert out.dtype == torch.int32
        assert out.tolist() == world.brute_force(group, selection, request, q)
        world.check(given, out, group)
        totals += stats
    assert totals[reference.RESIDENT] > 0 and totals[reference.HOT] > 0 and totals[reference.MISSED] > 0


def one_group(usable: int = 24) -> World:
    return World.make(random.Random(7), group_layers=[(0,)], planes=MLA, usable=usable)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.int32)


def test_resident_entries_touch_no_hot_table():
    world = one_group()
    before = [t.clone() for t in (world.tables.hot_slot, world.tables.hot_stamp, world.tables.clock)]
    stats = torch.zeros(4, dtype=torch.int64)
    out = resolve.resolve(
        world.tables, world.layout.groups[0], ints(70, -1, 70, 3), torch.tensor([1]), 1, stats=stats
    )
    assert out.tolist() == [[70, -1, 70, 3]]
    assert stats.tolist() == [3, 0, 0, 0]
    after = (world.tables.hot_slot, world.tables.hot_stamp, world.tables.clock)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_duplicates_count_once_and_share_a_row():
    world = one_group()
    world.spill(2, 5)
    stats = torch.zeros(4, dtype=torch.int64)
    selection, request = ints(130, 131, 130, 130).view(2, 2), torch.tensor([4])
    out = resolve.resolve(world.tables, world.layout.groups[0], selection, request, 2, stats=stats)
    rows = world.tables.hot_rows[0]
    assert out.tolist() == [[rows[0], rows[1]], [rows[0], rows[0]]]
    assert stats.tolist() == [0, 0, 2, 0]
    resolve.resolve(world.tables, world.layout.groups[0], selection, request, 2, stats=stats)
    assert stats.tolist() == [0, 2, 2, 0]


def test_two_requests_cache_a_shared_page_in_their_own_hot_rows():
    world = one_group()
    world.spill(3, 0)
    selection = torch.tensor([[192, 200], [200, 201]], dtype=torch.int32)
    out = resolve.resolve(world.tables, world.layout.groups[0], selection, torch.tensor([1, 5]), 1)
    assert out[0, 1] != out[1, 0]
    world.brute_force(world.layout.groups[0], selection.tolist(), [1, 5], 1)
    world.check(selection, out, world.layout.groups[0])


def test_the_least_recently_used_entries_go_first_lowest_entry_first():
    world = one_group(usable=4)
    world.spill(1, 0)
    group, request = world.layout.groups[0], torch.tensor([1])
    for step in ([64, 65, 66, 67], [66], [64, 65], [70, 71]):
        resolve.resolve(world.tables, group, ints(*step), request, 1)
    # 67 and 66 are older than 64 and 65; the first miss takes the lower of their entries.
    assert world.tables.hot_slot[0, 2, :4].tolist() == [64, 65, 70, 71]


def test_entries_that_are_very_old_are_equally_old():
    world = one_group(usable=4)
    world.spill(1, 0)
    tables = world.tables
    tables.hot_slot[0, 2, :4] = torch.tensor([64, 65, 66, 67])
    tables.hot_stamp[0, 2, :4] = torch.tensor([4000, 900, 1, 3000])
    tables.clock[0, 2] = 4999
    resolve.resolve(tables, world.layout.groups[0], ints(70), torch.tensor([1]), 1)
    assert tables.hot_slot[0, 2, :4].tolist() == [64, 70, 66, 67]  # ages 1000, 1023, 1023, 1023


def test_followers_get_the_rows_that_the_leader_fetched():
    world = World.make(random.Random(5), group_layers=[(0, 1, 2)], planes=MHA)
    for page in range(1, 5):
        world.spill(page, page)
    whole, request = world.layout.groups[0], torch.tensor([5, -1, 1])
    leader, second, third = (
        Group(0, tuple(plane for plane in whole.planes if plane.layer == layer)) for layer in whole.layers
    )
    misses = resolve.MissList.create(4, 8, "cpu")
    misses.count.fill_(7)
    selection = torch.tensor([[64, 65, 130, 64], [66, 66, 66, 66], [200, 330, 9, 201]], dtype=torch.int32)
    behind = (*second.planes, *third.planes)  # K and V of two layers
    before = [plane.rows.clone() for plane in behind]
    out = resolve.resolve(world.tables, leader, selection, request, 1, misses=misses)
    assert misses.count.tolist() == [3, 0, 2, 7]  # the fourth is not part of this batch
    rows = out[0, :3].tolist(), out[2, [0, 3]].tolist()
    assert misses.rows[0, :3].tolist() == [[128 - 64, rows[0][0]], [129 - 64, rows[0][1]], [130, rows[0][2]]]
    assert misses.rows[2, :2].tolist() == [[200, rows[1][0]], [201, rows[1][1]]]
    assert all(torch.equal(p.rows, old) for p, old in zip(behind, before, strict=True))
    resolve.fetch_listed(third, misses, 3)
    assert all(torch.equal(p.rows, old) for p, old in zip(second.planes, before[:2], strict=True))
    resolve.fetch_listed(second, misses, 3)
    for row, slots in ((0, [64, 65, 130, 64]), (2, [200, 330, 9, 201])):
        for plane in whole.planes:
            want = slot_bytes(torch.tensor(slots), plane.layer, plane.name, plane.row_bytes)
            found = out[row] >= PAGE
            assert torch.equal(plane.rows[out[row][found].long()], want[found])


@pytest.mark.parametrize("read", [True, False])
def test_a_list_says_what_was_missed_whatever_was_fetched(read: bool):
    world = World.make(random.Random(6), group_layers=[(0, 1)], planes=MLA)
    world.spill(1, 0)
    group, misses = world.layout.groups[0], resolve.MissList.create(2, 4, "cpu")
    selection = torch.tensor([[64, 65, 66, 67], [64, 65, -1, -1]], dtype=torch.int32)
    out = resolve.resolve(
        world.tables, group, selection, torch.tensor([5, 1]), 1, read_rows=read, misses=misses
    )
    assert misses.count.tolist() == [4, 2]
    wants = [slot_bytes(torch.arange(64, 68), p.layer, p.name, p.row_bytes) for p in group.planes]
    for plane, wanted in zip(group.planes, wants, strict=True):
        assert torch.equal(plane.rows[out[0].long()], wanted) is read
    resolve.fetch_listed(group, misses, 2)
    for plane, wanted in zip(group.planes, wants, strict=True):
        assert torch.equal(plane.rows[out[0].long()], wanted)
        assert torch.equal(plane.rows[out[1, :2].long()], wanted[:2])


def test_without_bytes_everything_else_is_the_same():
    worlds = [one_group(), one_group()]
    for world, read in zip(worlds, (True, False), strict=True):
        world.spill(2, 5)
        saved = world.layout.groups[0].planes[0].rows.clone()
        out = resolve.resolve(
            world.tables, world.layout.groups[0], ints(130, 70), torch.tensor([4]), 1, read_rows=read
        )
        assert out[0, 0] == world.tables.hot_rows[0, 0] and out[0, 1] == 70
        assert torch.equal(world.layout.groups[0].planes[0].rows, saved) is not read
    assert torch.equal(worlds[0].tables.hot_slot, worlds[1].tables.hot_slot)


def test_every_16th_entry_warms_its_page():
    world = one_group()
    world.spill(2, 5)
    heat = torch.zeros(world.pages + 1, dtype=torch.int32)
    entries = [130] * 16 + [70] * 16 + [-1] + [300] * 15 + [70] * 2
    selection = torch.tensor([entries, entries], dtype=torch.int32)
    resolve.resolve(world.tables, world.layout.groups[0], selection, torch.tensor([4, -1]), 1, heat=heat)
    assert heat.tolist() == [0, 2, 1] + [0] * (world.pages - 2)


def test_more_missing_slots_than_hot_rows_overflow_or_raise_with_numbers():
    world = one_group(usable=4)
    world.spill(1, 0)
    group, request, selection = world.layout.groups[0], torch.tensor([1]), ints(*range(64, 71))
    before = world.tables.clock.clone()
    with pytest.raises(RuntimeError, match=r"7 spilled slots .*\(7 missing\) but 4 hot rows \(4 free"):
        reference.resolve(world.tables, group, selection, request, 1, strict=True)
    assert torch.equal(world.tables.clock, before)
    stats = torch.zeros(4, dtype=torch.int64)
    out = reference.resolve(world.tables, group, selection, request, 1, stats=stats)
    assert out[0, 4:].tolist() == [-1, -1, -1] and (out[0, :4] >= 0).all()
    assert stats.tolist() == [0, 0, 4, 3]


def test_a_request_without_hot_rows_overflows():
    world = one_group()
    world.spill(1, 0)
    group, selection, stats = world.layout.groups[0], ints(64, 64, 65, 130), torch.zeros(4, dtype=torch.int64)
    out = reference.resolve(world.tables, group, selection, torch.tensor([0]), 1, stats=stats)
    assert out.tolist() == [[-1, -1, -1, 130]] and stats.tolist() == [1, 0, 0, 2]
    with pytest.raises(RuntimeError, match="request row 0 selected spilled slots"):
        reference.resolve(world.tables, group, selection, torch.tensor([0]), 1, strict=True)


def test_no_requests():
    world = one_group()
    empty = torch.empty(0, 8, dtype=torch.int32)
    out = resolve.resolve(world.tables, world.layout.groups[0], empty, torch.empty(0, dtype=torch.int64), 1)
    assert out.shape == (0, 8)


@pytest.mark.parametrize(
    ("gpu", "blocks"),
    [
        ("NVIDIA H200", 4), ("NVIDIA H100 80GB HBM3", 4), ("NVIDIA B200", 4), ("NVIDIA GH200 480GB", 24),
        ("NVIDIA GB200", 24), ("GH200", 24), ("AMD Instinct", 4),
    ],
)  # fmt: skip
def test_blocks_of_a_fetch_by_the_link_of_the_gpu(gpu: str, blocks: int):
    shape = resolve.shape_on(gpu)
    assert shape.blocks == blocks and shape.threads == 1024 and shape.paired and shape.blocks % 2 == 0
