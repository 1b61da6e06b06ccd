"""The semantics of the kernels, in torch. The CUDA kernels must equal this bit for bit, tables included.

Resolve, for one request whose q rows of a step are one union (csrc/hisparse/resolve.cuh has the same steps):

    step        state                                     entry becomes
    1 map       slot outside the map, or page nowhere     -1
                page has device page d                    d * 64 + offset          (resident)
    2 union     page has host page h                      one spilled slot, in order of first appearance
                no spilled slot                           done: no hot table is read or written
                hot_index[request] < 0                    -1                       (overflow)
    3 clock     clock += 1 = now
    4 hit       an entry e < hot_len caches the slot      hot_rows[e], stamp = now (hot)
    5 victims   entries e < hot_len with stamp != now, by (stamp, e): the j-th miss takes the j-th victim
    6 fetch     the miss has a victim e                   hot_rows[e], slot and stamp set, row read (missed)
                it has none                               -1                       (overflow)
"""

from __future__ import annotations

import torch

from sglang_hisparse.tier.layout import NOTHING, PAGE, Group, HotTables, RowLayout

RESIDENT, HOT, MISSED, OVERFLOW = range(4)
"""Positions in `stats`."""


def expand_blocks(
    blocks: torch.Tensor, unit: int, req_to_token: torch.Tensor, request: torch.Tensor, seq_len: torch.Tensor
) -> torch.Tensor:
    """Selected blocks of positions -> slots, order kept.

    blocks        int32 [R, W]: entry b selects positions b * unit .. b * unit + unit - 1; b < 0 is "none"
    unit          positions of a block: 1 (entries are positions), 4, 64 or 128
    req_to_token  int32 [requests, context]: slot of every position, owned by SGLang
    request       int [R]: row of req_to_token, negative for a padded row
    seq_len       int [R]: positions at or beyond it are "none"

    Returns int32 [R, W * unit], -1 for "none". Any device; no host synchronisation, so CUDA-graph capturable.
    """
    context = req_to_token.shape[1]
    within = torch.arange(unit, device=blocks.device)
    position = (blocks.long().unsqueeze(-1) * unit + within).flatten(1)
    limit = seq_len.long().clamp(max=context).unsqueeze(1)
    valid = (position >= 0) & (position < limit) & (request.unsqueeze(1) >= 0)
    row = request.long().clamp(min=0).unsqueeze(1)
    slots = req_to_token[row, torch.where(valid, position, 0)]
    return torch.where(valid, slots, NOTHING).to(torch.int32)


def resolve(
    tables: HotTables,
    group: Group,
    selection: torch.Tensor,
    request: torch.Tensor,
    rows_per_request: int,
    out: torch.Tensor | None = None,
    stats: torch.Tensor | None = None,
    *,
    strict: bool = False,
) -> torch.Tensor:
    """Turn the slots one index group selected into device rows, fetching the rows that are missing.

    selection         int32 [Q * q, W]: slots, "none" where negative; duplicates allowed
    request           int32 or int64 [Q]: row of req_to_token, each at most once; negative for a padded row,
                      whose entries all become -1 and which touches no state
    rows_per_request  q, rows of one request that are resolved as one union
    out               int32 [Q * q, W] to write into, may be `selection` itself; allocated when None
    stats             int64 [4], added to: resident counts entries; hot, missed (fetched) and overflow count
                      the unique spilled slots of a request and sum to their number
    strict            raise RuntimeError, before anything is written, where an entry would overflow

    Returns `out`. Writes hot_slot, hot_stamp and clock of the group, and the device rows of entries taken.
    """
    resident_rows, spilled = _map_pages(tables, selection, request.repeat_interleave(rows_per_request))
    counts = [0, 0, 0, 0]
    counts[RESIDENT] = int((resident_rows >= 0).sum())
    union = (len(request), rows_per_request * selection.shape[1])
    result, spilled, slots = resident_rows.view(union), spilled.view(union), selection.reshape(union).long()
    for i in torch.nonzero(spilled.any(dim=1)).flatten().tolist():
        where = torch.nonzero(spilled[i]).flatten()
        unique, inverse = _first_appearance(slots[i, where])
        rows = _resolve_spilled(tables, group, unique, int(request[i]), counts, strict)
        result[i, where] = rows[inverse]
    result = result.view(selection.shape).to(torch.int32)
    if stats is not None:
        stats += torch.tensor(counts, device=stats.device)
    return result if out is None else out.copy_(result)


