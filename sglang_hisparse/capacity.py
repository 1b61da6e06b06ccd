"""Sizing arithmetic of both tiers: one function for the server's start-up and for planning.

    device pages D    what the KV budget holds after index keys of every logical page and the tables
    host pages   H    host_pool_gib / bytes of one page, all layers
    logical      L    D, or D + H - K where the host tier is larger than the hot rows K that it needs

A request of S pages runs resident (S pages of HBM) or tiered (at the least K hot + 2 open pages of HBM, and one
more that it starts next). Beside all of them HBM holds, once, what the last one's prefill needs: its whole prompt
where prefill reads HBM only, else a chunk. policy/admission.py charges the same.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from sglang_hisparse.config import OPEN_PAGES, PAGE

GIB = 1 << 30
MOST_HOT_ROWS = 32768

HOT_ROWS_OF_TOP_K = 4
"""Default of `hot_rows`, in top-k: as far as miss rates are published. With more requests than that leaves room for,
hot rows are fewer, and shared out evenly."""


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Bytes of one token, all layers of one rank together.

    kv: rows in HBM. host: the same rows in the host pool (rows padded to 16 B). index: index keys or Quest
    bounds, which stay in HBM for every logical token.
    """

    kv: float
    host: float
    index: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """Result of `size_pools`; pages of 64 tokens unless the name says otherwise."""

    device_pages: int
    host_pages: int
    logical_pages: int
    hot_min_pages: int
    hot_max_pages: int
    hot_tables: int
    table_bytes: int
    resident_requests: int
    tiered_requests: int
    context_length: int
    token_bytes: TokenBytes
    request_slots: int = 0
    """most requests that run at once (--max-running-requests)"""
    pools: int = 1
    """host pools of this size on this host: one a rank"""
    beside_pages: int = 0
    """device pages that one prefill needs beside the smallest footprints of all requests"""

    @property
    def device_tokens(self) -> int:
        return self.device_pages * PAGE

    @property
    def logical_tokens(self) -> int:
        return self.logical_pages * PAGE

    @property
    def host_gib(self) -> float:
        return self.host_pages * PAGE * self.token_bytes.host / GIB

    @property
    def device_gib(self) -> float:
        """KV and index keys of the device pool, on one rank."""
        token = self.token_bytes
        return (self.device_pages * token.kv + self.logical_pages * token.index) * PAGE / GIB

    @property
    def binding(self) -> str:
        """What to enlarge first for more requests of `context_length`: a key of `BINDING`."""
        return binding_resource(
            self.device_pages,
            self.host_pages,
            self.hot_min_pages,
            self.context_length,
            self.request_slots,
            self.beside_pages,
        )

    def as_dict(self) -> dict[str, Any]:
        """For /server_info. `host_gib` is one rank's pool, `host_gib_physical` all pools of this host."""
        return {
            **asdict(self),
            "device_tokens": self.device_tokens,
            "logical_tokens": self.logical_tokens,
            "device_gib": round(self.device_gib, 4),
            "host_gib": round(self.host_gib, 4),
            "host_gib_physical": round(self.host_gib * self.pools, 4),
            "binding": self.binding,
        }


