"""Reads a server's /metrics while it is measured, and its counters before and after."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from typing import Any

from .serving import Server, ServerError

GAUGES = {
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "queued",
    "sglang:token_usage": "usage",
    "sglang:gen_throughput": "gen_tok_s",
}
OURS = "sglang:hisparse_"
"""Everything that our package exports is kept, under its own name without this prefix."""

RETRACTIONS = "sglang:num_retracted_requests_total"


class Sampler:
    """`with Sampler(server, every_s) as sampler:` collects `sampler.samples`, one dictionary a tick.

    Only /metrics is read while requests run, which no scheduler step waits for; /server_info, which reads the
    device's counters, only before and after.
    """

    def __init__(self, server: Server, every_s: float) -> None:
        self._server, self._every_s = server, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._began = 0.0
        self._log_before = 0
        self.samples: list[dict[str, float]] = []
        self.before: dict[str, float] = {}
        self.after: dict[str, float] = {}
        self.info: dict[str, Any] = {}

    def __enter__(self) -> Sampler:
        self.before = self._totals()
        self._log_before = len(self._server.log())
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30 if kind is None else 1)
        if kind is None:
            self.after = self._totals()

    def change(self, name: str) -> float | None:
        """How much a counter grew; None where the server has none of that name."""
        if name not in self.after:
            return None
        return self.after[name] - self.before.get(name, 0)

    def most(self, name: str) -> float | None:
        """The largest sample."""
        return max((sample[name] for sample in self.samples if name in sample), default=None)

    def most_running(self) -> float | None:
        """Most requests that ran at once: of the samples, and of the batches that the log names."""
        named = re.findall(r"#running-req: (\d+)", self._server.log()[self._log_before :])
        seen = [float(count) for count in named]
        sampled = self.most("running")
        return max(seen if sampled is None else [*seen, sampled], default=None)

    def line(self) -> str:
        """The last sample for people."""
        if not self.samples:
            return "waiting for the first sample"
        last = self.samples[-1]
        return (
            f"{last.get('running', 0):.0f} run, {last.get('queued', 0):.0f} wait, "
            f"{last.get('usage', 0):.0%} of the pool, {last.get('gen_tok_s', 0):,.0f} tok/s"
        )

    def _totals(self) -> dict[str, float]:
        """Counters of the tier from /server_info, and stock's retractions from /metrics."""
        self.info = self._server.info()
        states = self.info.get("internal_states") or [{}]
        tier = states[0].get("hisparse") or {}
        totals = {name: float(value) for name, value in (tier.get("counters") or {}).items()}
        with contextlib.suppress(ServerError):  # a server without --enable-metrics
            totals["retractions"] = self._server.metrics().get(RETRACTIONS, 0.0)
        return totals

    def _loop(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                metrics = self._server.metrics()
            except (ServerError, ValueError):
                continue
            sample = {"t": round(time.monotonic() - self._began, 2)}
            sample |= {short: metrics[name] for name, short in GAUGES.items() if name in metrics}
            sample |= {n.removeprefix(OURS): v for n, v in metrics.items() if n.startswith(OURS)}
            self.samples.append(sample)
