"""What stands in for a decode step beside page copies: per layer, two weight-bound GEMMs, a larger one, a read of KV,
and small kernels in between."""

from __future__ import annotations

import itertools
from functools import partial

import torch

LAYERS = 12
SMALL_KERNELS = 6


class DecodeLayers:
    """What the layers compute on. Owns about 5 GiB of HBM."""

    def __init__(self, device: torch.device, layers: int = LAYERS) -> None:
        hidden, batch = 6144, 64
        empty, randn = (
            partial(make, dtype=torch.bfloat16, device=device) for make in (torch.empty, torch.randn)
        )
        self._inputs, self._prompt = randn(batch, hidden), randn(1024, hidden)
        self._square = [randn(hidden, hidden) for _ in range(layers)]
        self._wide = [randn(hidden, 2 * hidden) for _ in range(layers)]
        self._cache = [randn(8192, 8192) for _ in range(layers)]  # 128 MiB each
        self._out, self._out_wide = empty(batch, hidden), empty(batch, 2 * hidden)
        self._out_prompt, self._total = empty(1024, hidden), empty(8192)

    def run(self, layer: int) -> None:
        """One layer on the current stream. Graph-safe once it has run."""
        torch.mm(self._inputs, self._square[layer], out=self._out)
        for _ in range(SMALL_KERNELS):
            self._out.mul_(0.5)
        torch.sum(self._cache[layer], 1, out=self._total)
        torch.mm(self._inputs, self._wide[layer], out=self._out_wide)
        torch.mm(self._prompt, self._square[layer], out=self._out_prompt)


class DecodeLoad:
    """One captured step, replayed on a stream of its own with the given priority."""

    def __init__(self, device: torch.device, priority: int) -> None:
        self._stream = torch.cuda.Stream(device, priority=priority)
        self._marks: list[torch.cuda.Event] = []
        self._steps = 0
        self._layers = DecodeLayers(device)

        def step() -> None:
            for layer in range(LAYERS):
                self._layers.run(layer)

        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        with torch.cuda.stream(self._stream):
            step()
            self._stream.synchronize()
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                step()
            finally:
                self._graph.capture_end()

    def enqueue(self, steps: int, behind: torch.cuda.Event | None = None) -> None:
        """Start `steps` steps, with an event before, between and behind them; not before the event `behind`."""
        while len(self._marks) <= steps:
            self._marks.append(torch.cuda.Event(enable_timing=True))
        self._steps = steps
        with torch.cuda.stream(self._stream):
            if behind is not None:
                self._stream.wait_event(behind)
            self._marks[0].record()
            for mark in self._marks[1 : steps + 1]:
                self._graph.replay()
                mark.record()

    def steps_ms(self) -> list[float]:
        """Milliseconds of every step, once those of `enqueue` are done."""
        marks = self._marks[: self._steps + 1]
        marks[-1].synchronize()
        return [before.elapsed_time(after) for before, after in itertools.pairwise(marks)]

    def ms_until(self, event: torch.cuda.Event) -> float:
        """From the start of the steps to `event`, which has happened; not below 0.001."""
        return max(1e-3, self._marks[0].elapsed_time(event))
