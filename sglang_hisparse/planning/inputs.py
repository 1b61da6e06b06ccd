"""What a plan is asked for, and the check of every option."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sglang_hisparse.capacity import MOST_HOT_ROWS
from sglang_hisparse.planning.gpus import Gpu
from sglang_hisparse.planning.models import KV_DTYPES, Model

LEAST_HOT_MISS_RATE = 0.30
"""GLM-5.1, top-k hot rows: 30 % of a selection is not among them; 13.4 % with twice, 6.7 % with four times as many
(arXiv:2608.07009). With as many requests as fit each has its least hot rows, top-k."""

RAM_SHARE = 0.95
"""Part of the host's memory that host pools may take (vLLM's rule)."""

MOST_HOST_GIB = 1 << 20
MOST_CONTEXT = 1 << 26


@dataclass(frozen=True, slots=True)
class Inputs:
    """Options of `sglang-hisparse plan`. Sizes are of one rank (one GPU) unless the name ends in _total.

    host_pool_gib  the key of --hisparse-config; None: the smallest that lets the most requests run
    hot_rows       the key of --hisparse-config; None: 4 x top-k
    weights_gib    weights on one GPU; None: counted from the shapes
    max_running    request slots of one DP replica
    mem_fraction   --mem-fraction-static; None: the GPU's
    host_ram_gib   memory of the host for all its ranks; None: what is usual for the GPU
    """

    model: Model
    gpu: Gpu
    tp: int = 1
    dp: int = 1
    dp_attention: bool = False
    context: int = 81920
    host_pool_gib: float | None = None
    hot_rows: int | None = None
    kv_dtype: str = "bf16"
    weights_gib: float | None = None
    miss_rate: float = LEAST_HOT_MISS_RATE
    tpot_ms: float = 50.0
    max_running: int = 256
    mem_fraction: float | None = None
    host_ram_gib: float | None = None

    def __post_init__(self) -> None:
        """ValueError that names the option, what was given and what is possible."""
        model = self.model
        _whole("--tp", self.tp, 1, 1024)
        _whole("--dp", self.dp, 1, 1024)
        if self.dp_attention and self.tp % self.dp:
            fits = _divisors(self.tp)
            raise ValueError(
                f"--dp {self.dp} --dp-attention: --tp {self.tp} has to be a multiple; --dp {fits} works"
            )
        if model.heads % self.attention_tp:
            raise ValueError(
                f"--tp {self.tp}: the {model.heads} query heads of {model.name} do not spread over {self.attention_tp} "
                f"attention ranks; {_divisors(model.heads)} ranks work"
            )
        _whole("--context", self.context, 1, MOST_CONTEXT)
        _whole("--max-running", self.max_running, 1, 1 << 16)
        if self.hot_rows is not None:
            _whole("--hot-rows", self.hot_rows, model.top_k, MOST_HOT_ROWS)
        if self.host_pool_gib is not None:
            _number("--host-pool-gib", self.host_pool_gib, 0, MOST_HOST_GIB)
        if self.weights_gib is not None:
            _number("--weights-gib", self.weights_gib, 0, MOST_HOST_GIB)
        if self.host_ram_gib is not None:
            _number("--host-ram-gib", self.host_ram_gib, 0, MOST_HOST_GIB)
        if self.mem_fraction is not None:
            _number("--mem-fraction", self.mem_fraction, 0.01, 1)
        _number("--miss-rate", self.miss_rate, 0, 1)
        _number("--tpot-ms", self.tpot_ms, 0.001, 1e6)
        if self.kv_dtype not in KV_DTYPES:
            raise ValueError(f"--kv-dtype {self.kv_dtype}: possible are {', '.join(KV_DTYPES)}")

    @property
    def attention_tp(self) -> int:
        """Ranks that share the attention of one request."""
        return self.tp // self.dp if self.dp_attention else self.tp

    @property
    def gpus_total(self) -> int:
        return self.tp if self.dp_attention else self.tp * self.dp

    @property
    def fraction(self) -> float:
        return self.gpu.mem_fraction if self.mem_fraction is None else self.mem_fraction

    @property
    def host_ram_total(self) -> float:
        """GiB of host memory for the ranks of all GPUs of the plan."""
        return self.gpu.host_ram_gib * self.gpus_total if self.host_ram_gib is None else self.host_ram_gib

    @property
    def most_pool_gib(self) -> float:
        """The largest host pool of a rank for which the host has the memory."""
        return self.host_ram_total * RAM_SHARE / self.gpus_total


def _whole(option: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{option} {value}: a whole number from {least} to {most} is possible")


def _number(option: str, value: float, least: float, most: float) -> None:
    if isinstance(value, bool) or not math.isfinite(value) or not least <= value <= most:
        raise ValueError(f"{option} {value:g}: a number from {least:g} to {most:g} is possible")


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
