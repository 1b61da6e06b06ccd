"""The wheel, installed in an environment of its own, holds everything that the checkout has."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sglang_hisparse import pin

ROOT = Path(__file__).resolve().parents[2]
PROBE = """
import importlib.metadata as metadata, json, pathlib, sglang_hisparse
points = metadata.entry_points(group="sglang.srt.plugins", name="hisparse")
print(json.dumps({
    "folder": str(pathlib.Path(sglang_hisparse.__file__).parent),
    "version": metadata.version("sglang_hisparse"),
    "in_code": sglang_hisparse.__version__,
    "requires": metadata.requires("sglang_hisparse"),
    "plugin": [point.value for point in points],
    "callable": [callable(point.load()) for point in points],
}))
"""


def _run(*command: object, cwd: Path = Path("/")) -> str:
    """Output of a command; away from the checkout, which would be imported instead of what is installed."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, check=False, cwd=cwd
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def _digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from this checkout with the tools that are installed."""
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that holds the wheel and nothing else."""
    venv = tmp_path_factory.mktemp("clean") / "venv"
    _run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    _run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    return python


@pytest.fixture(scope="module")
def found(installed: Path) -> dict:
    return json.loads(_run(installed, "-c", PROBE))


def test_wheel_is_for_every_platform(wheel: Path) -> None:
    assert wheel.name == f"sglang_hisparse-{pin.PACKAGE}-py3-none-any.whl"


def test_version_and_extras_are_those_of_pin(found: dict) -> None:
    assert found["version"] == found["in_code"] == pin.PACKAGE
    assert [line for line in found["requires"] if "extra ==" not in line] == ["numpy"]
    assert f"{pin.requirement()}; extra == 'sglang'" in found["requires"]


def test_entry_point_loads_without_sglang(found: dict) -> None:
    assert found["plugin"] == ["sglang_hisparse.plugin:register"]
    assert found["callable"] == [True]


def test_planning_works_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    """The page's parts are package data."""
    page = tmp_path / "plan.html"
    command = ("-m", "sglang_hisparse.cli", "plan", "--model", "GLM-5.2", "--tp", 8, "--html", page)
    assert f"Page: {page}" in _run(installed, *command)
    assert "function makePlan" in page.read_text()


@pytest.mark.parametrize("folder", ["csrc", "patches"])
def test_folders_beside_the_package_are_in_it(found: dict, folder: str) -> None:
    if not (ROOT / folder).is_dir():
        pytest.skip(f"the checkout has no {folder}/")
    shipped = _digests(Path(found["folder"], f"_{folder}"))
    assert shipped == _digests(ROOT / folder)
    assert shipped


def test_every_module_and_the_type_marker_are_in_it(found: dict) -> None:
    shipped = _digests(Path(found["folder"]))
    modules = {
        name: digest for name, digest in shipped.items() if not name.startswith(("_csrc/", "_patches/"))
    }
    assert modules == _digests(ROOT / "sglang_hisparse")
    assert "py.typed" in modules


def test_nothing_else_is_installed(found: dict) -> None:
    site = Path(found["folder"]).parent
    names = {path.name for path in site.iterdir()} - {"__pycache__"}
    assert names == {"sglang_hisparse", f"sglang_hisparse-{pin.PACKAGE}.dist-info"}


def test_console_script_runs(installed: Path) -> None:
    assert pin.SGLANG in _run(installed.parent / "sglang-hisparse", "--version")


def test_wheel_of_the_source_archive_is_the_same(wheel: Path, tmp_path: Path) -> None:
    """The archive carries the build hook and the folders beside the package."""
    _run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    [archive] = tmp_path.glob("*.tar.gz")
    _run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        archive,
    )
    [rebuilt] = tmp_path.glob("*.whl")
    assert _entries(rebuilt) == _entries(wheel)


def test_editable_install_copies_no_sources(tmp_path: Path) -> None:
    """A copy of csrc in site-packages would go stale beside the checkout's own."""
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel:editable", "-d", tmp_path, cwd=ROOT)
    [editable] = tmp_path.glob("*.whl")
    names = [name for name in _entries(editable) if ".dist-info/" not in name]
    assert len(names) == 1 and names[0].endswith(".pth")


def _entries(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}
