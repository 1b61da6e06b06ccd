"""The plugin on stock SGLang and the patches without the plugin are one thing: same answers, same state, same refusals.

`make test-patched` runs the other tests of this folder on the patched tree; this one compares the two.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench_serving.prompts import random_prompts
from bench_serving.serving import CPU_ARGUMENTS, PATCHED_TREE, Answer, Server, ServerError
from tests.e2e.conftest import CHECKS, QUEST, SERVER_ARGUMENTS, Servers

PROMPTS = random_prompts([1100, 700, 900], shared=400, seed=3)
OPTIONS = {"host_pool_gib": 0.1, **QUEST, "audit": "full"}


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory, servers: Servers) -> Path:
    """A patched copy of the installed SGLang, in a path with a space. Other servers are ended, to leave memory."""
    servers.close()
    if given := os.environ.get(PATCHED_TREE):
        return Path(given)
    where = tmp_path_factory.mktemp("patched") / "my sglang"
    command = [sys.executable, "-m", "sglang_hisparse.patching", "tree", str(where)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return where


def observe(path: Path, tree: Path | None, log: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What one server answers, and what it says of itself."""
    monkeypatch.delenv(PATCHED_TREE, raising=False)
    args = [*SERVER_ARGUMENTS, "--max-total-tokens", "16384"]
    with Server(path, args, OPTIONS, patched=tree, env=CHECKS, log_path=log) as server:
        server.change(hisparse_force_spill=1.0, hisparse_shuffle=7)
        first: list[Answer] = server.generate(PROMPTS, 16)
        again = server.generate(PROMPTS, 16)
        state = server.hisparse()
    del state["counters"]["copy_stall_us"]  # a time, not a count
    state["seams"] = sorted(state["seams"], key=lambda seam: seam["id"])
    return {"answers": [*first, *again], "state": state, "log": log.read_text()}


def test_same_outputs_and_state(
    patched: Path, qwen3_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = observe(qwen3_path, None, tmp_path / "plugin.log", monkeypatch)
    patches = observe(qwen3_path, patched, tmp_path / "patches.log", monkeypatch)
    assert patches["answers"] == plugin["answers"], "tokens, logprobs or cached tokens"
    assert patches["state"] == plugin["state"], "version, pin, seams, options, capacity, pages or counters"
    assert (
        plugin["state"]["counters"]["selected_missed"] > 0
        and plugin["state"]["counters"]["pages_spilled"] > 0
    )
    assert f"{patched}/python/sglang" in patches["log"] and f"{patched}/python/sglang" not in plugin["log"]


def test_stock_launcher_refuses_by_name(
    patched: Path, qwen3_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks of arguments are there too."""
    log = tmp_path / "server.log"
    with (
        pytest.raises(ServerError, match="before it served"),
        Server(qwen3_path, CPU_ARGUMENTS, {"host_pool_gib": 1, "hot_row": 1}, patched=patched, log_path=log),
    ):
        pass
    assert "unknown key 'hot_row'. Did you mean 'hot_rows'?" in log.read_text()


REGISTER = "from sglang_hisparse.plugin import register\nregister()\n"
PROBE = """
import sys
sys.argv[1:] = {arguments!r}
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.plugins import load_plugins
load_plugins()
ours = sorted(m.rpartition("hisparse_tier.")[2] for m in sys.modules if ".hisparse_tier." in m)
wrapped = hasattr(Scheduler._add_request_to_queue, "__wrapped__")
print("RESULT", wrapped, "seams.forward" in ours, "sglang_hisparse" in sys.modules)
"""


@pytest.mark.parametrize(
    ("asked", "said"),
    [(False, "RESULT False False False"), (True, "RESULT True True False")],
    ids=["not asked", "asked"],
)
def test_inert_unless_asked(patched: Path, asked: bool, said: str) -> None:
    """Without the option the functions of the patched tree are stock's own, and none of our hooks is imported."""
    done = _probe(patched, asked, {"SGLANG_PLUGINS": "none"})
    assert said in done.stdout, done.stderr[-3000:]


def test_package_and_patches_together_are_refused(patched: Path) -> None:
    """A package that is installed as a plugin would apply every seam a second time."""
    done = _probe(patched, True, {}, package=True)
    assert done.returncode != 0 and "is patched with sglang_hisparse already" in done.stderr, done.stderr[
        -3000:
    ]


def test_a_lost_edit_does_not_serve(patched: Path, tmp_path: Path) -> None:
    """As after a merge that dropped one line: the process ends, and names it."""
    path = "sglang/srt/mem_cache/allocation.py"
    overlay = tmp_path / "sglang_overlay.py"
    text = patched.joinpath("python", path).read_text()
    line = '@hisparse_seam("extend-alloc")\n'
    assert text.count(line) == 1
    changed = tmp_path / "allocation.py"
    changed.write_text(text.replace(line, ""))
    overlay.write_text(
        "import importlib.util, sys\n"
        "import sglang.srt.mem_cache\n"
        f"spec = importlib.util.spec_from_file_location('sglang.srt.mem_cache.allocation', {str(changed)!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "sys.modules[spec.name] = module\n"
        "spec.loader.exec_module(module)\n"
    )
    before = f"sys.path.append({str(tmp_path)!r}); import sglang_overlay\n"
    done = _probe(patched, True, {"SGLANG_PLUGINS": "none"}, before=before)
    assert done.returncode != 0 and "carries the patches in part" in done.stderr, done.stderr[-3000:]
    assert (
        "extend-alloc: the edit at sglang.srt.mem_cache.allocation:alloc_for_extend is missing" in done.stderr
    )


def _probe(
    patched: Path, asked: bool, env: dict[str, str], package: bool = False, before: str = ""
) -> subprocess.CompletedProcess[str]:
    arguments = ["--hisparse-config", '{"host_pool_gib": 0.1}'] if asked else []
    code = PROBE.format(arguments=arguments).replace(
        "from sglang.srt.managers", f"{before}from sglang.srt.managers", 1
    )
    if package:
        code = f"import sys; sys.argv[1:] = {arguments!r}; import sglang.srt.plugins\n{REGISTER}"
    clean = {key: value for key, value in os.environ.items() if not key.startswith("SGLANG_HISPARSE")}
    guard = [] if package else [str(patched / "without_package")]
    path = [str(patched / "python"), *guard, *([str(Path(__file__).parents[2])] if package else [])]
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=patched / "python",
        env={**clean, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(path), **env},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
