"""Pinned host memory for spilled pages, one buffer a plane."""

from __future__ import annotations

import torch

from sglang_hisparse.limits import host_limits
from sglang_hisparse.tier.host_memory import host_bytes
from sglang_hisparse.tier.layout import PAGE


class HostPool:
    """Host buffers of all planes, registered with CUDA where the KV pool is on CUDA.

    `buffers[p]`: uint8 [host_pages * 64, row_bytes of plane p]. Owned here; written by the mover only; read by
    resolve through the same addresses (unified virtual addressing). Released by `close` or with the process.
    """

    def __init__(self, host_pages: int, row_bytes: list[int], device: torch.device) -> None:
        self._registered: list[torch.Tensor] = []
        rows = max(host_pages, 1) * PAGE
        self.buffers = [host_bytes(rows * width).view(rows, width) for width in row_bytes]
        if device.type == "cuda":
            for buffer in self.buffers:
                self._register(buffer)

    def _register(self, buffer: torch.Tensor) -> None:
        """Pin `buffer`. torch's own pinned allocator would round the size up to a power of two."""
        runtime = torch.cuda.cudart()
        code = runtime.cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0)
        if int(code) != 0:
            self.close()
            limits = "; ".join(f"{limit.name}: {limit.free_gib:.1f} GiB" for limit in host_limits())
            raise RuntimeError(
                f"CUDA could not pin {buffer.nbytes / (1 << 30):.2f} GiB of host memory for host_pool_gib (error "
                f"{int(code)}). Limits seen: {limits}. Lower host_pool_gib, or raise the limit that binds"
            )
        self._registered.append(buffer)

    def close(self) -> None:
        """Unpin. Safe to call twice."""
        while self._registered:
            torch.cuda.cudart().cudaHostUnregister(self._registered.pop().data_ptr())