def copy_pages(layout: RowLayout, pairs: torch.Tensor, to_host: bool) -> None:
    """Copy whole pages between the tiers: every row of every plane of every group.

    pairs    int32 or int64 [n, 2] of (device page, host page); a pair with a negative page is skipped
    to_host  direction

    A destination page may appear once. Writes the host pool, or the KV buffers.
    """
    pairs = pairs[(pairs >= 0).all(dim=1)].long()
    device_rows, host_rows = (_page_rows(pairs[:, column]) for column in (0, 1))
    for group in layout.groups:
        on_host = host_rows.to(group.host.device)
        if to_host:
            for plane in group.planes:
                end = plane.host_offset + plane.row_bytes
                group.host[on_host, plane.host_offset : end] = plane.rows[device_rows].to(group.host.device)
        else:
            _scatter(group, group.host[on_host], device_rows)


def _map_pages(
    tables: HotTables, selection: torch.Tensor, request: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Step 1: (int64 device row or -1, bool spilled), both like `selection`; `request` has one a row."""
    slot = selection.long()
    page = slot // PAGE
    valid = (slot >= 0) & (page < len(tables.page_map)) & (request.unsqueeze(1) >= 0)
    value = torch.where(valid, tables.page_map[torch.where(valid, page, 0)], NOTHING).long()
    return torch.where(value >= 0, value * PAGE + slot % PAGE, NOTHING), value < NOTHING


def _first_appearance(slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(unique slots in order of first appearance, index into them of every given slot)."""
    values, inverse = torch.unique(slots, return_inverse=True)
    position = torch.arange(len(slots), device=slots.device)
    first = torch.full_like(values, len(slots)).scatter_reduce_(0, inverse, position, "amin")
    order = torch.argsort(first)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return values[order], rank[inverse]


def _resolve_spilled(
    tables: HotTables, group: Group, slots: torch.Tensor, request: int, counts: list[int], strict: bool
) -> torch.Tensor:
    """Steps 2 to 6 for the unique spilled slots of one request: int64 device row of each, or -1."""
    rows = torch.full_like(slots, NOTHING)
    t = int(tables.hot_index[request])
    if t < 0:
        if strict:
            raise RuntimeError(
                f"request row {request} selected {len(slots)} spilled slots but leases no hot rows"
            )
        counts[OVERFLOW] += len(slots)
        return rows
    usable = int(tables.hot_len[t])
    hot_slot, hot_stamp = tables.hot_slot[group.index, t, :usable], tables.hot_stamp[group.index, t, :usable]
    hot_rows = tables.hot_rows[t, :usable].long()
    now = int(tables.clock[group.index, t]) + 1

    entry = _find_entries(hot_slot, slots)
    hit = entry >= 0
    missed = torch.nonzero(~hit).flatten()
    evictable = hot_stamp != now
    evictable[entry[hit]] = False
    oldest = torch.sort(hot_stamp, stable=True).indices
    victims = oldest[evictable[oldest]][: len(missed)]
    if strict and len(victims) < len(missed):
        raise RuntimeError(
            f"index group {group.index}, request row {request}: {len(slots)} spilled slots in one step "
            f"({len(missed)} missing) but {usable} hot rows ({len(victims)} free to take)"
        )

    tables.clock[group.index, t] = now
    hot_stamp[entry[hit]] = now
    rows[hit] = hot_rows[entry[hit]]
    fetched = missed[: len(victims)]
    hot_slot[victims] = slots[fetched].to(torch.int32)
    hot_stamp[victims] = now
    rows[fetched] = hot_rows[victims]
    host_page = NOTHING - 1 - tables.page_map[slots[fetched] // PAGE].long()
    host_rows = host_page * PAGE + slots[fetched] % PAGE
    _scatter(group, group.host[host_rows.to(group.host.device)], rows[fetched])

    counts[HOT] += len(slots) - len(missed)
    counts[MISSED] += len(victims)
    counts[OVERFLOW] += len(missed) - len(victims)
    return rows


def _find_entries(hot_slot: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Lowest entry that caches each of the unique `slots`, or -1."""
    ordered, order = torch.sort(slots)
    at = torch.searchsorted(ordered, hot_slot.long()).clamp_(max=len(slots) - 1)
    cached = torch.nonzero(ordered[at] == hot_slot).flatten()
    entry = torch.full_like(slots, len(hot_slot)).scatter_reduce_(0, order[at[cached]], cached, "amin")
    return torch.where(entry < len(hot_slot), entry, NOTHING)


def _page_rows(pages: torch.Tensor) -> torch.Tensor:
    return (pages.unsqueeze(1) * PAGE + torch.arange(PAGE, device=pages.device)).flatten()


def _scatter(group: Group, host_rows: torch.Tensor, device_rows: torch.Tensor) -> None:
    """Write gathered host rows [n, host_row_bytes] to `device_rows` [n] of every plane of the group."""
    host_rows = host_rows.to(group.device)
    for plane in group.planes:
        plane.rows[device_rows] = host_rows[:, plane.host_offset : plane.host_offset + plane.row_bytes]
