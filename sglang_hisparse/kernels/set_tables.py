"""Changes of page map and leases on the device of the pool: CPU -> reference, CUDA -> `csrc/map_rows.cuh`.

On CUDA what is set travels in the parameters of a launch, so that nothing is uploaded and nothing has to be kept until
the kernel has run. On the current stream, without a host synchronisation; not for graphs, which would set the same for
ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from sglang_hisparse.kernels import build, reference
from sglang_hisparse.tier.layout import HotTables


def set_entries(tables: HotTables, pages: Mapping[int, int], requests: Mapping[int, int]) -> None:
    """Page map values by logical page, hot tables by request row; see `reference.set_entries`. One launch for 480
    entries."""
    if tables.page_map.device.type != "cuda":
        reference.set_entries(tables, pages, requests)
        return
    words = torch.tensor([*pages, *requests, *pages.values(), *requests.values()], dtype=torch.int32)
    build.kernel("map_rows", "set_entries")(tables.page_map, tables.hot_index, words, len(pages))


def set_lease(tables: HotTables, table: int, first: int, pages: Sequence[int]) -> None:
    """The device pages of a hot table; see `reference.set_lease`. One launch. RuntimeError for more than 512 pages."""
    if tables.page_map.device.type != "cuda":
        reference.set_lease(tables, table, first, pages)
        return
    build.kernel("map_rows", "set_lease")(
        tables.hot_rows, tables.hot_len, tables.hot_slot, tables.hot_stamp, tables.clock, table, first,
        torch.tensor(pages, dtype=torch.int32),
    )  # fmt: skip
