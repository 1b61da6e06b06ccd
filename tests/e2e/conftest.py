"""For the end-to-end tests: tiny models, prompts, and servers that tests with the same options share."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench_serving.prompts import random_prompts
from bench_serving.serving import CPU_ARGUMENTS, Answer, Server
from bench_serving.tiny_models import ensure

QUEST = {"selector": "quest", "top_k": 512, "recent_tokens": 128, "page_size": 64}
"""Quest options of the tests: 512 positions a step, so that prompts of 1,500 tokens are sparse already."""

SERVER_ARGUMENTS = (*CPU_ARGUMENTS, "--page-size", "64", "--sleep-on-idle", "--skip-server-warmup")

CHECKS = {
    "SGLANG_HISPARSE_TEST": "1",  # the test knobs of /set_internal_state work
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",  # stock counts its slots after every step
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",  # and looks for pages that are free and in use
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",  # a server that fails ends within seconds
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
}

MOST_ALIVE = 2
"""Servers kept at a time: the one under test and the one it is compared with. Each takes about 4 GB."""

Prompts = Callable[..., list[list[int]]]
Serve = Callable[..., Server]
Expect = Callable[..., list[Answer]]


@pytest.fixture(scope="session")
def qwen3_path() -> Path:
    """Folder of the tiny Qwen3 checkpoint."""
    return ensure("qwen3-tiny")


@pytest.fixture(scope="session")
def llama_path() -> Path:
    """Folder of the tiny Llama checkpoint."""
    return ensure("llama-tiny")


@pytest.fixture(scope="session")
def prompts() -> Prompts:
    """`prompts(lengths, shared=0, seed=0)`: seeded token lists; those at even places share their start."""
    return random_prompts


class Servers:
    """Starts servers and keeps the `MOST_ALIVE` used last, by their whole configuration."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._alive: OrderedDict[str, Server] = OrderedDict()
        self._resident: set[str] = set()
        self._started = 0

    def get(
        self,
        model: Path,
        hisparse: dict[str, Any] | None,
        *,
        max_total_tokens: int = 32768,
        args: Sequence[str] = (),
        env: dict[str, str] | None = None,
    ) -> Server:
        """A CPU server with these options, an empty prefix cache and knobs at rest: a running one, or one
        started now."""
        key = json.dumps([str(model), hisparse, max_total_tokens, list(args), env], sort_keys=True)
        if hisparse is not None and not hisparse["host_pool_gib"]:
            self._resident.add(key)
        server = self._alive.pop(key, None)
        if server is None or not server.alive:
            if server is not None:
                server.close()
            while len(self._alive) >= MOST_ALIVE:
                self._alive.pop(self._next_to_end()).close()
            server = self._start(model, hisparse, max_total_tokens, args, env)
        self._alive[key] = server
        if hisparse is not None:
            server.change(hisparse_force_spill=0)
        server.flush()
        return server

    def _next_to_end(self) -> str:
        """The one used longest ago, but not the one that the others are compared with."""
        return next((key for key in self._alive if key not in self._resident), next(iter(self._alive)))

    def _start(
        self,
        model: Path,
        hisparse: dict[str, Any] | None,
        max_total_tokens: int,
        args: Sequence[str],
        env: dict[str, str] | None,
    ) -> Server:
        self._started += 1
        server = Server(
            model,
            [*SERVER_ARGUMENTS, "--max-total-tokens", str(max_total_tokens), *args],
            hisparse,
            env={**CHECKS, **(env or {})},
            log_path=self._logs / f"server-{self._started}.log",
        )
        server.start()
        return server

    def close(self) -> None:
        """End every server."""
        while self._alive:
            self._alive.popitem()[1].close()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The servers of all tests, so that a configuration starts once; those left are ended after the last test."""
    pool = Servers(tmp_path_factory.mktemp("servers"))
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def quest_server(servers: Servers, qwen3_path: Path) -> Serve:
    """`quest_server(host_pool_gib=0, max_total_tokens=32768, args=(), env=None, **options)`: a server.

    It serves the tiny Qwen3 with Quest. `options` are keys of --hisparse-config, on top of `QUEST`. The test
    knobs of /set_internal_state work.
    """

    def serve(
        host_pool_gib: float = 0.0,
        max_total_tokens: int = 32768,
        args: Sequence[str] = (),
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> Server:
        config = {"host_pool_gib": host_pool_gib, **QUEST, **options}
        return servers.get(qwen3_path, config, max_total_tokens=max_total_tokens, args=args, env=env)

    return serve


@pytest.fixture(scope="session")
def resident(quest_server: Serve) -> Serve:
    """`resident()`: a server whose device pool holds everything; what the others are compared with."""
    return quest_server


@pytest.fixture(scope="session")
def expect(resident: Serve) -> Expect:
    """`expect(prompts, max_new_tokens, stop_at_eos=False)`: what the resident server answers, asked once.

    It starts each time with an empty prefix cache; outputs do not depend on it.
    """
    known: dict[str, list[Answer]] = {}

    def ask(prompts: Sequence[Sequence[int]], max_new_tokens: Any = 16, **options: Any) -> list[Answer]:
        key = json.dumps([prompts, max_new_tokens, options])
        if key not in known:
            known[key] = resident().generate(prompts, max_new_tokens, **options)
        return known[key]

    return ask
