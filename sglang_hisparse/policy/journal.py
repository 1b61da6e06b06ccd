"""What the CPU decided since the last forward, in the form in which the device may apply it.

The scheduler runs one step ahead of the GPU, so a decision never touches device memory itself. It is written
here, and the tier applies the journal on the forward stream right before the next forward:

    batch 0: copies to the host, then copies to the device
    batch 1: the same (only where a copy to the host would overtake a copy to the device of batch 0)
    page map entries, hot tables          (last value of each)
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class CopyBatch:
    """Page copies that may run as two launches: all of `to_host`, then all of `to_device`."""

    to_host: list[tuple[int, int]] = field(default_factory=list)
    """(device page, host page)"""
    to_device: list[tuple[int, int]] = field(default_factory=list)
    """(device page, host page)"""


class Journal:
    """Pending changes. Written by the policy, drained by the tier."""

    def __init__(self) -> None:
        self.batches: list[CopyBatch] = [CopyBatch()]
        self.page_values: dict[int, int] = {}
        """logical page -> page map value: device page, -1 for nothing, -2 - h for host page h"""
        self.hot_reset: dict[int, int] = {}
        """hot table -> first entry whose cached slot is forgotten"""
        self.row_tables: dict[int, int] = {}
        """request row -> hot table, or -1"""
        self.fence = False
        """True where the next forward may only start after every copy issued so far"""
        self._read_host: set[int] = set()
        self._written_host: set[int] = set()
        self._written_device: set[int] = set()

    def _new_batch(self) -> None:
        self.batches.append(CopyBatch())
        self._read_host.clear()
        self._written_host.clear()
        self._written_device.clear()

    def copy_to_host(self, device: int, host: int) -> None:
        """Record that `device` is to be copied to `host`; opens a new batch where order demands it."""
        if device in self._written_device or host in self._read_host or host in self._written_host:
            self._new_batch()
        self.batches[-1].to_host.append((device, host))
        self._written_host.add(host)

    def copy_to_device(self, device: int, host: int) -> None:
        """Record that `host` is to be copied to `device`. The next forward waits for it."""
        if device in self._written_device:
            self._new_batch()
        self.batches[-1].to_device.append((device, host))
        self._read_host.add(host)
        self._written_device.add(device)
        self.fence = True

    def map(self, page: int, value: int) -> None:
        """Set the page map entry of `page`."""
        self.page_values[page] = value

    def reset_hot(self, table: int, first: int) -> None:
        """Forget what hot entries `first` and above of `table` cache."""
        self.hot_reset[table] = min(first, self.hot_reset.get(table, first))

    def empty(self) -> bool:
        """True where the next forward needs nothing applied."""
        first = self.batches[0]  # a second one is opened only behind copies
        return not (self.page_values or self.hot_reset or self.row_tables or first.to_host or first.to_device)
