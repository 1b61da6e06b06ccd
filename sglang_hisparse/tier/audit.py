"""Does the host hold what was written? Checksums of every row, taken from HBM when a page is copied out.

A row's checksum is the sum over its 8-byte words w[i] of w[i] * (2 i + 1), modulo 2**64: every single changed bit
changes it. Verifying reads host bytes on the CPU. A difference is fatal: the server must not serve from that page.
"""

from __future__ import annotations

import torch

from sglang_hisparse.tier.layout import PAGE, Plane, RowLayout


class AuditError(RuntimeError):
    """Host bytes differ from what was written."""


class Audit:
    """Row checksums of every host page; `verify` compares them with the host's bytes now.

    `sums`: per plane, int64 [host_pages, 64] on the KV device. Not graph-safe; runs beside forwards.
    """

    def __init__(self, layout: RowLayout, host_pages: int) -> None:
        self.layout = layout
        self.planes = layout.planes
        self.sums = torch.zeros((len(self.planes), host_pages, PAGE), dtype=torch.int64, device=layout.device)
        self.checked = 0
        self._next = 0

    @staticmethod
    def checksum(rows: torch.Tensor) -> torch.Tensor:
        """uint8 [..., row_bytes] -> int64 [...]."""
        words = rows.contiguous().view(torch.int64)
        weights = torch.arange(words.shape[-1], device=rows.device, dtype=torch.int64) * 2 + 1
        return (words * weights).sum(-1)

    def written(self, pairs: list[tuple[int, int]]) -> None:
        """Device pages are about to be copied to host pages: remember what they hold."""
        device = torch.tensor([d for d, _ in pairs], device=self.layout.device)
        host = torch.tensor([h for _, h in pairs], device=self.layout.device)
        for index, plane in enumerate(self.planes):
            rows = plane.rows.view(-1, PAGE, plane.row_bytes)[device]
            self.sums[index, host] = self.checksum(rows)

    def verify(self, pages: list[tuple[int, int]]) -> None:
        """Compare host pages [(logical page, host page)] with their checksums. AuditError names layer, page, slot.
        The caller has waited for the copies."""
        if not pages:
            return
        hosts = torch.tensor([h for _, h in pages])
        expected = self.sums[:, hosts.to(self.sums.device)].cpu()
        for index, plane in enumerate(self.planes):
            found = self.checksum(plane.host.view(-1, PAGE, plane.row_bytes)[hosts])
            wrong = (found != expected[index]).nonzero()
            if len(wrong):
                which, offset = wrong[0].tolist()
                page, host = pages[which]
                raise AuditError(self._message(plane, page, host, offset, len(wrong)))
        self.checked += len(pages)

    @staticmethod
    def _message(plane: Plane, page: int, host: int, offset: int, rows: int) -> str:
        return (
            f"HiSparse audit: host bytes differ from what was written: layer {plane.layer} ({plane.name}), "
            f"page {page}, slot {page * PAGE + offset}, host page {host}; {rows} row(s) of this check differ. "
            "The host copy cannot be trusted, so the server stops"
        )

    def sample(self, pages: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
        """The next `count` of `pages`, round robin over calls."""
        if not pages:
            return []
        start = self._next % len(pages)
        self._next += count
        return (pages + pages)[start : start + min(count, len(pages))]
