"""The tier's part of SGLang's decode log line, once every --decode-log-interval steps."""

from __future__ import annotations

from typing import Any

from sglang_hisparse.seams.runtime import runtime
from sglang_hisparse.tier.host_tier import HostTier

MIB = 1 << 20


class DecodeLog:
    """Says what changed since the line before."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}

    def parts(self, tier: HostTier) -> list[str]:
        """For the line, in SGLang's form. Shares are those of all rows selected since the last line; device
        counters are those that had arrived, so that they trail by one line."""
        now, pages = tier.counters(wait=False), tier.pages_by_state()
        grown = {name: value - self._before.get(name, 0) for name, value in now.items()}
        self._before = now
        selected = sum(grown[f"selected_{outcome}"] for outcome in ("resident", "hot", "missed"))
        hot, missed = (grown[f"selected_{name}"] / max(1, selected) for name in ("hot", "missed"))
        return [
            f"#resident page: {pages['resident'] + pages['clean']}",
            f"#spilled page: {pages['spilled']}",
            f"#hot row page: {pages['hot']}",
            f"hot: {hot:.1%}",
            f"miss: {missed:.1%}",
            f"to host: {grown['bytes_to_host'] / MIB:.1f} MiB",
            f"to device: {grown['bytes_to_device'] / MIB:.1f} MiB",
        ]


_log = DecodeLog()


def usage_parts(result: list[str], pool_stats: Any) -> list[str]:
    """After SGLang's own parts on memory use: ours."""
    return result if runtime.tier is None else [*result, *_log.parts(runtime.tier)]
