"""Where the bytes of a token are: planes, row groups, the host row, and the hot tables.

A *plane* is one (layer, buffer). A device row is one token's bytes in one plane; a host row is the same token's rows
of all planes of a *row group*, side by side:

    host row   | plane 0 | plane 1 | ... | plane n-1 |      host_row_bytes
    offset     0         host_offset of plane 1 ...

An index group (a leader and the layers that reuse its selection) is stored in the row groups that are fetched
together: the leader, the layer behind it, the next two, ... (`row_groups.py`). All of them use the same host pages and
the same hot tables.

Row ids count tokens: device row = device_page * 64 + offset, host row = host_page * 64 + offset.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from sglang_hisparse.config import PAGE as PAGE

ALIGNMENT = 16
"""Bytes of one kernel access: every row size, host offset and base address is a multiple of it."""

MAX_ROWS = 2**31 - 2 - 8192
"""Most host rows, and device rows: the resolve kernel keeps both, and an entry of a selection, in one int32."""

NOTHING = -1
"""Value of `page_map` for a page that is nowhere, and of every table entry that is not set."""


def byte_rows(tensor: torch.Tensor) -> torch.Tensor:
    """View `tensor` [rows, ...] of any dtype as uint8 [rows, row_bytes], without a copy.

    Raises ValueError where such a view does not exist (not contiguous, or no dimension).
    """
    if tensor.ndim == 0 or not tensor.is_contiguous():
        raise ValueError(
            f"byte_rows needs a contiguous tensor of shape [rows, ...]; got shape {tuple(tensor.shape)} "
            f"with strides {tuple(tensor.stride())}"
        )
    flat = tensor.flatten(1) if tensor.ndim > 1 else tensor.unsqueeze(1)
    return flat.view(torch.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """One buffer of one layer.

    rows         uint8 [device_rows, row_bytes]: byte view of a KV buffer that the KV pool owns
    host_offset  first byte of this plane in the group's host row, a multiple of 16
    """

    layer: int
    name: str
    rows: torch.Tensor
    host_offset: int

    def __post_init__(self) -> None:
        rows = self.rows
        if rows.dtype != torch.uint8 or rows.ndim != 2 or not rows.is_contiguous():
            raise ValueError(
                f"layer {self.layer} plane {self.name!r}: rows must be contiguous uint8 [rows, row_bytes] "
                f"(see byte_rows), got {rows.dtype} {tuple(rows.shape)}"
            )
        if self.row_bytes == 0 or self.row_bytes % ALIGNMENT:
            raise ValueError(
                f"layer {self.layer} plane {self.name!r}: a row has {self.row_bytes} bytes; the kernels copy "
                f"{ALIGNMENT} bytes at a time, so it must be a positive multiple of {ALIGNMENT}"
            )
        if rows.data_ptr() % ALIGNMENT or self.host_offset % ALIGNMENT:
            raise ValueError(
                f"layer {self.layer} plane {self.name!r}: address {rows.data_ptr():#x} and host offset "
                f"{self.host_offset} must be multiples of {ALIGNMENT}"
            )

    @property
    def row_bytes(self) -> int:
        return self.rows.shape[1]


def plan_planes(buffers: Iterable[tuple[int, str, torch.Tensor]]) -> tuple[tuple[Plane, ...], int]:
    """Lay the (layer, name, KV buffer [rows, ...]) of one group side by side in a host row.

    Returns (planes in the given order, host_row_bytes). ValueError for a row that is not a multiple of 16 B.
    """
    planes: list[Plane] = []
    offset = 0
    for layer, name, buffer in buffers:
        plane = Plane(layer, name, byte_rows(buffer), offset)
        planes.append(plane)
        offset += plane.row_bytes
    return tuple(planes), offset


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A row group: layers of one index group whose rows lie side by side on the host.

    index        the index group: first index of the hot tables
    layers       in the model's order
    host         uint8 [host_pages * 64, host_row_bytes], owned by the host pool; pinned for planes on CUDA
    plane_table  int64 [planes, 4] on the CPU: device address, row_bytes, host_offset, layer
    """

    index: int
    layers: tuple[int, ...]
    planes: tuple[Plane, ...]
    host: torch.Tensor
    plane_table: torch.Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        host, where = self.host, f"row group of layers {self.layers}"
        if not self.planes:
            raise ValueError(f"{where}: no planes")
        if (
            host.dtype != torch.uint8
            or host.ndim != 2
            or not host.is_contiguous()
            or host.shape[1] % ALIGNMENT
        ):
            raise ValueError(
                f"{where}: host must be contiguous uint8 [rows, bytes] with bytes a multiple of {ALIGNMENT}, "
                f"got {host.dtype} {tuple(host.shape)}"
            )
        if len(host) > MAX_ROWS or any(len(plane.rows) > MAX_ROWS for plane in self.planes):
            raise ValueError(
                f"{where}: {len(host)} host rows and {max(len(p.rows) for p in self.planes)} device rows; row ids "
                f"are int32 and end at {MAX_ROWS}"
            )
        if host.data_ptr() % ALIGNMENT:
            raise ValueError(f"{where}: host address {host.data_ptr():#x} must be a multiple of {ALIGNMENT}")
        for plane in self.planes:
            if plane.layer not in self.layers:
                raise ValueError(
                    f"{where}: plane {plane.name!r} is of layer {plane.layer}, not of {self.layers}"
                )
            if plane.host_offset + plane.row_bytes > host.shape[1]:
                raise ValueError(
                    f"{where}: layer {plane.layer} plane {plane.name!r} ends at byte "
                    f"{plane.host_offset + plane.row_bytes} of a host row of {host.shape[1]} bytes"
                )
            if plane.rows.device != self.device:
                raise ValueError(f"{where}: planes on {self.device} and {plane.rows.device}")
        if self.device.type == "cuda" and not host.is_pinned():
            raise ValueError(
                f"{where}: the kernels read host rows by address, so the host tensor must be pinned"
            )
        of_layers = [self.layers.index(plane.layer) for plane in self.planes]
        if of_layers != sorted(of_layers) or set(of_layers) != set(range(len(self.layers))):
            raise ValueError(
                f"{where}: planes of layers {[plane.layer for plane in self.planes]}; every layer of {self.layers} "
                "must have some, in this order"
            )
        table = [[p.rows.data_ptr(), p.row_bytes, p.host_offset, p.layer] for p in self.planes]
        object.__setattr__(self, "plane_table", torch.tensor(table, dtype=torch.int64))

    @property
    def device(self) -> torch.device:
        return self.planes[0].rows.device

    @property
    def host_row_bytes(self) -> int:
        return self.host.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """All row groups of a model.

    groups          index group after index group; of each the leader's first
    layer_to_group  layer id -> position in `groups`
    index_groups    the same groups, one tuple for each index group
    leaders         the first layer of each index group
    plane_table     int64 [all planes, 4] on the KV device: the groups' plane tables, one after the other
    group_table     int64 [groups, 4] on the KV device: address of host row 0, host_row_bytes, first plane, planes
    """

    groups: tuple[Group, ...]
    layer_to_group: Mapping[int, int] = field(init=False)
    index_groups: tuple[tuple[Group, ...], ...] = field(init=False, repr=False)
    leaders: frozenset[int] = field(init=False)
    plane_table: torch.Tensor = field(init=False, repr=False)
    group_table: torch.Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        by_index = [tuple(same) for _, same in itertools.groupby(self.groups, key=lambda group: group.index)]
        indices = [same[0].index for same in by_index]
        if not indices or indices != list(range(len(indices))):
            raise ValueError(
                "index groups must be numbered 0, 1, 2, ... in order, the row groups of each together, and there must "
                f"be one; got {[group.index for group in self.groups]}"
            )
        places = [(layer, place) for place, group in enumerate(self.groups) for layer in group.layers]
        if len(dict(places)) != len(places):
            raise ValueError(
                f"a layer belongs to one row group; got {[group.layers for group in self.groups]}"
            )
        object.__setattr__(self, "layer_to_group", dict(places))
        object.__setattr__(self, "index_groups", tuple(by_index))
        object.__setattr__(self, "leaders", frozenset(same[0].layers[0] for same in by_index))
        table, planes = [], 0
        for group in self.groups:
            table.append([group.host.data_ptr(), group.host_row_bytes, planes, len(group.planes)])
            planes += len(group.planes)
        on_device = torch.tensor(table, dtype=torch.int64, device=self.device)
        object.__setattr__(self, "group_table", on_device)
        together = torch.cat([group.plane_table for group in self.groups]).to(self.device)
        object.__setattr__(self, "plane_table", together)

    @classmethod
    def of(cls, groups: Iterable[Group]) -> RowLayout:
        """The layout of `groups`. ValueError where they do not fit together."""
        return cls(tuple(groups))

    def of_layer(self, layer: int) -> Group:
        """The row group that holds `layer`. KeyError where none does."""
        return self.groups[self.layer_to_group[layer]]

    @property
    def device(self) -> torch.device:
        return self.groups[0].device


