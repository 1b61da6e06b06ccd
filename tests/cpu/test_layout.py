"""Byte views, host offsets and the checks of the row layout."""

from __future__ import annotations

import pytest
import torch

from sglang_hisparse.tier.layout import Group, HotTables, RowLayout, byte_rows, plan_planes


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


def test_planes_stand_side_by_side():
    buffers = [
        (3, "k", torch.zeros(64, 2, 8)),
        (3, "v", torch.zeros(64, 4)),
        (4, "k", torch.zeros(64, 656).byte()),
    ]
    planes, host_row_bytes = plan_planes(buffers)
    assert [(p.layer, p.name, p.host_offset, p.row_bytes) for p in planes] == [
        (3, "k", 0, 64),
        (3, "v", 64, 16),
        (4, "k", 80, 656),
    ]
    assert host_row_bytes == 736


def test_a_row_that_is_not_whole_chunks_is_refused_by_name():
    with pytest.raises(ValueError, match=r"layer 7 plane 'scale'.*4 bytes"):
        plan_planes([(7, "scale", torch.zeros(64))])


def group(index: int, *layers: int) -> Group:
    planes, host_row_bytes = plan_planes((layer, "latent", torch.zeros(64, 16)) for layer in layers)
    return Group(index, layers, planes, torch.zeros(64, host_row_bytes, dtype=torch.uint8))


def test_layout_maps_layers_to_groups():
    layout = RowLayout.of([group(0, 2, 3), group(1, 5)])
    assert dict(layout.layer_to_group) == {2: 0, 3: 0, 5: 1}
    assert layout.plane_table.shape == (3, 4) and layout.groups[0].plane_table.shape == (2, 4)
    assert layout.plane_table[1].tolist() == [layout.groups[0].planes[1].rows.data_ptr(), 64, 64, 3]
    assert layout.group_table.tolist() == [
        [layout.groups[0].host.data_ptr(), 128, 0, 2],
        [layout.groups[1].host.data_ptr(), 64, 2, 1],
    ]


def test_planes_come_in_the_order_of_the_layers():
    for order in ((3, 2), (2, 3, 2), (2, 2)):
        planes, host_row_bytes = plan_planes((layer, "latent", torch.zeros(64, 16)) for layer in order)
        with pytest.raises(ValueError, match=r"every layer of \(2, 3\) must have some, in this order"):
            Group(0, (2, 3), planes, torch.zeros(64, host_row_bytes, dtype=torch.uint8))


def test_row_ids_that_do_not_fit_are_refused():
    planes, width = plan_planes([(0, "latent", torch.zeros(64, 16))])
    many = torch.zeros(1, width, dtype=torch.uint8).expand(2**31, width)
    with pytest.raises(ValueError, match="must be contiguous"):
        Group(0, (0,), planes, many)
    with pytest.raises(ValueError, match=r"2147483648 host rows .* end at 21474"):
        Group(0, (0,), planes, torch.empty(2**31, width, dtype=torch.uint8, device="meta"))


def test_an_index_group_is_stored_in_row_groups():
    layout = RowLayout.of([group(0, 2), group(0, 3), group(0, 4, 5), group(1, 8)])
    assert [[g.layers for g in same] for same in layout.index_groups] == [[(2,), (3,), (4, 5)], [(8,)]]
    assert layout.leaders == {2, 8}
    assert layout.of_layer(5) is layout.groups[2] and layout.of_layer(8).index == 1
    with pytest.raises(KeyError):
        layout.of_layer(6)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], r"there must be one; got \[\]"),
        ([group(1, 0)], r"numbered 0, 1, 2, .* got \[1\]"),
        ([group(0, 1), group(1, 2), group(0, 3)], r"the row groups of each together.* got \[0, 1, 0\]"),
        ([group(0, 1), group(1, 1)], r"belongs to one row group; got \[\(1,\), \(1,\)\]"),
        ([group(0, 1), group(0, 1, 2)], r"belongs to one row group"),
    ],
    ids=["none", "number", "apart", "twice", "twice in a group"],
)
def test_layout_refuses_groups_that_do_not_fit_together(groups, message):
    with pytest.raises(ValueError, match=message):
        RowLayout.of(groups)


def test_group_refuses_a_host_row_that_is_too_short():
    planes, host_row_bytes = plan_planes([(0, "k", torch.zeros(64, 16)), (0, "v", torch.zeros(64, 16))])
    with pytest.raises(ValueError, match=r"plane 'v' ends at byte 128 of a host row of 112"):
        Group(0, (0,), planes, torch.zeros(64, host_row_bytes - 16, dtype=torch.uint8))


def test_hot_tables_start_empty():
    tables = HotTables.create(pages=10, requests=7, groups=2, tables=3, hot_rows=5, device="cpu")
    assert tables.page_map.tolist() == [0] + [-1] * 10
    assert tables.hot_slot.shape == tables.hot_stamp.shape == (2, 3, 5)
    assert tables.hot_index.tolist() == [-1] * 7 and tables.hot_len.tolist() == [0] * 3
    assert tables.clock.shape == (2, 3) and tables.hot_rows.shape == (3, 5)
    assert all(
        t.dtype == torch.int32 for t in (tables.page_map, tables.hot_rows, tables.hot_stamp, tables.clock)
    )
