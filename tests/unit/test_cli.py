"""`sglang-hisparse check`: what it finds, what it advises, and its exit code."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from sglang_hisparse import cli, pin
from sglang_hisparse.commands import check, machine, packages
from sglang_hisparse.commands.finding import BAD, OK, WARN, Finding
from sglang_hisparse.limits import Limit
from sglang_hisparse.seams.fingerprint import fingerprint_target
from sglang_hisparse.seams.seam import RELY, Seam

FINE = Finding("sglang", OK, pin.SGLANG, pin.SGLANG)
NO_GPU = Finding("GPU", WARN, "none", "one", "get one")
WRONG = Finding("torch", BAD, "1.0", "2.0", "pip install torch==2.0")


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("findings", "code"), [([FINE], 0), ([FINE, NO_GPU], 0), ([FINE, WRONG], 1), ([WRONG, NO_GPU], 1)]
)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_exit_code(monkeypatch: pytest.MonkeyPatch, findings, code: int, options: list[str]) -> None:
    monkeypatch.setattr(check, "collect", lambda link: iter(findings))
    assert cli.main(["check", *options]) == code


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["check", "--nonsense"]])
def test_wrong_usage_is_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2


def test_text_shows_wanted_found_and_fix(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(check, "collect", lambda link: iter([FINE, WRONG, NO_GPU]))
    cli.main(["check"])
    printed = capsys.readouterr().out
    assert "1.0 (wanted: 2.0)" in printed and "fix: pip install torch==2.0" in printed
    assert "1 problem(s), 1 warning(s)" in printed


def test_json_has_every_finding(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(check, "collect", lambda link: iter([FINE, WRONG]))
    cli.main(["check", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False and report["sglang_hisparse"] == pin.PACKAGE
    assert report["findings"][1] == {
        "name": "torch", "status": "BAD", "found": "1.0", "wanted": "2.0", "fix": "pip install torch==2.0",
    }  # fmt: skip


def test_this_machine_can_be_checked(capsys) -> None:
    """Whatever is installed here: it runs, and what is not fine says what was wanted and what to do."""
    assert cli.main(["check", "--json", "--skip-link"]) in (0, 1)
    findings = json.loads(capsys.readouterr().out)["findings"]
    names = {finding["name"].partition(" ")[0] for finding in findings}
    assert {"sglang", "torch", "plugin", "nvcc", "GPU", "host", "locked", "NUMA"} <= names
    assert "seam" in names or "seams" in names
    for finding in findings:
        assert finding["status"] == "ok" or (finding["wanted"] and finding["fix"]), finding


def test_nothing_installed_is_reported_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(packages, "version", missing)
    monkeypatch.setattr(check.importlib.util, "find_spec", lambda name: None)
    found = list(packages.packages())
    assert {finding.found for finding in found} == {"missing"}
    assert {finding.fix.partition(",")[0] for finding in found} == {f"pip install {pin.requirement()}"}
    [seams] = check.seams(check.SEAMS)
    assert seams.status == BAD and pin.requirement() in seams.fix


def test_local_part_of_a_version_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"sglang": pin.SGLANG, **pin.BUILT_ON}
    monkeypatch.setattr(packages, "version", lambda name: wanted[name] + "+cu130")
    assert {finding.status for finding in packages.packages()} == {OK}
    monkeypatch.setattr(packages, "version", lambda name: wanted[name] + "1")
    assert {finding.status for finding in packages.packages()} == {BAD}


def test_whitelist_that_leaves_us_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Found:
        names = frozenset({packages.PLUGIN_NAME})

    monkeypatch.setattr(packages, "entry_points", lambda group: Found)
    monkeypatch.setenv("SGLANG_PLUGINS", "timer, ")
    finding = packages.plugin()
    assert finding.status == BAD and finding.fix == "export SGLANG_PLUGINS=timer,hisparse"
    monkeypatch.setenv("SGLANG_PLUGINS", "timer,hisparse")
    assert packages.plugin().status == OK
    monkeypatch.delenv("SGLANG_PLUGINS")
    assert packages.plugin().status == OK
    monkeypatch.setattr(packages, "entry_points", lambda group: type("None_", (), {"names": frozenset()}))
    assert packages.plugin().status == BAD


def test_drifted_and_missing_seams_are_named(tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text("def size(tokens, page): return tokens // page\n")

    def row(name: str, **fields: object) -> Seam:
        given = {"params": (), "body": "", **fields}
        return Seam(name, f"pool:{name}", RELY, "", "a test", "never", scope="args", **given)  # type: ignore[arg-type]

    params, body = fingerprint_target("pool:size", tmp_path)
    fits = row("size", params=params, body=body)
    drifted = row("size", params=("tokens", "block"), body=body)
    gone = row("gone")
    assert [finding.status for finding in check.seams((fits,), str(tmp_path))] == [OK]
    changed, missing = check.seams((drifted, gone), str(tmp_path))
    assert changed.status == missing.status == BAD
    assert "without block and with page" in changed.found and changed.found.startswith("drifted: pool:size")
    assert missing.found.startswith("missing: pool:gone") and missing.fix
    text = check.render([*check.seams((fits, gone), str(tmp_path))])
    assert "1 of 2 fit" in text and "seam gone" in text


def test_gpus_as_nvidia_smi_prints_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(
        tmp_path / "nvidia-smi", "echo '0, NVIDIA H200, 143771, 140000, 9.0'; echo '1, Odd, [N/A], 1, 8.0'"
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    first, second = machine.gpus()
    assert (first.name, first.status) == ("GPU 0", OK)
    assert first.found == "NVIDIA H200, 136.7 of 140.4 GiB free, compute capability 9.0"
    assert "0.0 of [N/A] GiB" in second.found
    executable(tmp_path / "nvidia-smi", "exit 9")
    [none] = machine.gpus()
    assert none.status == WARN and none.fix


def test_gpu_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "nvidia-smi", "echo '0, NVIDIA A100, 81920, 81000, 8.0'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    [old] = machine.gpus()
    assert old.status == WARN and "Hopper" in old.fix


def test_compiler_is_the_one_of_cuda_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = executable(tmp_path / "cuda/bin/nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert machine.compiler().found == f"13.0 ({nvcc})"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = machine.compiler()
    assert (missing.status, bool(missing.fix)) == (WARN, True)
    executable(tmp_path / "nvidia-smi", "true")
    assert machine.compiler().status == BAD, "a GPU that cannot be used is a problem, no GPU is not"


def test_host_memory_names_every_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [Limit("locked memory (ulimit -l)", 0.0625), Limit("cgroup limit", 1.5), Limit("RAM", 66.9)]
    monkeypatch.setattr(machine, "host_limits", lambda: limits)
    locked, cgroup, ram = machine.host_memory()
    assert locked.status == OK and "0.0625 GiB" in locked.found
    assert cgroup.status == WARN and "1.5 GiB" in cgroup.found and cgroup.fix
    assert ram.status == OK and "up to 64" in ram.found
    monkeypatch.setattr(machine, "host_limits", lambda: limits[2:])
    assert [finding.found for finding in machine.host_memory()][1] == "unlimited (ulimit -l)"
