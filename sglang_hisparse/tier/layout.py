"""Where the bytes of a token are: planes, index groups, and the hot tables.

A *plane* is one (layer, buffer): K, V, or a latent row that serves as both. A device row is one token's bytes in it,
and its host row holds the same bytes, so that a page is one contiguous piece in both tiers:

    device   plane.rows   | row 0 | row 1 | ...      device row = device_page * 64 + offset
    host     plane.host   | row 0 | row 1 | ...      host row   = host_page * 64 + offset

All planes use the same host pages, and all layers of an index group (a leader and the layers that reuse its selection)
the same hot tables. Row ids count tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from sglang_hisparse.config import PAGE as PAGE

ALIGNMENT = 16
"""Bytes of one kernel access: every row size, pitch and base address is a multiple of it."""

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
    """One buffer of one layer, in both tiers.

    rows  uint8 [device_rows, row_bytes]: byte view of a KV buffer that the KV pool owns
    host  uint8 [host_rows, row_bytes], owned by the host pool, pinned for rows on CUDA. Rows may lie further apart than
          their bytes (`host_pitch`), side by side with those of other planes; a server's do not
    """

    layer: int
    name: str
    rows: torch.Tensor
    host: torch.Tensor

    def __post_init__(self) -> None:
        rows, host, where = self.rows, self.host, f"layer {self.layer} plane {self.name!r}"
        if rows.dtype != torch.uint8 or rows.ndim != 2 or not rows.is_contiguous():
            raise ValueError(
                f"{where}: rows must be contiguous uint8 [rows, row_bytes] (see byte_rows), "
                f"got {rows.dtype} {tuple(rows.shape)}"
            )
        if self.row_bytes == 0 or self.row_bytes % ALIGNMENT:
            raise ValueError(
                f"{where}: a row has {self.row_bytes} bytes; the kernels copy "
                f"{ALIGNMENT} bytes at a time, so it must be a positive multiple of {ALIGNMENT}"
            )
        if host.dtype != torch.uint8 or host.shape[1:] != rows.shape[1:] or host.stride(1) != 1:
            raise ValueError(
                f"{where}: host must be uint8 [host rows, {self.row_bytes}] with the bytes of a row side by side, "
                f"got {host.dtype} {tuple(host.shape)} with strides {host.stride()}"
            )
        if rows.data_ptr() % ALIGNMENT or host.data_ptr() % ALIGNMENT or self.host_pitch % ALIGNMENT:
            raise ValueError(
                f"{where}: addresses {rows.data_ptr():#x} and {host.data_ptr():#x} and the {self.host_pitch} bytes "
                f"from one host row to the next must be multiples of {ALIGNMENT}"
            )
        if max(len(rows), len(host)) > MAX_ROWS:
            raise ValueError(
                f"{where}: {len(host)} host rows and {len(rows)} device rows; row ids are int32 and end at {MAX_ROWS}"
            )
        if rows.device.type == "cuda" and not host.is_pinned():
            raise ValueError(
                f"{where}: the kernels read host rows by address, so the host tensor must be pinned"
            )

    @property
    def row_bytes(self) -> int:
        return self.rows.shape[1]

    @property
    def host_pitch(self) -> int:
        """Bytes from one host row to the next; `row_bytes` where a page is one piece."""
        return self.host.stride(0)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Planes whose missed rows come by one launch: in a server those of one layer.

    index        the index group: first index of the hot tables
    layers       of the planes
    plane_table  int64 [planes, 4] on the CPU: address of device row 0, of host row 0, row_bytes, host_pitch
    """

    index: int
    planes: tuple[Plane, ...]
    layers: tuple[int, ...] = field(init=False)
    plane_table: torch.Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.planes:
            raise ValueError(f"a group of index group {self.index} without planes")
        layers = tuple(dict.fromkeys(plane.layer for plane in self.planes))
        if len({(plane.rows.device, len(plane.host)) for plane in self.planes}) > 1:
            raise ValueError(
                f"group of layers {layers}: planes with host rows and devices "
                f"{[(len(plane.host), str(plane.rows.device)) for plane in self.planes]}; they must have the same"
            )
        table = [[p.rows.data_ptr(), p.host.data_ptr(), p.row_bytes, p.host_pitch] for p in self.planes]
        object.__setattr__(self, "layers", layers)
        object.__setattr__(self, "plane_table", torch.tensor(table, dtype=torch.int64))

    @property
    def device(self) -> torch.device:
        return self.planes[0].rows.device

    @property
    def row_bytes(self) -> int:
        """Of a token in all planes."""
        return sum(plane.row_bytes for plane in self.planes)


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """All layers of a model.

    index_groups  of each index group its groups, in the model's order; the first holds the leader
    groups        the same groups, one after the other
    leaders       the first layer of each index group
    """

    index_groups: tuple[tuple[Group, ...], ...]
    groups: tuple[Group, ...] = field(init=False, repr=False)
    leaders: frozenset[int] = field(init=False)
    _of_layer: Mapping[int, Group] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        groups = tuple(group for same in self.index_groups for group in same)
        indices = [[group.index for group in same] for same in self.index_groups]
        if not groups or any(not same or set(same) != {at} for at, same in enumerate(indices)):
            raise ValueError(
                "index groups must be numbered 0, 1, 2, ... in order, and there must be one, each with a group; "
                f"got {indices}"
            )
        places = [(layer, group) for group in groups for layer in group.layers]
        if len(dict(places)) != len(places):
            raise ValueError(f"a layer belongs to one group; got {[group.layers for group in groups]}")
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "_of_layer", dict(places))
        object.__setattr__(self, "leaders", frozenset(same[0].layers[0] for same in self.index_groups))

    @classmethod
    def of(cls, groups: Iterable[Group]) -> RowLayout:
        """The layout of `groups`, those of an index group together. ValueError where they do not fit together."""
        by_index = itertools.groupby(groups, key=lambda group: group.index)
        return cls(tuple(tuple(same) for _, same in by_index))

    def of_layer(self, layer: int) -> Group:
        """The group that holds `layer`. KeyError where none does."""
        return self._of_layer[layer]

    @property
    def planes(self) -> list[Plane]:
        return [plane for group in self.groups for plane in group.planes]

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
