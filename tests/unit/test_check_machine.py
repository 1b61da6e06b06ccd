"""Findings of `check` that need a made-up machine: NUMA nodes, the link, other people's plugins."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from sglang_hisparse.commands import link, machine, packages
from sglang_hisparse.commands.finding import BAD, OK, WARN
from sglang_hisparse.seams.seam import RELY, Seam
from tests.unit.test_cli import executable

SPEED = {
    "device": "NVIDIA H200", "to_device": 55.2, "to_host": 55.3, "gather": 25.0, "gather_row_bytes": 656, "error": "",
}  # fmt: skip


def node(root: Path, number: int, free_gib: int) -> None:
    folder = root / f"sys/devices/system/node/node{number}"
    folder.mkdir(parents=True)
    (folder / "meminfo").write_text(f"Node {number} MemFree:       {free_gib << 20} kB\n")


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two NUMA nodes with a GPU each, and only what is in `bin` on the path; the root of that machine."""
    node(tmp_path, 0, 500)
    node(tmp_path, 1, 480)
    for home, bus in enumerate(("0000:0a:00.0", "0000:8a:00.0")):
        folder = tmp_path / "sys/bus/pci/devices" / bus
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{home}\n")
    executable(tmp_path / "bin/nvidia-smi", "echo '0, 00000000:0A:00.0'; echo '1, 00000000:8A:00.0'")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_numa_without_numactl(two_gpus: Path) -> None:
    finding = machine.numa(two_gpus)
    assert finding.status == WARN and "install numactl" in finding.fix
    assert finding.found == (
        "2 nodes: node0 500 GiB free, node1 480 GiB free; GPUs are on node0, node1; numactl is missing"
    )


def test_numa_with_numactl(two_gpus: Path) -> None:
    executable(two_gpus / "bin/numactl", "true")
    finding = machine.numa(two_gpus)
    assert finding.status == OK and finding.found.endswith("SGLang binds every rank with numactl")


def test_numa_where_the_driver_does_not_say(two_gpus: Path) -> None:
    (two_gpus / "sys/bus/pci/devices/0000:8a:00.0/numa_node").write_text("-1\n")
    finding = machine.numa(two_gpus)
    assert (finding.status, finding.found) == (OK, "2 nodes: node0 500 GiB free, node1 480 GiB free")


def test_one_node(tmp_path: Path) -> None:
    node(tmp_path, 0, 1)
    assert machine.numa(tmp_path).found == machine.numa(tmp_path / "nothing").found == "one node"


# -- the link --------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(two_gpus: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """`measured(script)`: what `speeds` finds where the measurement is this Python text."""
    monkeypatch.setattr(link.importlib.util, "find_spec", lambda name: object())

    def run(script: str):  # type: ignore[no-untyped-def]
        monkeypatch.setattr(link, "_MEASURE", [sys.executable, "-c", script])
        return list(link.speeds())

    return run


def test_link_speed(measured) -> None:  # type: ignore[no-untyped-def]
    first, second = measured(f"print({json.dumps([SPEED, SPEED | {'to_host': 6.1}])!r})")
    assert (first.name, first.status) == ("link GPU 0", OK)
    assert first.found == "55.2 GB/s to the device, 55.3 GB/s back, 25.0 GB/s gathering random rows of 656 B"
    assert second.status == WARN and second.wanted == "20 GB/s each way" and "numactl" in second.fix


def test_gather_that_does_not_build(measured) -> None:  # type: ignore[no-untyped-def]
    [finding] = measured(f"print({json.dumps([SPEED | {'gather': None, 'error': 'no nvcc'}])!r})")
    assert finding.status == WARN and finding.found.endswith("gather: no nvcc") and "nvcc" in finding.fix


@pytest.mark.parametrize("script", ["raise RuntimeError('CUDA is out of memory')", "import os; os.abort()"])
def test_measurement_that_fails(measured, script: str) -> None:  # type: ignore[no-untyped-def]
    [finding] = measured(script)
    assert finding.status == WARN and finding.found.startswith("not measured: ") and finding.fix
    assert "abort" in script or finding.found.endswith("CUDA is out of memory")


def test_measurement_that_hangs(measured, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(link, "LIMIT_S", 0.5)
    [finding] = measured("import time; time.sleep(60)")
    assert finding.found == "not measured: no result within 0.5 s"


def test_no_gpu_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(link, "_MEASURE", ["must not be run"])
    assert list(link.speeds()) == list(link.widths()) == []


def test_lanes_that_are_missing(two_gpus: Path) -> None:
    executable(two_gpus / "bin/nvidia-smi", "echo '0, 16, 16'; echo '1, 8, 16'; echo '2, [N/A], [N/A]'")
    [finding] = link.widths()
    assert (finding.name, finding.status) == ("link GPU 1", WARN)
    assert (finding.found, finding.wanted) == ("8 PCIe lanes", "16 PCIe lanes")


# -- other plugins ---------------------------------------------------------------------------------------------

ROWS = (
    Seam("forward", "sglang.srt.model_runner:Runner.forward", RELY, "", "a test", "never", scope="args", params=(),
         body=""),
    Seam("alloc", "sglang.srt.allocation:alloc", RELY, "", "a test", "never", scope="args", params=(), body=""),
)  # fmt: skip


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """`plugin(source)`: findings where a plugin `timer` is installed whose package holds that text."""

    def find(source: str):  # type: ignore[no-untyped-def]
        package = tmp_path / "timer_plugin"
        (package / "deep").mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('nothing is imported')")
        (package / "deep" / "hooks.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        entries = [
            EntryPoint("timer", "timer_plugin.deep.hooks:register", packages.PLUGIN_GROUP),
            EntryPoint(packages.PLUGIN_NAME, "sglang_hisparse.plugin:register", packages.PLUGIN_GROUP),
        ]
        monkeypatch.setattr(packages, "entry_points", lambda group: entries)
        return list(packages.other_plugins(ROWS))

    return find


@pytest.mark.parametrize(
    "source",
    [
        'HookRegistry.register("sglang.srt.model_runner.Runner.forward", timed)',
        'HookRegistry.register("sglang.srt.model_runner.Runner", Timed)',
        "TARGET = 'sglang.srt.model_runner:Runner.forward'",
    ],
)
def test_plugin_on_our_targets(plugin, source: str) -> None:  # type: ignore[no-untyped-def]
    [finding] = plugin(source)
    assert (finding.name, finding.status) == ("plugin timer", BAD)
    assert "sglang.srt.model_runner:Runner.forward" in finding.found and "alloc" not in finding.found
    assert finding.fix.startswith("export SGLANG_PLUGINS=hisparse, or pip uninstall")


@pytest.mark.parametrize(
    "source",
    [
        'HookRegistry.register("sglang.srt.model_runner.Runner.forward_split", timed)',
        "from sglang.srt.model_runner import Runner",
        "",
    ],
)
def test_plugin_on_other_targets(plugin, source: str) -> None:  # type: ignore[no-untyped-def]
    [finding] = plugin(source)
    assert finding.status == OK and "names none" in finding.found


def test_plugin_that_is_not_let_in(plugin, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SGLANG_PLUGINS", "hisparse")
    [finding] = plugin("'sglang.srt.allocation.alloc'")
    assert finding.status == OK and finding.found == "not loaded: SGLANG_PLUGINS=hisparse"


def test_plugin_that_is_gone(plugin, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    entry = EntryPoint("ghost", "no_such_package.hooks:register", packages.PLUGIN_GROUP)
    monkeypatch.setattr(packages, "entry_points", lambda group: [entry])
    assert [finding.status for finding in packages.other_plugins(ROWS)] == [OK]