@dataclass(frozen=True, slots=True, eq=False)
class HotTables:
    """What resolve reads and writes besides rows: int32 tensors on the KV device that never move.

    P pages, R rows of req_to_token, G index groups, T requests that can lease hot rows, H most hot rows of
    one. In brackets: who writes it.

        page_map   [P + 1]    page -> device page (>= 0), nothing (-1), or host page h as -2 - h   (tier)
        hot_index  [R]        request row -> t, or -1                                              (tier)
        hot_rows   [T, H]     device row of each hot entry                                         (tier)
        hot_len    [T]        usable entries                                                       (tier)
        hot_slot   [G, T, H]  slot cached by an entry, or -1                                       (resolve)
        hot_stamp  [G, T, H]  `clock` of the entry's last use                                      (resolve)
        clock      [G, T]     steps of this table that met a spilled page                          (resolve)

    The tier writes on the forward stream between two forwards, and resets an entry (slot -1, stamp 0) when it
    leases or takes back its row and when the slot it caches is freed. `clock` wraps after 2**31 - 1 steps, so
    the tier resets it, with the entries of t, whenever it leases t anew.
    """

    page_map: torch.Tensor
    hot_index: torch.Tensor
    hot_rows: torch.Tensor
    hot_len: torch.Tensor
    hot_slot: torch.Tensor
    hot_stamp: torch.Tensor
    clock: torch.Tensor

    @classmethod
    def create(
        cls, pages: int, requests: int, groups: int, tables: int, hot_rows: int, device: torch.device | str
    ) -> HotTables:
        """Empty tables: every page nowhere but padding page 0 (device page 0), nothing leased."""

        def full(value: int, *shape: int) -> torch.Tensor:
            return torch.full(shape, value, dtype=torch.int32, device=device)

        page_map = full(NOTHING, pages + 1)
        page_map[0] = 0
        return cls(
            page_map=page_map,
            hot_index=full(NOTHING, requests),
            hot_rows=full(0, tables, hot_rows),
            hot_len=full(0, tables),
            hot_slot=full(NOTHING, groups, tables, hot_rows),
            hot_stamp=full(0, groups, tables, hot_rows),
            clock=full(0, groups, tables),
        )
