"""The audit finds any byte of the host pool that is not what was written, and says where."""

from __future__ import annotations

import random

import pytest
import torch

from sglang_hisparse.policy import PlannerOptions, State
from sglang_hisparse.tier.audit import Audit, AuditError
from sglang_hisparse.tier.host_tier import SAMPLED_PAGES
from sglang_hisparse.tier.layout import PAGE
from tests.cpu.tier_server import MHA, MLA, TierServer
from tests.unit.events import Events
from tests.unit.fake_server import Sizes

Groups = tuple[tuple[int, ...], ...]
LAYOUTS = pytest.mark.parametrize("groups", [MHA, MLA], ids=["mha", "mla"])
OPTIONS = PlannerOptions(
    hot_min=2, hot_max=4, tables=4, low_watermark=0.0, high_watermark=1.0, force_spill=0.5
)


def server_with_host_pages(groups: Groups, audit: str) -> TierServer:
    """A request whose pages are on the host, half of them spilled and half clean."""
    server = TierServer(Sizes(30, 40, OPTIONS, reads_host=True), random.Random(3), groups, audit)
    events = Events(server)
    events.start(0, prompt=20, output=1, chunk=20, hit=0, squeezed=False)
    server.forward()
    for page in server.running[0].pages[:12]:
        if server.residency.state(page) is State.RESIDENT:
            server.residency.clean(page)
    server.forward()
    states = [server.residency.state(page) for page in server.running[0].pages[:12]]
    assert states.count(State.CLEAN) >= 5 and states.count(State.SPILLED) >= 5
    return server


def on_host(server: TierServer) -> list[tuple[int, int]]:
    host = server.residency.host
    return [(page, host[page]) for page in range(1, len(host)) if host[page] >= 0]


@LAYOUTS
def test_every_plane_of_every_layer_is_covered(groups: Groups) -> None:
    server = server_with_host_pages(groups, audit="full")
    tier, rng = server.tier, random.Random(5)
    assert tier.audit is not None
    tier.audit.verify(on_host(server))
    for plane in tier.layout.planes:
        page, host_page = rng.choice(on_host(server))
        offset, byte = rng.randrange(PAGE), rng.randrange(plane.row_bytes)
        row = plane.host[host_page * PAGE + offset]
        row[byte] ^= 1 << rng.randrange(8)
        with pytest.raises(AuditError) as caught:
            tier.audit.verify(on_host(server))
        assert str(caught.value) == (
            "HiSparse audit: host bytes differ from what was written: layer "
            f"{plane.layer} ({plane.name}), page {page}, slot {page * PAGE + offset}, host page {host_page}; "
            "1 row(s) of this check differ. The host copy cannot be trusted, so the server stops"
        )
        row[:] = server.written[page, plane.layer, server.planes(plane.layer).index(plane)][offset]
        tier.audit.verify(on_host(server))


def test_the_number_of_rows_that_differ_is_named() -> None:
    server = server_with_host_pages(MHA, audit="full")
    (page, host_page), *_ = on_host(server)
    server.tier.layout.planes[0].host[host_page * PAGE + 7 : host_page * PAGE + 10] += 1
    with pytest.raises(AuditError, match=rf"page {page}, slot {page * PAGE + 7}, .* 3 row\(s\)"):
        server.tier.begin_forward(None)


def test_full_stops_at_the_next_forward() -> None:
    server = server_with_host_pages(MLA, audit="full")
    server.tier.begin_forward(None)
    server.tier.layout.planes[-1].host[on_host(server)[-1][1] * PAGE + 63, -1] ^= 0x80
    with pytest.raises(AuditError):
        server.tier.begin_forward(None)


def test_off_does_not_look() -> None:
    server = server_with_host_pages(MHA, audit="off")
    assert server.tier.audit is None
    server.tier.layout.planes[0].host.add_(1)
    server.tier.begin_forward(None)
    assert server.tier.counters()["audited_pages"] == 0