def ceil_pages(tokens: int) -> int:
    """Pages that hold `tokens`."""
    return -(-tokens // PAGE)


def hot_pages(top_k: int, hot_rows: int | None) -> tuple[int, int]:
    """(least, most) hot pages of a request: one step's selection always fits; most is `hot_rows`, clamped."""
    least = ceil_pages(top_k)
    wanted = ceil_pages(HOT_ROWS_OF_TOP_K * top_k if hot_rows is None else hot_rows)
    return least, min(max(wanted, least), MOST_HOT_ROWS // PAGE)


def table_bytes(groups: int, tables: int, hot_max: int, logical_pages: int) -> int:
    """HBM of page map and hot tables: 4 B a page; slot and stamp, 4 B each, a row, group and table."""
    return 4 * (logical_pages + 1) + tables * hot_max * PAGE * (8 * groups + 4)


def request_bounds(
    device: int, host: int, hot_min: int, context_length: int, beside: int = 0
) -> tuple[int, int] | None:
    """Requests of `context_length` tokens (by their smallest footprints in HBM, by the bytes of both pools).

    None where the tier has nothing to give: no host pool, or requests as small as their smallest footprint.
    """
    pages, least = max(1, ceil_pages(context_length)), hot_min + OPEN_PAGES + 1
    if host == 0 or pages <= least:
        return None
    return max(0, device - beside) // least, (device + host) // (pages + hot_min)


def requests_that_fit(
    device: int, host: int, hot_min: int, context_length: int, beside: int = 0
) -> tuple[int, int]:
    """Requests of `context_length` tokens that run at once: (all resident, with the tier).

    `beside`: device pages that one prefill needs on top of the smallest footprints.
    """
    resident = device // max(1, ceil_pages(context_length))
    bounds = request_bounds(device, host, hot_min, context_length, beside)
    return resident, max(resident, min(bounds)) if bounds else resident


BINDING = {
    "device_pool": "the device pool (--mem-fraction-static, --max-total-tokens)",
    "host_pool": "the host pool (host_pool_gib)",
    "request_slots": "request slots (--max-running-requests)",
}
"""Resources that bound the number of requests, with the options that enlarge them."""


def binding_resource(
    device: int, host: int, hot_min: int, context_length: int, slots: int = 0, beside: int = 0
) -> str:
    """Key of `BINDING`: what keeps one more request of `context_length` from running; `slots` 0 is no bound.

    device_pool where HBM alone decides, or where the smallest footprints fill it; host_pool where both tiers
    together are full first.
    """
    if 0 < slots < requests_that_fit(device, host, hot_min, context_length, beside)[1]:
        return "request_slots"
    bounds = request_bounds(device, host, hot_min, context_length, beside)
    return "host_pool" if bounds and bounds[1] < bounds[0] else "device_pool"


def size_pools(
    *,
    budget_bytes: int,
    most_device_tokens: int | None,
    host_pool_gib: float,
    token: TokenBytes,
    groups: int,
    top_k: int,
    hot_rows: int | None,
    most_requests: int,
    context_length: int,
    chunk_tokens: int = 0,
    prefill_reads_host: bool = True,
    pools: int = 1,
) -> Capacity:
    """Split `budget_bytes` of HBM (stock's KV budget) and `host_pool_gib`. ValueError with a value that works.

    `most_device_tokens` is --max-total-tokens; `most_requests` bounds the hot tables; `chunk_tokens` is what one
    forward of a prefill that reads the host writes at once; where prefill does not read the host it is 0, and the
    whole prompt has to fit HBM (a request counts as `context_length` tokens of prompt). `pools` counts the ranks of
    this host, each with a host pool of its own.
    """
    hot_min, hot_max = hot_pages(top_k, hot_rows)
    host = int(host_pool_gib * GIB / (PAGE * token.host))
    if 0 < host <= hot_min or (host == 0 and host_pool_gib > 0):
        smallest = math.ceil((hot_min + 1) * PAGE * token.host / GIB * 1e4) / 1e4
        raise ValueError(
            f"host_pool_gib {host_pool_gib:g} holds {host} pages, which is not more than the {hot_min} pages of hot "
            f"rows that its use costs (top-k {top_k}); the smallest that helps: {smallest:.4f}, or 0 for no host tier"
        )
    beyond = max(0, host - hot_min)
    tables = most_requests if host else 0
    fixed = table_bytes(groups, tables, hot_max, beyond) + beyond * PAGE * token.index
    device = int((budget_bytes - fixed) / (PAGE * (token.kv + token.index)))
    if most_device_tokens is not None:
        device = min(device, most_device_tokens // PAGE)
    smallest_device = hot_min + OPEN_PAGES + 2 + ceil_pages(chunk_tokens) if host else 1
    if device < smallest_device:
        raise ValueError(
            f"the KV budget of {budget_bytes / GIB:.2f} GiB holds {max(device, 0) * PAGE} device tokens beside "
            f"{fixed / GIB:.2f} GiB of index keys and tables for host_pool_gib {host_pool_gib:g}; at least "
            f"{smallest_device * PAGE} are needed. Lower host_pool_gib, or raise --mem-fraction-static or "
            f"--max-total-tokens" + (", or lower --chunked-prefill-size" if chunk_tokens else "")
        )
    tables = min(tables, device // 2 + 1)  # who leases holds a hot page and an open one
    beside = ceil_pages(chunk_tokens)
    if not prefill_reads_host:
        beside = max(0, ceil_pages(context_length) - hot_min - OPEN_PAGES - 1)
    resident, tiered = requests_that_fit(device, host, hot_min, context_length, beside)
    return Capacity(
        device_pages=device,
        host_pages=host,
        logical_pages=device + beyond,
        hot_min_pages=hot_min,
        hot_max_pages=hot_max,
        hot_tables=tables,
        table_bytes=table_bytes(groups, tables, hot_max, device + beyond),
        resident_requests=resident,
        tiered_requests=tiered,
        context_length=context_length,
        token_bytes=token,
        request_slots=most_requests,
        pools=pools,
        beside_pages=beside,
    )


def capacity_block(capacity: Capacity) -> list[str]:
    """The start-up block (rank 0): log lines that all start with "HiSparse capacity: ", so that one grep shows it."""
    token = capacity.token_bytes
    lines = [
        f"device pool {capacity.device_gib:.2f} GiB: {capacity.device_tokens} tokens in {capacity.device_pages} pages; "
        f"logical {capacity.logical_tokens} tokens",
        f"host pool {capacity.host_gib:.2f} GiB logical, {capacity.host_gib * capacity.pools:.2f} GiB physical "
        f"({capacity.pools} on this host, {capacity.host_pages} pages each)",
        f"a token takes {token.kv:g} B of KV and {token.index:g} B of index keys in HBM, {token.host:g} B on the host; "
        f"a request leases {capacity.hot_min_pages * PAGE} to {capacity.hot_max_pages * PAGE} hot rows; tables "
        f"{capacity.table_bytes / GIB:.2f} GiB",
        f"requests of {capacity.context_length} tokens: {capacity.resident_requests} without the tier, "
        f"{capacity.tiered_requests} with it; limited by {BINDING[capacity.binding]}",
    ]
    return [f"HiSparse capacity: {line}" for line in lines]
