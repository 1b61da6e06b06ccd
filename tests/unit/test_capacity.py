"""Sizing: golden numbers worked out by hand, what must grow with what, and refusals whose advice works."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from sglang_hisparse.capacity import (
    GIB,
    Capacity,
    TokenBytes,
    binding_resource,
    capacity_block,
    ceil_pages,
    hot_pages,
    requests_that_fit,
    size_pools,
    table_bytes,
)
from sglang_hisparse.config import OPEN_PAGES, PAGE
from sglang_hisparse.policy.admission import chunk_reserve, decode_pages, prefill_pages

ROUND = TokenBytes(kv=1000, host=1008, index=100)


def sized(**given: Any) -> Capacity:
    values: dict[str, Any] = {
        "budget_bytes": GIB,
        "most_device_tokens": None,
        "host_pool_gib": 2,
        "token": ROUND,
        "groups": 10,
        "top_k": 2048,
        "hot_rows": None,
        "most_requests": 16,
        "context_length": 32768,
    }
    return size_pools(**(values | given))


def test_golden_numbers() -> None:
    """By hand, from 2**30 B of HBM and 2**31 B of host memory:

    host        2147483648 / (64 x 1008) = 33288.1
    hot         2048 / 64 = 32 to 128; beyond the device: 33288 - 32 = 33256 pages
    fixed       map 4 x 33257, hot tables 16 x 8192 x (8 x 10 + 4), index keys 33256 x 6400 = 223981476
    device      (1073741824 - 223981476) / (64 x 1100) = 12070.5
    requests    32768 / 64 = 512 pages: 12070 / 512 = 23; 12070 / 34 = 355 and (12070 + 33288) / 544 = 83
    """
    capacity = sized()
    assert (capacity.device_pages, capacity.host_pages, capacity.logical_pages) == (12070, 33288, 45326)
    assert (capacity.hot_min_pages, capacity.hot_max_pages, capacity.hot_tables) == (32, 128, 16)
    assert capacity.table_bytes == 4 * 45327 + 16 * 8192 * 84
    assert (capacity.resident_requests, capacity.tiered_requests) == (23, 83)
    assert (capacity.device_tokens, capacity.logical_tokens) == (772480, 2900864)
    assert capacity.host_gib == pytest.approx(2, rel=1e-4)


def test_without_a_host_pool_nothing_is_set_aside() -> None:
    """(2**30 - 4) / (64 x 1100) = 15252.0"""
    capacity = sized(host_pool_gib=0)
    assert capacity.device_pages == capacity.logical_pages == 15252
    assert (capacity.host_pages, capacity.hot_tables) == (0, 0)
    assert capacity.resident_requests == capacity.tiered_requests == 29


def test_both_numbers_of_a_real_model() -> None:
    """DeepSeek-V3.2 on one of 8 ranks: 61 layers of 656 B, 61 of 132 B index keys; 40 GiB of HBM, 128 GiB of host.

    host     137438953472 / (64 x 40016) = 53665.4; device (42949672960 - 258164232 - 27638586624) / (64 x 48068)
    """
    token = TokenBytes(kv=61 * 656, host=61 * 656, index=61 * 132)
    capacity = sized(
        budget_bytes=40 * GIB,
        host_pool_gib=128,
        token=token,
        groups=61,
        most_requests=64,
        context_length=131072,
    )
    assert capacity.host_pages == 53665
    beyond = 53665 - 32
    fixed = 4 * (beyond + 1) + 64 * 8192 * (8 * 61 + 4) + beyond * 64 * 8052
    assert capacity.device_pages == (40 * GIB - fixed) // (64 * 48068) == 4893
    assert (capacity.resident_requests, capacity.tiered_requests) == (2, 28)


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (64, 1), (65, 2), (128, 2)])
def test_ceil_pages(tokens: int, pages: int) -> None:
    assert ceil_pages(tokens) == pages


@pytest.mark.parametrize(
    ("top_k", "hot_rows", "pages"),
    [
        (2048, None, (32, 128)),
        (2048, 4096, (32, 64)),
        (2048, 6144, (32, 96)),
        (2048, 100, (32, 32)),  # one step's selection always fits
        (2000, None, (32, 125)),
        (1, None, (1, 1)),
        (2048, 1 << 20, (32, 512)),  # what the kernel takes
    ],
)
def test_hot_pages(top_k: int, hot_rows: int | None, pages: tuple[int, int]) -> None:
    assert hot_pages(top_k, hot_rows) == pages


def test_table_bytes_are_what_the_tables_take() -> None:
    """Page map [P + 1]; hot_rows [T, H]; hot_slot and hot_stamp [G, T, H]: int32."""
    groups, tables, hot_max, pages = 3, 5, 2, 100
    rows = tables * hot_max * PAGE
    assert table_bytes(groups, tables, hot_max, pages) == 4 * (101 + rows + 2 * groups * rows)


def test_the_parts_fit_the_budget() -> None:
    for budget, host, requests in itertools.product(
        [4 * GIB, 7 * GIB, 40 * GIB], [0, 1, 2, 16], [1, 16, 256]
    ):
        capacity = sized(budget_bytes=budget, host_pool_gib=host, most_requests=requests)
        keys = capacity.logical_pages * PAGE * ROUND.index
        used = capacity.device_pages * PAGE * ROUND.kv + keys + capacity.table_bytes
        assert used <= budget + 4 * capacity.device_pages, "but for the map of the device pages"
        assert capacity.host_gib <= host
        assert capacity.hot_tables <= requests


def test_more_memory_never_gives_less() -> None:
    budgets = [sized(budget_bytes=n * GIB // 2) for n in range(2, 20)]
    hosts = [sized(host_pool_gib=n / 4) for n in range(16)]
    for less, more in itertools.pairwise(budgets):
        assert less.device_pages <= more.device_pages
        assert less.logical_pages <= more.logical_pages
        assert less.resident_requests <= more.resident_requests
        assert less.tiered_requests <= more.tiered_requests
    for less, more in itertools.pairwise(hosts):
        assert less.host_pages < more.host_pages
        assert less.device_pages >= more.device_pages, "index keys of host pages stay in HBM"
        assert less.logical_pages <= more.logical_pages


def test_max_total_tokens_bounds_the_device_only() -> None:
    capacity = sized(most_device_tokens=10_000)
    assert capacity.device_pages == 10_000 // PAGE
    assert capacity.logical_pages == 10_000 // PAGE + 33256
    assert sized(most_device_tokens=1 << 40) == sized()


def test_tables_are_never_more_than_device_pages_could_back() -> None:
    capacity = sized(most_device_tokens=64 * PAGE, most_requests=128)
    assert capacity.hot_tables <= 64


# -- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row_bytes", [128, 656, 1152, 2624, 52480])
@pytest.mark.parametrize("top_k", [64, 128, 512, 2048])
@pytest.mark.parametrize("share", [0.01, 1])
def test_a_host_pool_that_does_not_pay_names_one_that_does(row_bytes: int, top_k: int, share: float) -> None:
    given = {"token": TokenBytes(row_bytes, row_bytes, 16), "top_k": top_k, "budget_bytes": 40 * GIB}
    wanted = share * top_k * row_bytes / GIB
    with pytest.raises(ValueError) as caught:
        sized(host_pool_gib=wanted, **given)
    found = re.fullmatch(
        rf"host_pool_gib {re.escape(f'{wanted:g}')} holds \d+ pages, which is not more than the {top_k // PAGE} pages "
        rf"of hot rows that its use costs \(top-k {top_k}\); the smallest that helps: ([\d.]+), or 0 for no host tier",
        str(caught.value),
    )
    assert found, caught.value
    capacity = sized(host_pool_gib=float(found[1]), **given)
    assert capacity.logical_pages > capacity.device_pages
    assert sized(host_pool_gib=0, **given).host_pages == 0


@pytest.mark.parametrize(
    ("budget", "most_device_tokens"), [(0, None), (GIB // 5, None), (GIB, 64), (GIB, 35 * PAGE), (0, 64)]
)
def test_a_device_pool_too_small_for_one_request(budget: int, most_device_tokens: int | None) -> None:
    with pytest.raises(ValueError) as caught:
        sized(budget_bytes=budget, most_device_tokens=most_device_tokens)
    found = re.fullmatch(
        r"the KV budget of ([\d.]+) GiB holds (\d+) device tokens beside 0\.21 GiB of index keys and tables for "
        r"host_pool_gib 2; at least (\d+) are needed\. Lower host_pool_gib, or raise --mem-fraction-static or "
        r"--max-total-tokens",
        str(caught.value),
    )
    assert found, caught.value
    assert float(found[1]) == pytest.approx(budget / GIB, abs=0.01)
    needed = int(found[3])
    assert int(found[2]) < needed
    assert sized(most_device_tokens=needed).device_tokens == needed
    with pytest.raises(ValueError):
        sized(most_device_tokens=needed - 1)


def test_a_device_pool_for_nothing() -> None:
    with pytest.raises(ValueError, match=r"holds 0 device tokens .* at least 64 are needed"):
        sized(budget_bytes=0, host_pool_gib=0)


# -- requests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hot_min", [1, 8, 32])
@pytest.mark.parametrize("length", [1, 64, 2000, 4096, 32768, 1 << 20])
@pytest.mark.parametrize(("device", "host"), [(40, 0), (40, 40), (100, 1000), (1000, 100), (5000, 50000)])
def test_requests_that_fit(device: int, host: int, hot_min: int, length: int) -> None:
    """As many as fit, and no more: by trying."""
    resident, tiered = requests_that_fit(device, host, hot_min, length)
    pages = max(1, -(-length // PAGE))
    assert resident * pages <= device < (resident + 1) * pages
    assert tiered >= resident
    if tiered > resident:
        assert tiered * (hot_min + OPEN_PAGES) <= device
        assert tiered * (pages + hot_min) <= device + host
    more, at_least = tiered + 1, hot_min + OPEN_PAGES + 1  # the page that a request starts next
    fits = more * at_least <= device and more * (pages + hot_min) <= device + host
    assert not (host and pages > hot_min + OPEN_PAGES and fits)


@pytest.mark.parametrize(
    ("device", "host", "hot_min", "length", "fits"),
    [
        (100, 0, 4, 640, (10, 10)),
        (100, 1000, 4, 6 * 64, (16, 16)),  # as small as its hot rows and open pages: the tier gains nothing
        (100, 200, 4, 64 * 20, (5, 12)),  # 300 / 24
        (100, 8, 4, 64 * 20, (5, 5)),
        (10, 1000, 4, 64 * 20, (0, 1)),  # one that HBM alone could never hold
        (100, 100, 4, 0, (100, 100)),
    ],
)
def test_requests_that_fit_examples(
    device: int, host: int, hot_min: int, length: int, fits: tuple[int, int]
) -> None:
    assert requests_that_fit(device, host, hot_min, length) == fits


@pytest.mark.parametrize("reads_host", [True, False])
@pytest.mark.parametrize("chunk", [0, 2048])
@pytest.mark.parametrize("device_tokens", [6400, 64000, 320000])
@pytest.mark.parametrize("length", [2000, 8192, 32768, 131072])
def test_sizing_charges_a_prefill_as_admission_does(
    length: int, device_tokens: int, chunk: int, reads_host: bool
) -> None:
    """By trying: the last request is in prefill while all the others are at their smallest footprint."""
    capacity = sized(
        most_device_tokens=device_tokens,
        context_length=length,
        chunk_tokens=chunk if reads_host else 0,
        prefill_reads_host=reads_host,
    )
    device, pages, hot_min = capacity.device_pages, -(-length // PAGE), capacity.hot_min_pages
    decode = decode_pages(pages, hot_min)
    last = max(decode, prefill_pages(pages, reads_host))
    beside = chunk_reserve(-(-chunk // PAGE), reads_host)

    def fits(requests: int) -> bool:
        footprints = (requests - 1) * decode + last + beside
        return footprints <= device and requests * (pages + hot_min) <= device + capacity.host_pages

    if pages <= hot_min + OPEN_PAGES + 1:
        assert capacity.tiered_requests == capacity.resident_requests
    elif capacity.tiered_requests > capacity.resident_requests:
        assert fits(capacity.tiered_requests) and not fits(capacity.tiered_requests + 1)
    else:
        assert not fits(capacity.tiered_requests + 1)


# -- what is shown ---------------------------------------------------------------------------------------------


def test_the_start_up_block_says_everything() -> None:
    """Device pool: (12070 x 1000 + 45326 x 100) x 64 B."""
    assert capacity_block(sized(pools=8)) == [
        "HiSparse capacity: device pool 0.99 GiB: 772480 tokens in 12070 pages; logical 2900864 tokens",
        "HiSparse capacity: host pool 2.00 GiB logical, 16.00 GiB physical (8 on this host, 33288 pages each)",
        "HiSparse capacity: a token takes 1000 B of KV and 100 B of index keys in HBM, 1008 B on the host; a request "
        "leases 2048 to 8192 hot rows; tables 0.01 GiB",
        "HiSparse capacity: requests of 32768 tokens: 23 without the tier, 83 with it; limited by request slots "
        "(--max-running-requests)",
    ]


@pytest.mark.parametrize(
    ("device", "host", "slots", "binding"),
    [
        (100, 0, 0, "device_pool"),  # no tier: 5 requests of 20 pages
        (100, 60, 0, "host_pool"),  # 160 / 24 = 6 of the 14 that the device pool could hold
        (100, 1000, 0, "device_pool"),  # 14 footprints of 7 pages fill it; the bytes would do for 45
        (100, 1000, 14, "device_pool"),  # as many slots as requests fit
        (100, 1000, 13, "request_slots"),
        (100, 0, 3, "request_slots"),
    ],
)
def test_binding_resource(device: int, host: int, slots: int, binding: str) -> None:
    """Requests of 20 pages, 4 of them hot at the least."""
    assert binding_resource(device, host, 4, 64 * 20, slots) == binding


@pytest.mark.parametrize("more", ["device", "host"])
def test_enlarging_what_does_not_bind_gains_nothing(more: str) -> None:
    """And enlarging what binds gains a request at the end: the advice is worth following."""
    for device, host in itertools.product(range(40, 200, 7), range(20, 800, 37)):
        grown = {
            name: (device + 400 * (name == "device_pool"), host + 400 * (name == "host_pool"))
            for name in ("device_pool", "host_pool")
        }
        now = requests_that_fit(device, host, 4, 64 * 20)[1]
        binding = binding_resource(device, host, 4, 64 * 20)
        assert requests_that_fit(*grown[binding], 4, 64 * 20)[1] > now
        if binding == "device_pool" and more == "host":
            assert requests_that_fit(*grown["host_pool"], 4, 64 * 20)[1] == now


def test_a_request_as_small_as_its_footprint_is_bound_by_the_device() -> None:
    assert binding_resource(100, 1000, 4, 6 * 64) == "device_pool"


def test_server_info_has_tokens_too() -> None:
    shown = sized().as_dict()
    assert (shown["device_tokens"], shown["logical_tokens"]) == (772480, 2900864)
    assert shown["token_bytes"] == {"kv": 1000, "host": 1008, "index": 100}
    assert (shown["host_gib"], shown["binding"]) == (2.0, "request_slots")
    assert sized(pools=4).as_dict()["host_gib_physical"] == pytest.approx(8, rel=1e-3)
