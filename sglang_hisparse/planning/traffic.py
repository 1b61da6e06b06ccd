"""What a decode step moves from the host, and whether the link carries it.

A step of one request misses  miss rate x top-k x (its spilled share)  tokens, in every index group. Selections are
taken as spread evenly over the context; recent positions, which stay in HBM longest, are selected more often, so that
the true traffic is lower.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_hisparse.capacity import GIB, TokenBytes
from sglang_hisparse.planning.footprint import fetch_ns
from sglang_hisparse.planning.inputs import Inputs


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one decode step of all requests together moves from the host, on one GPU's link.

    spilled_share  of a request's tokens when `tiered_requests` run
    gib_step       bytes; ms_step: time of the link for them; gbps: needed at the TPOT; link_gbps: what the link
                   reaches with these rows
    requests       how many the link carries at the TPOT; None where nothing moves
    fits           ms_step is not more than the TPOT
    """

    spilled_share: float
    gib_step: float
    ms_step: float
    gbps: float
    link_gbps: float
    requests: int | None
    fits: bool


def traffic_of(inputs: Inputs, token: TokenBytes, share: float, requests: int) -> Traffic:
    """The traffic of `requests` at once, `share` of each one's tokens spilled."""
    misses = inputs.miss_rate * min(inputs.model.top_k, inputs.context) * share
    ns = fetch_ns(inputs.model, token, inputs.gpu)
    each_ms = misses * ns / 1e6
    moved = requests * misses * token.host
    return Traffic(
        spilled_share=share,
        gib_step=moved / GIB,
        ms_step=requests * each_ms,
        gbps=moved / 1e6 / inputs.tpot_ms,
        link_gbps=token.host / ns,
        requests=int(inputs.tpot_ms / each_ms) if each_ms > 0 else None,
        fits=requests * each_ms <= inputs.tpot_ms,
    )
