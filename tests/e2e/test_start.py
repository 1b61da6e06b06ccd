"""A server that cannot work as asked does not start, and says why in one message."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bench_serving.serving import CPU_ARGUMENTS, Server, ServerError
from tests.e2e.conftest import QUEST


def refusal(model: Path, tmp_path: Path, hisparse: dict[str, Any], *args: str) -> str:
    """What the launcher prints before it ends."""
    log = tmp_path / "server.log"
    with (
        pytest.raises(ServerError, match="before it served"),
        Server(model, [*CPU_ARGUMENTS, *args], hisparse, log_path=log),
    ):
        pass
    return log.read_text()


def test_unknown_option(qwen3_path: Path, tmp_path: Path) -> None:
    text = refusal(qwen3_path, tmp_path, {"host_pool_gib": 1, "hot_row": 4096})
    assert "unknown key 'hot_row'. Did you mean 'hot_rows'? Known keys: host_pool_gib, hot_rows," in text


def test_host_pool_larger_than_the_machine(qwen3_path: Path, tmp_path: Path) -> None:
    wanted = 2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (1 << 30) + 1000
    text = refusal(qwen3_path, tmp_path, {"host_pool_gib": wanted, **QUEST})
    assert f"host_pool_gib {wanted} x 1 rank(s) of this host is more than the " in text
    assert "A host_pool_gib that fits: " in text
