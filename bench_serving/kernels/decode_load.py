"""What stands in for a decode step beside page copies: per layer, two weight-bound GEMMs, a larger one, a read of KV,
and small kernels in between."""

from __future__ import annotations

from functools import partial

import torch

LAYERS = 12
SMALL_KERNELS = 6


class DecodeLoad:
    """One captured step. `step_ms(n)` replays it; on a stream of its own with the given priority."""

    def __init__(self, device: torch.device, priority: int) -> None:
        hidden, batch = 6144, 64
        empty, randn = (
            partial(make, dtype=torch.bfloat16, device=device) for make in (torch.empty, torch.randn)
        )
        self._stream = torch.cuda.Stream(device, priority=priority)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        inputs = randn(batch, hidden)
        prompt = randn(1024, hidden)
        square = [randn(hidden, hidden) for _ in range(LAYERS)]
        wide = [randn(hidden, 2 * hidden) for _ in range(LAYERS)]
        cache = [randn(8192, 8192) for _ in range(LAYERS)]  # 128 MiB each
        self._kept = (inputs, prompt, square, wide, cache)
        out = empty(batch, hidden)
        out_wide = empty(batch, 2 * hidden)
        out_prompt = empty(1024, hidden)
        total = empty(8192)
        self._kept_out = (out, out_wide, out_prompt, total)

        def step() -> None:
            for layer in range(LAYERS):
                torch.mm(inputs, square[layer], out=out)
                for _ in range(SMALL_KERNELS):
                    out.mul_(0.5)
                torch.sum(cache[layer], 1, out=total)
                torch.mm(inputs, wide[layer], out=out_wide)
                torch.mm(prompt, square[layer], out=out_prompt)

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
        """Start `steps` steps, between two events; not before the event `behind`."""
        with torch.cuda.stream(self._stream):
            if behind is not None:
                self._stream.wait_event(behind)
            self._start.record()
            for _ in range(steps):
                self._graph.replay()
            self._end.record()

    def step_ms(self, steps: int) -> float:
        """Milliseconds of a step, once the steps of `enqueue` are done."""
        self._end.synchronize()
        return self._start.elapsed_time(self._end) / steps
