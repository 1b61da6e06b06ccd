"""One pinned host buffer whose bytes are known without reading them: all pools are slices of it."""

from __future__ import annotations

import os
import time

import torch

from sglang_hisparse.tier.host_memory import host_bytes
from sglang_hisparse.tier.layout import PAGE

GIB = 1 << 30
_PIECE = 1 << 25  # words a step of the fill
_ODD = 0x1E3779B97F4A7C15


def word_values(index: torch.Tensor) -> torch.Tensor:
    """The int64 word at each int64 index of the buffer: unlike its neighbours, the same on every device."""
    mixed = index * _ODD
    return mixed ^ (mixed >> 29)


class HostBytes:
    """The buffer, pinned for a CUDA device. It stays pinned until `close`, or the end of the process."""

    def __init__(self, size: int, device: torch.device, huge: bool = True) -> None:
        self.device = device
        started = time.perf_counter()
        self.buffer = host_bytes(size, huge)
        if device.type == "cuda":
            # Touched with all cores first: pinning untouched pages zeroes them on one.
            threads = torch.get_num_threads()
            torch.set_num_threads(os.cpu_count() or 1)
            self.buffer.fill_(0)
            torch.set_num_threads(threads)
            code = torch.cuda.cudart().cudaHostRegister(self.buffer.data_ptr(), size, 0)
            if int(code) != 0:
                raise RuntimeError(f"CUDA could not pin {size / GIB:.1f} GiB (error {int(code)})")
        self.pin_seconds = time.perf_counter() - started
        self.fill()

    def fill(self, first: int = 0, size: int | None = None) -> None:
        """Write the known values to `size` bytes from byte `first` on."""
        words = self.buffer[: len(self.buffer) // 8 * 8].view(torch.int64)
        end = len(words) if size is None else (first + size) // 8
        for start in range(first // 8, end, _PIECE):
            index = torch.arange(start, min(start + _PIECE, end), device=self.device)
            words[start : start + len(index)].copy_(word_values(index))

    def rows(self, size: int, row_bytes: int, first: int = 0) -> torch.Tensor:
        """View of `size` bytes from byte `first` on as uint8 [rows of whole pages, row_bytes]."""
        count = size // (row_bytes * PAGE) * PAGE
        return self.buffer[first : first + count * row_bytes].view(count, row_bytes)

    def close(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.cudart().cudaHostUnregister(self.buffer.data_ptr())


def expected_bytes(host: torch.Tensor, rows: torch.Tensor, pool: HostBytes) -> torch.Tensor:
    """uint8 [n, row bytes] by the formula: the rows `rows` [n] of `host`, a `pool.rows` or some of its columns."""
    first = host.data_ptr() - pool.buffer.data_ptr()
    start = (rows.to(torch.int64) * host.stride(0) + first) // 8
    index = start.unsqueeze(1) + torch.arange(host.shape[1] // 8, device=rows.device)
    return word_values(index).view(torch.uint8)
