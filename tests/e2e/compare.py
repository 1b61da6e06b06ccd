"""What the tests assert: equal bits, moved pages, nothing left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from bench_serving.serving import Answer, Server
from tests.e2e.streams import until


def assert_same(found: Sequence[Answer], wanted: Sequence[Answer]) -> None:
    """Tokens and logprobs of every request are equal, bit for bit."""
    assert len(found) == len(wanted)
    for place, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert len(mine.logprobs) == len(mine.tokens) > 0, f"request {place} has no logprobs"
        first = next(
            (i for i, pair in enumerate(zip(mine.tokens, theirs.tokens, strict=False)) if len({*pair}) > 1),
            -1,
        )
        assert mine.tokens == theirs.tokens, f"request {place}: tokens differ from token {first} on"
        assert mine.logprobs == theirs.logprobs, f"request {place}: tokens are equal, logprobs differ"


def assert_close(found: Sequence[Answer], wanted: Sequence[Answer]) -> None:
    """Tokens are equal, logprobs nearly: for requests that were retracted. SGLang computes their generated tokens
    anew by prefill, which adds up in another order than decode."""
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.tokens == theirs.tokens
        assert max(abs(a - b) for a, b in zip(mine.logprobs, theirs.logprobs, strict=True)) < 1e-3


class Delta(dict[str, int]):
    """What the counters grew by."""


@contextlib.contextmanager
def counted(server: Server) -> Iterator[Delta]:
    """The tier's counters over the block: empty within it, filled at its end."""
    before, delta = server.counters(), Delta()
    yield delta
    delta.update({name: value - before.get(name, 0) for name, value in server.counters().items()})


def assert_idle(server: Server) -> dict[str, int]:
    """Wait until nothing runs, then check the accounting; what is left belongs to the radix tree. The pages."""
    until(lambda: server.hisparse()["requests"] == 0, "the end of every request")
    server.change(hisparse_check=1)
    pages: dict[str, int] = server.hisparse()["pages"]
    capacity = server.hisparse()["capacity"]
    held = pages["resident"] + pages["clean"]
    assert pages["hot"] == 0, "hot rows are leased to nobody"
    assert held + pages["free"] == capacity["device_pages"], f"device pages are lost: {pages}"
    assert pages["spilled"] + pages["clean"] <= capacity["host_pages"]
    return pages


def assert_empties(server: Server) -> None:
    """Flushing leaves every page of both tiers free, and stock's own leak check had nothing to say."""
    assert_idle(server)
    server.flush()
    pages, capacity = server.hisparse()["pages"], server.hisparse()["capacity"]
    free = capacity["device_pages"]
    assert pages == {"resident": 0, "clean": 0, "spilled": 0, "hot": 0, "free": free}
    server.change(hisparse_check=1)
    log = server.log()
    for trouble in ("leak detected", "use-after-free", "double free", "Scheduler hit an exception"):
        assert trouble not in log, f"{trouble!r} in {server.log_path}"
