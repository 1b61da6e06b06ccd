"""Byte views, planes in both tiers, and the checks of the row layout."""

from __future__ import annotations

import pytest
import torch

from sglang_hisparse.tier.layout import Group, HotTables, Plane, RowLayout, byte_rows


@pytest.mark.parametrize(
    ("dtype", "shape", "row_bytes"),
    [
        (torch.bfloat16, (128, 1, 576), 1152),
        (torch.float8_e4m3fn, (128, 4, 64), 256),
        (torch.uint8, (128, 656), 656),
        (torch.float32, (128,), 4),
    ],
)
def test_byte_rows_is_a_view(dtype, shape, row_bytes):
    tensor = torch.zeros(shape, dtype=dtype)
    rows = byte_rows(tensor)
    assert rows.shape == (128, row_bytes) and rows.data_ptr() == tensor.data_ptr()
    rows[5] = 1
    assert tensor.view(torch.uint8).any()


def test_byte_rows_refuses_what_has_no_such_view():
    with pytest.raises(ValueError, match="contiguous"):
        byte_rows(torch.zeros(8, 4)[:, :2])


def plane(
    layer: int, rows: torch.Tensor | None = None, host: torch.Tensor | None = None, name: str = "kv"
) -> Plane:
    rows = byte_rows(torch.zeros(128, 16) if rows is None else rows)
    return Plane(
        layer, name, rows, torch.zeros(64, rows.shape[1], dtype=torch.uint8) if host is None else host
    )


def group(index: int, *layers: int) -> Group:
    return Group(index, tuple(plane(layer) for layer in layers))


def host_rows(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("rows", "host", "message"),
    [
        (torch.zeros(64), host_rows(64, 4), r"a row has 4 bytes.*positive multiple of 16"),
        (torch.zeros(64, 0), host_rows(64, 0), r"a row has 0 bytes"),
        (torch.zeros(64, 4), host_rows(64, 32), r"host must be uint8 \[host rows, 16\].*got torch.uint8 \(64, 32\)"),
        (torch.zeros(64, 4), host_rows(64 * 16), r"got torch.uint8 \(1024,\)"),
        (torch.zeros(64, 4), torch.zeros(64, 16), r"got torch.float32 \(64, 16\)"),
        (torch.zeros(64, 4), host_rows(16, 64).t(), r"side by side, got .* strides \(1, 64\)"),
        (torch.zeros(64, 4), host_rows(64, 24)[:, :16], r"24 bytes from one host row .* multiples of 16"),
        (torch.zeros(64, 4), host_rows(65 * 16)[8:-8].view(64, 16), r"must be multiples of 16"),
    ],
    ids=["bytes", "empty", "width", "dimensions", "dtype", "columns", "pitch", "address"],
)  # fmt: skip
def test_a_plane_refuses_rows_that_kernels_cannot_copy(
    rows: torch.Tensor, host: torch.Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"layer 7 plane 'scale': .*{message}"):
        plane(7, rows, host, "scale")


def test_device_rows_must_be_bytes_without_gaps() -> None:
    for rows in (torch.zeros(64, 16), host_rows(64, 32)[:, :16], host_rows(1024)):
        with pytest.raises(ValueError, match=r"rows must be contiguous uint8 \[rows, row_bytes\]"):
            Plane(0, "kv", rows, host_rows(64, 16))


def test_row_ids_that_do_not_fit_are_refused() -> None:
    rows = host_rows(64, 16)
    with pytest.raises(ValueError, match=r"2147483648 host rows and 64 device rows; .* end at 21474"):
        Plane(0, "kv", rows, torch.empty(2**31, 16, dtype=torch.uint8, device="meta"))


def test_a_group_tells_where_its_planes_are() -> None:
    wide = host_rows(64, 80)
    k, v = (
        plane(3, torch.zeros(128, 2, 8), wide[:, :64], "k"),
        plane(3, torch.zeros(128, 4), wide[:, 64:], "v"),
    )
    both = Group(1, (k, v))
    assert both.plane_table.tolist() == [
        [k.rows.data_ptr(), wide.data_ptr(), 64, 80],
        [v.rows.data_ptr(), wide.data_ptr() + 64, 16, 80],
    ]
    assert (both.layers, both.row_bytes, both.device.type) == ((3,), 80, "cpu")
    assert plane(4).host_pitch == 64


def test_planes_of_a_group_share_host_rows_and_device() -> None:
    with pytest.raises(ValueError, match="index group 2 without planes"):
        Group(2, ())
    with pytest.raises(ValueError, match=r"layers \(2, 3\).*\[\(64, 'cpu'\), \(128, 'cpu'\)\]"):
        Group(0, (plane(2), plane(3, host=host_rows(128, 64))))


def test_layout_maps_layers_to_groups() -> None:
    layout = RowLayout.of([group(0, 2), group(0, 3), group(0, 4, 5), group(1, 8)])
    assert [[g.layers for g in same] for same in layout.index_groups] == [[(2,), (3,), (4, 5)], [(8,)]]
    assert [g.layers for g in layout.groups] == [(2,), (3,), (4, 5), (8,)]
    assert [p.layer for p in layout.planes] == [2, 3, 4, 5, 8]
    assert layout.leaders == {2, 8}
    assert layout.of_layer(5) is layout.groups[2] and layout.of_layer(8).index == 1
    with pytest.raises(KeyError):
        layout.of_layer(6)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], r"there must be one, .* got \[\]"),
        ([group(1, 0)], r"numbered 0, 1, 2, .* got \[\[1\]\]"),
        ([group(0, 1), group(1, 2), group(0, 3)], r"in order.* got \[\[0\], \[1\], \[0\]\]"),
        ([group(0, 1), group(1, 1)], r"belongs to one group; got \[\(1,\), \(1,\)\]"),
        ([group(0, 1), group(0, 1, 2)], r"belongs to one group"),
    ],
    ids=["none", "number", "apart", "twice", "twice in a group"],
)
def test_layout_refuses_groups_that_do_not_fit_together(groups: list[Group], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RowLayout.of(groups)


def test_index_groups_are_not_mixed() -> None:
    for mixed in (((group(0, 1), group(1, 2)),), ((group(0, 1),), ())):
        with pytest.raises(ValueError, match="each with a group"):
            RowLayout(mixed)


def test_hot_tables_start_empty():
    tables = HotTables.create(pages=10, requests=7, groups=2, tables=3, hot_rows=5, device="cpu")
    assert tables.page_map.tolist() == [0] + [-1] * 10
    assert tables.hot_slot.shape == tables.hot_stamp.shape == (2, 3, 5)
    assert tables.hot_index.tolist() == [-1] * 7 and tables.hot_len.tolist() == [0] * 3
    assert tables.clock.shape == (2, 3) and tables.hot_rows.shape == (3, 5)
    assert all(
        t.dtype == torch.int32 for t in (tables.page_map, tables.hot_rows, tables.hot_stamp, tables.clock)
    )
