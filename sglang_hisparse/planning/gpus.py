"""GPUs that can be planned for: memory, what SGLang sets aside, and the link to host memory.

Memory is what nvidia-smi reports (MiB), not the number on the data sheet. The link of the H200 was measured (this
project's design notes: copies of 1 GiB, and random rows of 656 and 1,152 B gathered from a 24 GiB pool); the others
are not measured by us, and say what they are taken from.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU and its link.

    memory_mib      total memory, nvidia-smi
    mem_fraction    --mem-fraction-static of the plan: close to what SGLang takes with its own default chunk
    chunk_tokens    SGLang's default --chunked-prefill-size for this memory
    copy_gbps       one direction, large copies, 1e9 B/s
    gather_gbps     most that a gather of random host rows reaches
    row_ns, byte_ns one gathered row costs row_ns + bytes x byte_ns, in a pool of many GiB
    host_ram_gib    host memory for one GPU: of its module where ram_is_fixed, else what is usual (DGX: 2 TiB for 8)
    link            what the link is, and where its numbers come from
    """

    name: str
    memory_mib: int
    mem_fraction: float
    chunk_tokens: int
    copy_gbps: float
    gather_gbps: float
    row_ns: float
    byte_ns: float
    host_ram_gib: float
    ram_is_fixed: bool
    link: str

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * MIB

    def row_time_ns(self, row_bytes: float) -> float:
        """Time of the link for one gathered row."""
        return max(row_bytes / self.gather_gbps, self.row_ns + row_bytes * self.byte_ns)


H200_ROW_NS, H200_BYTE_NS = 20.8, 0.00824
"""Through the two measured points: 656 B rows at 25 GB/s, 1,152 B rows at 38 GB/s."""

GRACE = 112 / 29
"""Swap-in IO of one call, H200 against GH200, in the HiSparse paper (arXiv:2608.07009): 112 and 29 us."""

GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            "H200", 143771, 0.88, 8192, 55.2, 50.0, H200_ROW_NS, H200_BYTE_NS, 256.0, False,
            "PCIe 5 x16, measured",
        ),
        Gpu(
            "B200", 183359, 0.85, 16384, 55.2, 50.0, H200_ROW_NS, H200_BYTE_NS, 256.0, False,
            "PCIe 5 x16, not measured: taken as the H200's",
        ),
        Gpu(
            "B300", 275040, 0.88, 16384, 55.2, 50.0, H200_ROW_NS, H200_BYTE_NS, 256.0, False,
            "not measured: taken as the H200's PCIe 5 x16, although PCIe 6 exists",
        ),
        Gpu(
            "GH200", 97871, 0.86, 8192, 346.0, 50.0 * GRACE, H200_ROW_NS / GRACE, H200_BYTE_NS / GRACE, 447.0, True,
            "NVLink-C2C: copies as nvbandwidth issue #23 (346 GB/s), gathers the H200's x 3.9 (arXiv:2608.07009)",
        ),
    )
}  # fmt: skip


def find_gpu(given: str) -> Gpu:
    """The GPU called `given`. ValueError that names --gpu and the ones there are."""
    names = {name.lower(): name for name in GPUS}
    if name := names.get(given.lower()):
        return GPUS[name]
    near = difflib.get_close_matches(given.lower(), names, n=1)
    hint = f" Did you mean {names[near[0]]}?" if near else ""
    raise ValueError(f"--gpu {given}: not known.{hint} Known GPUs: {', '.join(GPUS)}")
