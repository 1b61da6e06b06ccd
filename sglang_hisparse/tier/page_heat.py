"""How often pages are selected: counted on the device, sampled, and read back without waiting.

Every `READ_EVERY` forwards the counts are copied to pinned memory on the forward stream and start again at 0; what has
arrived by a later forward is handed to the policy (`policy/heat.py`).
"""

from __future__ import annotations

import torch

READ_EVERY = 64
"""Forwards from one reading to the next. What was counted before a reading weighs half after it."""


class PageHeat:
    """Sampled selections by logical page. One per tier, only where pages leave by heat.

    `counts`: int32 [pages + 1] on the KV device; keeps its address. Added to by resolve, which counts one of
    `HEAT_STRIDE` selected entries; read and zeroed by `poll`.
    """

    def __init__(self, pages: int, device: torch.device) -> None:
        self.counts = torch.zeros(pages + 1, dtype=torch.int32, device=device)
        on_cuda = device.type == "cuda"
        self._read = torch.zeros(pages + 1, dtype=torch.int32, pin_memory=on_cuda)
        self._copied = torch.cuda.Event() if on_cuda else None
        self._pending = False
        self._forwards = 0

    def poll(self) -> dict[int, int] | None:
        """Once before every forward, on its stream and outside graphs: a reading (page -> count, those above 0 only)
        where one has arrived since, else None. Never blocks."""
        self._forwards += 1
        found = None
        if self._pending and (self._copied is None or self._copied.query()):
            self._pending = False
            pages = self._read[1:].nonzero().view(-1) + 1
            found = dict(zip(pages.tolist(), self._read[pages].tolist(), strict=True))
        if self._forwards % READ_EVERY == 0 and not self._pending:
            self._read.copy_(self.counts, non_blocking=True)
            if self._copied is not None:
                self._copied.record()
            self.counts.zero_()
            self._pending = True
        return found
