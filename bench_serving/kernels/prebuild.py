"""Builds all kernels at once, beside the pinning of the host buffer."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from sglang_hisparse.kernels import pages, resolve

from . import gather
from .stock import BLOCK_SIZE

if TYPE_CHECKING:
    from .bench import Bench


class Building:
    def __init__(self, bench: Bench, builds: dict[str, Callable[[], Any]]) -> None:
        self._bench, self._threads = bench, ThreadPoolExecutor(max_workers=8)
        self._started = time.perf_counter()
        self._futures: dict[str, Future[Any]] = {
            name: self._threads.submit(build) for name, build in builds.items()
        }

    def finish(self) -> None:
        """Wait for all. Raises the first failure, after naming all of them."""
        errors = {name: future.exception() for name, future in self._futures.items()}
        self._threads.shutdown()
        failed = {name: error for name, error in errors.items() if error is not None}
        self._bench.say(f"kernels: {len(errors) - len(failed)} built, {len(failed)} failed: {list(failed)}")
        for error in failed.values():
            raise error


def start(bench: Bench, sections: Collection[str]) -> Building | None:
    """Begin to build what the sections launch on this device; None where nothing is built."""
    if bench.device.type != "cuda":
        return None
    # Imported here: threads that import parts of one package at once wait for each other's module locks.
    import sglang.kernels.jit.utils
    import sglang.kernels.ops.kvcache.hisparse  # noqa: F401

    k, hot = bench.sizes.k, bench.sizes.hot

    def swap_in(row_bytes: int, plan: bool) -> Any:
        from sglang.kernels.ops.kvcache import hisparse as stock

        return stock._jit_sparse_module(
            row_bytes,
            BLOCK_SIZE,
            k,
            hot,
            is_mla=True,
            is_dsv4_layout=False,
            record_miss_plan=plan,
            skip_io=False,
        )

    def shared() -> Any:
        from sglang.kernels.ops.kvcache import hisparse as stock

        return stock._jit_copy_planned_module(1024, True, False, False)

    builds: dict[str, Callable[[], Any]] = {
        "resolve": resolve.prepare,
        "pages": pages.prepare,
        "gather": gather.prepare,
        "stock 656": partial(swap_in, 656, False),
        "stock 1152": partial(swap_in, 1152, False),
        "stock 656 with plan": partial(swap_in, 656, True),
        "stock shared": shared,
    }
    if set(sections) <= {"pages"}:
        builds = {"pages": builds["pages"]}
    return Building(bench, builds)
