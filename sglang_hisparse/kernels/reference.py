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
    5 victims   the oldest entries e < hot_len that no slot of this step hits, as many as there are misses; ties by e.
                age = now - stamp, at most 1,023. The j-th miss takes the j-th of them in order of e
    6 fetch     the miss has a victim e                   hot_rows[e], slot and stamp set, row read (missed)
                it has none                               -1                       (overflow)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from sglang_hisparse.tier.layout import NOTHING, PAGE, Group, HotTables, RowLayout

if TYPE_CHECKING:
    from sglang_hisparse.kernels.resolve import MissList

RESIDENT, HOT, MISSED, OVERFLOW = range(4)
"""Positions in `stats`."""

MAX_AGE = 1023
"""Entries unused for this many steps or more count as equally old."""

HEAT_STRIDE = 16
"""Every 16th entry of a request's selection warms its page."""


def map_rows(page_map: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Slots -> device rows, where no host row is to be fetched.

    page_map  int32 [pages]: see `HotTables`
    slots     int32 or int64, any shape: below 0 stays as it is

    Returns the shape and dtype of `slots`. The row of a slot whose page is not in HBM is below 0, that of a slot
    outside the map -1.
    """
    page = slots >> 6
    inside = page < len(page_map)
    mapped = page_map[torch.where(inside, page, 0).clamp(min=0).long()].to(slots.dtype)
    rows = torch.where(inside, (mapped << 6) | (slots & 63), NOTHING)
    return torch.where(slots < 0, slots, rows)


def map_pages(page_map: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """A page table of logical pages, int32 of any shape -> the same of device pages.

    0, the padding page, for pages that are not in HBM or outside the map: nobody reads behind the length of a row,
    where the table holds what earlier requests left there.
    """
    inside = (table >= 0) & (table < len(page_map))
    return torch.where(inside, page_map[torch.where(inside, table, 0).long()].clamp(min=0), 0).to(table.dtype)


def set_entries(tables: HotTables, pages: Mapping[int, int], requests: Mapping[int, int]) -> None:
    """page_map[page] = pages[page]; hot_index[row] = requests[row]."""
    for table, values in ((tables.page_map, pages), (tables.hot_index, requests)):
        if values:
            at = torch.tensor(list(values.keys()), device=table.device)
            table[at] = torch.tensor(list(values.values()), dtype=table.dtype, device=table.device)


def set_lease(tables: HotTables, table: int, first: int, pages: Sequence[int]) -> None:
    """`pages`: the device pages of hot table `table` now. What its entries cache from row `first` on is forgotten in
    every group, and with `first` 0 its clock starts anew."""
    device = tables.hot_rows.device
    rows = torch.tensor(pages, dtype=torch.int32, device=device)[:, None] * PAGE
    rows = rows + torch.arange(PAGE, dtype=torch.int32, device=device)
    tables.hot_rows[table, : len(pages) * PAGE] = rows.view(-1)
    tables.hot_len[table] = len(pages) * PAGE
    tables.hot_slot[:, table, first:] = NOTHING
    tables.hot_stamp[:, table, first:] = 0
    if first == 0:
        tables.clock[:, table] = 0


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
    read_rows: bool = True,
    misses: MissList | None = None,
    heat: torch.Tensor | None = None,
) -> torch.Tensor:
    """Turn the slots one index group selected into device rows, fetching the rows of `group` that are missing.

    group             whose rows are fetched (the leader's, mostly); its index says which hot tables are used
    selection         int32 [Q * q, W]: slots, "none" where negative; duplicates allowed
    request           int32 or int64 [Q]: row of req_to_token, each at most once; negative for a padded row,
                      whose entries all become -1 and which touches no state
    rows_per_request  q, rows of one request that are resolved as one union
    out               int32 [Q * q, W] to write into, may be `selection` itself; allocated when None
    stats             int64 [4], added to: resident counts entries; hot, missed (fetched) and overflow count
                      the unique spilled slots of a request and sum to their number
    strict            raise RuntimeError, before anything is written, where an entry would overflow
    read_rows         False: missed rows hold garbage until `fetch_listed` brings them, or for good (the oracle of
                      benchmarks). So do those of other groups in any case
    misses            filled with what was missed, request by request
    heat              int32 [P + 1], added to: 1 for the page of every 16th entry of a request that selects something

    Returns `out`. Writes hot_slot, hot_stamp and clock of the group, and the device rows of entries taken.
    """
    union = (len(request), rows_per_request * selection.shape[1])
    slots = selection.reshape(union).long()
    rows, spilled = _map_pages(tables, slots, request)
    if heat is not None:
        warm = ((rows >= 0) | spilled)[:, ::HEAT_STRIDE]
        pages = slots[:, ::HEAT_STRIDE][warm] // PAGE
        heat.index_add_(0, pages, torch.ones_like(pages, dtype=torch.int32))
    counts = [int((rows >= 0).sum()), 0, 0, 0]
    if misses is not None:
        misses.count[: len(request)] = 0
    if spilled.any():
        _resolve_spilled(tables, group, slots, spilled, request, rows, counts, strict, read_rows, misses)
    result = rows.view(selection.shape).to(torch.int32)
    if stats is not None:
        stats += torch.tensor(counts, device=stats.device)
    return result if out is None else out.copy_(result)


def fetch_listed(group: Group, misses: MissList, batch: int) -> None:
    """Read the rows that `resolve` listed for requests 0 .. batch - 1, in the planes of any group of the index group.

    Writes device rows of those planes, and nothing else.
    """
    for request in range(batch):
        rows = misses.rows[request, : int(misses.count[request])].long()
        _read_host(group, rows[:, 0], rows[:, 1])


def copy_pages(layout: RowLayout, pairs: torch.Tensor, to_host: bool) -> None:
    """Copy whole pages between the tiers: every row of every plane of every group.

    pairs    int32 or int64 [n, 2] of (device page, host page); a pair with a negative page is skipped
    to_host  direction

    A destination page may appear once. Writes the host pool, or the KV buffers.
    """
    pairs = pairs[(pairs >= 0).all(dim=1)].long()
    device_rows, host_rows = (_page_rows(pairs[:, column]) for column in (0, 1))
    for group in layout.groups:
        if not to_host:
            _read_host(group, host_rows, device_rows)
            continue
        for plane in group.planes:
            rows = plane.rows.index_select(0, device_rows)
            plane.host.index_copy_(0, host_rows.to(plane.host.device), rows.to(plane.host.device))


def _map_pages(
    tables: HotTables, slots: torch.Tensor, request: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Step 1 for slots int64 [Q, n]: (device row or -1, whether it is spilled), both [Q, n]."""
    page = slots // PAGE
    valid = (slots >= 0) & (page < len(tables.page_map)) & (request.unsqueeze(1) >= 0)
    value = torch.where(valid, tables.page_map[torch.where(valid, page, 0)], NOTHING).long()
    return torch.where(value >= 0, value * PAGE + slots % PAGE, NOTHING), value < NOTHING


def _resolve_spilled(
    tables: HotTables,
    group: Group,
    slots: torch.Tensor,
    spilled: torch.Tensor,
    request: torch.Tensor,
    rows: torch.Tensor,
    counts: list[int],
    strict: bool,
    read_rows: bool,
    misses: MissList | None,
) -> None:
    """Steps 2 to 6 for all requests at once: fills `rows` [Q, n] where `spilled`, writes the group's tables.

    Below, u counts the unique (request, slot) pairs in order of first appearance, request by request;
    a counts the requests that lease hot rows and met a spilled slot.
    """
    span = len(tables.page_map) * PAGE
    which, at = torch.nonzero(spilled, as_tuple=True)
    unique, inverse = _first_appearance(which * span + slots[which, at])
    batch, slot = unique // span, unique % span  # [u]
    leased = tables.hot_index[request[batch].long()] >= 0
    if strict and not leased.all():
        row = int(request[batch[~leased][0]])
        raise RuntimeError(f"request row {row} selected spilled slots but leases no hot rows")
    counts[OVERFLOW] += int((~leased).sum())
    row_of = torch.full_like(slot, NOTHING)  # [u]
    if leased.any():
        users, owner = torch.unique(batch[leased], return_inverse=True)
        t = tables.hot_index[request[users].long()].long()  # [a]
        row_of[leased], fetched = _place(tables, group, t, owner, slot[leased], counts, strict)
        request_of, host_rows, device_rows = users[owner[fetched[0]]], *fetched[1:]
        if misses is not None:
            _list_misses(misses, request_of, host_rows, device_rows)
        if read_rows:
            _read_host(group, host_rows, device_rows)
    rows[which, at] = row_of[inverse]


def _place(
    tables: HotTables,
    group: Group,
    t: torch.Tensor,
    owner: torch.Tensor,
    slot: torch.Tensor,
    counts: list[int],
    strict: bool,
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Steps 3 to 6 but the bytes, for unique slots [u] of tables t[owner], ascending in owner.

    Returns the device row of each, or -1, and for the slots to fetch: index into u, host row, device row.
    """
    g, span = group.index, len(tables.page_map) * PAGE
    usable = tables.hot_len[t]  # [a]
    width = int(usable.max())
    live = torch.arange(width, device=t.device) < usable.unsqueeze(1)  # [a, width]
    hot_slot, stamp = tables.hot_slot[g, t, :width].long(), tables.hot_stamp[g, t, :width].long()
    now = tables.clock[g, t] + 1

    base = torch.arange(len(t), device=t.device).unsqueeze(1) * span
    entry = _find(torch.where(live & (hot_slot >= 0), base + hot_slot, NOTHING), owner * span + slot)
    hit = entry >= 0
    age = _wrap_int32(now.unsqueeze(1).long() - stamp).clamp(1, MAX_AGE)
    used = torch.zeros_like(live)
    used[owner[hit], entry[hit]] = True
    candidate = live & ~used
    oldest_first = torch.sort(torch.where(candidate, -age, 1), dim=1, stable=True).indices

    missed = torch.nonzero(~hit).flatten()
    misses = torch.bincount(owner[missed], minlength=len(t))
    nth = torch.arange(len(missed), device=t.device) - (misses.cumsum(0) - misses)[owner[missed]]
    victims = candidate.sum(dim=1)
    fetched = missed[nth < victims[owner[missed]]]
    if strict and len(fetched) < len(missed):
        short = int(torch.nonzero(misses > victims)[0])
        raise RuntimeError(
            f"index group {g}, hot table {int(t[short])}: {int((owner == short).sum())} spilled slots in one "
            f"step ({int(misses[short])} missing) but {int(usable[short])} hot rows "
            f"({int(victims[short])} free to take)"
        )
    # The victims of a table, as many as it fetches, in order of entries.
    taken = torch.minimum(misses, victims)
    rank = torch.arange(width, device=t.device).expand(len(t), width)
    in_order = torch.sort(torch.where(rank < taken.unsqueeze(1), oldest_first, width), dim=1).values
    entry[fetched] = in_order[owner[fetched], nth[nth < victims[owner[missed]]]]

    found = hit.clone()
    found[fetched] = True
    tables.clock[g, t] = now
    tables.hot_stamp[g, t[owner[found]], entry[found]] = now[owner[found]]
    tables.hot_slot[g, t[owner[fetched]], entry[fetched]] = slot[fetched].to(torch.int32)
    rows = torch.full_like(slot, NOTHING)
    rows[found] = tables.hot_rows[t[owner[found]], entry[found]].long()
    host_page = NOTHING - 1 - tables.page_map[slot[fetched] // PAGE].long()
    host_rows = host_page * PAGE + slot[fetched] % PAGE

    counts[HOT] += len(slot) - len(missed)
    counts[MISSED] += len(fetched)
    counts[OVERFLOW] += len(missed) - len(fetched)
    return rows, (fetched, host_rows, rows[fetched])


def _list_misses(misses: MissList, batch: torch.Tensor, host: torch.Tensor, device: torch.Tensor) -> None:
    """Put rows [n] of requests `batch` [n], ascending, into the list."""
    count = torch.bincount(batch, minlength=len(misses.count))
    position = torch.arange(len(batch), device=batch.device) - (count.cumsum(0) - count)[batch]
    misses.rows[batch, position] = torch.stack((host, device), dim=1).to(torch.int32)
    misses.count.add_(count)


def _wrap_int32(values: torch.Tensor) -> torch.Tensor:
    return (values + 2**31) % 2**32 - 2**31


def _first_appearance(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(unique keys in order of first appearance, index into them of every given key)."""
    values, inverse = torch.unique(keys, return_inverse=True)
    position = torch.arange(len(keys), device=keys.device)
    first = torch.full_like(values, len(keys)).scatter_reduce_(0, inverse, position, "amin")
    order = torch.argsort(first)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return values[order], rank[inverse]


def _find(cached: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Lowest column of `cached` [a, width] that holds each of the unique `keys` [u], or -1."""
    width = cached.shape[1]
    ordered, order = torch.sort(keys)
    at = torch.searchsorted(ordered, cached).clamp_(max=len(keys) - 1)
    match = torch.nonzero((ordered[at] == cached).flatten()).flatten()
    column = torch.full_like(keys, width)
    column.scatter_reduce_(0, order[at.flatten()[match]], match % max(width, 1), "amin")
    return torch.where(column < width, column, NOTHING)


def _page_rows(pages: torch.Tensor) -> torch.Tensor:
    return (pages.unsqueeze(1) * PAGE + torch.arange(PAGE, device=pages.device)).flatten()


def _read_host(group: Group, host_rows: torch.Tensor, device_rows: torch.Tensor) -> None:
    """Copy host rows [n] to device rows [n] of all planes of the group."""
    for plane in group.planes:
        rows = plane.host.index_select(0, host_rows.to(plane.host.device)).to(group.device)
        plane.rows.index_copy_(0, device_rows, rows)
