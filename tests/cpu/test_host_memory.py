"""Host memory of pools: aligned, writable, kept by its views; the kernel may decline huge pages."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import pytest
import torch

from sglang_hisparse.tier.host_memory import HUGE_PAGE, host_bytes, huge_bytes
from sglang_hisparse.tier.host_pool import HostPool


@pytest.mark.parametrize("size", [1, HUGE_PAGE, 3 * HUGE_PAGE + 5])
@pytest.mark.parametrize("huge", [True, False])
def test_zeros_at_a_huge_page(size: int, huge: bool) -> None:
    memory = host_bytes(size, huge)
    assert memory.shape == (size,) and memory.dtype == torch.uint8
    assert memory.data_ptr() % HUGE_PAGE == 0 and not memory.any()
    assert memory.untyped_storage().data_ptr() == memory.data_ptr(), "torch asks there whether it is pinned"
    tail = memory[-1:]
    tail.fill_(7)
    del memory
    gc.collect()
    assert tail.item() == 7, "a view keeps the mapping"


def test_a_kernel_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *advice: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Refusing)
    assert not host_bytes(100).any()
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    assert not host_bytes(100).any()


def test_huge_bytes(tmp_path: Path) -> None:
    smaps = tmp_path / "smaps_rollup"
    smaps.write_text("Rss:  10 kB\nAnonHugePages:   4096 kB\nFilePmdMapped: 0 kB\n")
    assert huge_bytes(smaps) == 4 << 20
    smaps.write_text("Rss:  10 kB\n")
    assert huge_bytes(smaps) == 0 == huge_bytes(tmp_path / "none")
    assert huge_bytes() >= 0


def test_pools_lie_in_it() -> None:
    pool = HostPool(3, [656, 2624], torch.device("cpu"))
    assert [tuple(buffer.shape) for buffer in pool.buffers] == [(192, 656), (192, 2624)]
    assert all(buffer.data_ptr() % HUGE_PAGE == 0 and buffer.is_contiguous() for buffer in pool.buffers)
    pool.close()
