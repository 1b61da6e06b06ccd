"""Make a row's matrix product on the CPU the same whatever other rows are in the batch.

BLAS takes other kernels for one, two and three rows than for four and more. (Measured: MKL in float32, one
thread; from four rows on a row's bits do not depend on their number.) A request that decodes alone would get
other logits than in company, and comparing two schedules bit by bit would fail for a reason not ours. Few
rows are therefore filled up, on the CPU and in float32 only: a serving GPU never comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad

ENOUGH_ROWS = 16
"""A product of this many rows is left as it is. Four suffice where it was measured; libraries differ."""


def fill_linear(
    original: Callable[..., torch.Tensor],
    method: Any,
    layer: Any,
    x: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """AROUND `UnquantizedLinearMethod.apply`: x [rows, in] -> [rows, out]."""
    return original(method, layer, _filled(x), bias)[: x.shape[0]]


def fill_lm_head(
    original: Callable[..., torch.Tensor],
    processor: Any,
    hidden_states: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """AROUND `LogitsProcessor._compute_lm_head`: hidden states [rows, hidden] -> logits."""
    logits = original(processor, _filled(hidden_states), *args, **kwargs)
    return logits[: hidden_states.shape[0]]


def _filled(x: torch.Tensor) -> torch.Tensor:
    """`x` itself, or with rows of zeros up to `ENOUGH_ROWS` where it is a float32 CPU matrix with fewer."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or x.dim() != 2 or x.shape[0] >= ENOUGH_ROWS:
        return x
    return pad(x, (0, 0, 0, ENOUGH_ROWS - x.shape[0]))
