"""Decode throughput: out of what stock's client saw, prefill and waiting left out, and as the server says it.

Output tokens a second, as stock reports them, mix prefill and decode: with long prompts and few new tokens they mostly
say how fast a prompt is computed, which no KV tier changes. The gaps between a request's tokens tell the two apart.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Mapping, Sequence

PAUSE = 5.0
"""A gap longer than this many times the median gap is a pause (another request's prefill, a retraction), no step."""


def starts(ends_after: Sequence[float], concurrency: int) -> list[float]:
    """When each request was sent: at most `concurrency` at once, the next as soon as one ends, in order.

    `ends_after[i]` is request i's latency in seconds.
    """
    running: list[float] = []
    found = []
    for latency in ends_after:
        start = heapq.heappop(running) if len(running) >= concurrency else 0.0
        found.append(start)
        heapq.heappush(running, start + latency)
    return found


def decode_rate(
    ttfts: Sequence[float], gaps: Sequence[Sequence[float]], concurrency: int
) -> tuple[float, float] | None:
    """(tokens a second, seconds) of decoding: tokens after the first, over the time in which any request's step ran.

    `ttfts` and `gaps` are stock's `ttfts` and `itls`, in seconds, one entry a request. None without any gap.
    """
    every = [gap for one in gaps for gap in one if gap > 0]
    if not every:
        return None
    longest = PAUSE * statistics.median(every)
    sent = starts([ttft + sum(one) for ttft, one in zip(ttfts, gaps, strict=True)], concurrency)
    steps: list[tuple[float, float]] = []
    tokens = 0
    for start, ttft, one in zip(sent, ttfts, gaps, strict=True):
        now = start + ttft
        for gap in one:
            now += gap
            if gap <= longest:
                steps.append((now - gap, now))
                tokens += 1
    seconds = _covered(steps)
    return (tokens / seconds, seconds) if seconds > 0 else None


def server_rate(samples: Sequence[Mapping[str, float]]) -> float | None:
    """Tokens a second by the server's own gauge, while as many requests ran as ever did; None where it has none.

    `samples` are a Sampler's. Where the client's rate is much lower, SGLang's HTTP process did not keep up. The
    median, without what the gauge kept from the run before, and without values below half of the largest, as prefills
    were still under way.
    """
    gauge = [sample.get("gen_tok_s", 0.0) for sample in samples]
    kept = next((place for place, rate in enumerate(gauge) if rate != gauge[0]), len(gauge))
    most = max((sample.get("running", 0) for sample in samples), default=0)
    rates = [
        r for r, sample in zip(gauge[kept:], samples[kept:], strict=True) if sample.get("running", 0) == most
    ]
    steady = [rate for rate in rates if rate > 0 and rate >= max(rates) / 2]
    return statistics.median(steady) if steady else None


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of `spans`."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        if last > end:
            total += last - max(first, end)
            end = last
    return total
