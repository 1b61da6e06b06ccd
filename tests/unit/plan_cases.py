"""Inputs of plans that the tests share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from sglang_hisparse.planning.gpus import GPUS
from sglang_hisparse.planning.inputs import Inputs
from sglang_hisparse.planning.known_models import KNOWN
from sglang_hisparse.planning.models import find_model


def inputs(model: str = "GLM-5.2", gpu: str = "H200", **options: Any) -> Inputs:
    """Inputs with the model's own KV dtype; TP 8 unless told."""
    found = find_model(model)
    return Inputs(found, GPUS[gpu], **{"tp": 8, "kv_dtype": found.default_dtype, **options})


def short(case: Inputs) -> str:
    """Model, GPU and what differs from the defaults, for the names of tests."""
    usual = inputs(case.model.name, case.gpu.name)
    changed = [
        f"{n}={getattr(case, n)}"
        for n in Inputs.__dataclass_fields__
        if getattr(case, n) != getattr(usual, n)
    ]
    return "-".join([case.model.name, case.gpu.name, *changed])


def grid() -> Iterator[Inputs]:
    """Every model on every GPU, and options one after another: what Python and the page have to agree on."""
    for model, gpu in itertools.product(KNOWN, GPUS):
        yield inputs(model, gpu)
    changes: list[dict[str, Any]] = [
        *({"context": n} for n in (1, 64, 2000, 2240, 2241, 4096, 81921, 262144, 1 << 20, 1 << 24)),
        *({"host_pool_gib": n} for n in (0, 0.2, 1, 7.5, 96, 384, 2000, 100000)),
        *({"hot_rows": n} for n in (2048, 2051, 4096, 8192, 32768)),
        *({"kv_dtype": kind} for kind in ("bf16", "fp8")),
        *({"tp": n} for n in (1, 2, 4, 8)),
        *({"tp": 8, "dp": n, "dp_attention": True} for n in (1, 2, 8)),
        {"dp": 4},
        *({"weights_gib": n} for n in (0, 60.25, 200)),
        *({"miss_rate": n} for n in (0, 0.134, 1)),
        *({"tpot_ms": n} for n in (1, 12.5, 200)),
        *({"max_running": n} for n in (1, 16, 1024)),
        *({"mem_fraction": n} for n in (0.5, 0.95, 1)),
        *({"host_ram_gib": n} for n in (0, 64, 1000, 20000)),
    ]
    for model, change in itertools.product(
        ("GLM-5.2", "DeepSeek-V3.2", "Qwen3.8-Flash-Next", "Llama-3-8B"), changes
    ):
        if change.get("hot_rows", 4096) >= find_model(model).top_k:
            yield inputs(model, **change)