def test_sampled_reaches_every_page() -> None:
    """Whichever page is wrong, a few forwards find it."""
    server = server_with_host_pages(MHA, audit="sampled")
    count = len(on_host(server))
    turns = -(-count // SAMPLED_PAGES) + 1
    assert count > SAMPLED_PAGES
    for page, host_page in on_host(server):
        row = server.tier.layout.planes[1].host[host_page * PAGE + 1]
        row[0] ^= 1
        with pytest.raises(AuditError, match=f"page {page}, "):
            for _ in range(turns):
                server.tier.begin_forward(None)
        row[0] ^= 1
    for _ in range(turns):
        server.tier.begin_forward(None)


@pytest.mark.parametrize("count", [1, 3, SAMPLED_PAGES, 7, 10, 64])
def test_samples_go_round(count: int) -> None:
    server = server_with_host_pages(MHA, audit="sampled")
    audit = server.tier.audit
    assert audit is not None
    pages = [(page, page + 100) for page in range(count)]
    seen: list[tuple[int, int]] = []
    for _ in range(-(-count // SAMPLED_PAGES) * 2 + 1):
        sample = audit.sample(pages, SAMPLED_PAGES)
        assert len(sample) == len(set(sample)) == min(count, SAMPLED_PAGES)
        seen += sample
    assert set(seen) == set(pages)
    assert audit.sample([], SAMPLED_PAGES) == []


def test_samples_reach_a_page_while_others_come_and_go() -> None:
    """Every page that stays is looked at, though the list around it changes all the time."""
    server, rng = server_with_host_pages(MHA, audit="sampled"), random.Random(11)
    audit = server.tier.audit
    assert audit is not None
    stays = [(page, page) for page in range(0, 100, 9)]
    seen: set[tuple[int, int]] = set()
    for _ in range(400):
        others = [(page, page) for page in range(100) if page % 9 and rng.random() < 0.3]
        seen.update(audit.sample(sorted(stays + others), SAMPLED_PAGES))
    assert seen.issuperset(stays)


def test_a_reused_host_page_is_checked_against_its_new_content() -> None:
    server = server_with_host_pages(MHA, audit="full")
    before = {host for _, host in on_host(server)}
    events = Events(server)
    events.stop(-1, keep=False)
    events.start(1, prompt=20, output=1, chunk=20, hit=0, squeezed=False)
    for _ in range(3):
        server.forward()
    assert before.intersection(host for _, host in on_host(server)), "some host page has another page now"
    server.check()
    assert server.tier.audit is not None and server.tier.audit.checked > 0


def test_checksums_tell_rows_apart() -> None:
    """Every flipped bit, and words in another order."""
    row = torch.randint(0, 256, (1, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    flipped = row.repeat(256, 1)
    for bit in range(256):
        flipped[bit, bit // 8] ^= 1 << bit % 8
    sums = Audit.checksum(torch.cat((row, flipped)))
    assert sums.shape == (257,) and sums.dtype == torch.int64
    assert (sums[1:] != sums[0]).all()
    words = row.view(4, 8)
    swapped = torch.stack([words.view(-1), words[[1, 0, 2, 3]].view(-1), words[[0, 1, 3, 2]].view(-1)])
    assert len(set(Audit.checksum(swapped).tolist())) == 3
    assert Audit.checksum(torch.zeros((2, 64, 16), dtype=torch.uint8)).tolist() == [[0] * 64] * 2


def test_the_audit_counts_what_it_checked() -> None:
    server = server_with_host_pages(MHA, audit="full")
    before, pages = server.tier.counters()["audited_pages"], len(on_host(server))
    server.tier.begin_forward(None)
    assert server.tier.counters()["audited_pages"] == before + pages
    sampled = server_with_host_pages(MHA, audit="sampled")
    before = sampled.tier.counters()["audited_pages"]
    sampled.tier.begin_forward(None)
    assert sampled.tier.counters()["audited_pages"] == before + SAMPLED_PAGES


def test_full_checks_the_accounting_too() -> None:
    server = server_with_host_pages(MHA, audit="full")
    server.residency.free_device.give(1)
    with pytest.raises(AssertionError, match="a device page is lost or in two places"):
        server.tier.begin_forward(None)


@LAYOUTS
def test_an_idle_server_with_an_audit_runs(groups: Groups) -> None:
    server = TierServer(Sizes(30, 40, OPTIONS, reads_host=True), random.Random(3), groups, audit="full")
    for _ in range(3):
        server.forward()
    assert server.tier.counters()["audited_pages"] == 0
