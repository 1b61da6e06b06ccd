"""Who may import whom, and what works where neither torch nor SGLang is installed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "sglang_hisparse"
FILES = sorted(PACKAGE.rglob("*.py"))
STDLIB_ONLY = (
    "policy/",
    "planning/",
    "benchmark_aids.py",
    "capacity.py",
    "config.py",
    "gate.py",
    "limits.py",
    "metrics.py",
    "pin.py",
)
LOWER = ("tier/", "kernels/", "selectors/")
UPPER = ("seams/", "plugin.py", "launch_server.py", "cli.py", "commands/", "patching/")
SEAM_TOOLS = (
    "__init__",
    "apply",
    "calls",
    "drift",
    "fingerprint",
    "patched",
    "seam",
    "table",
    "target",
    "wrap",
)
LIGHT = (
    *("__init__.py", "gate.py", "plugin.py", "launch_server.py", "cli.py", "commands/", "patching/"),
    *(f"seams/{tool}.py" for tool in SEAM_TOOLS),
)
"""What runs in every process of SGLang, or on machines without it."""

_IMPORTERS = ("import_module", "__import__", "resolve_name", "find_spec")


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imports(path: Path, top_level_only: bool = False) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported; `top_level_only` leaves out what functions import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = ("sglang_hisparse", *path.relative_to(PACKAGE).parts[:-1])
    for node in _run_at_import(tree) if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join(filter(None, (*base, node.module)))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _IMPORTERS:
            yield from ((node.lineno, a.value) for a in node.args if isinstance(a, ast.Constant) and a.value)


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _run_at_import(child)


def offenders(path: Path, *banned: str, top_level_only: bool = False) -> list[str]:
    """Imports of the banned packages or of anything in them."""
    return [
        f"line {line}: {module}"
        for line, module in imports(path, top_level_only)
        if any(f"{module}.".startswith(f"{package}.") for package in banned)
    ]


def files(*folders: str) -> list[Path]:
    return [path for path in FILES if name_of(path).startswith(folders)]


def modules(*folders: str) -> list[str]:
    return [f"sglang_hisparse.{folder.removesuffix('/').removesuffix('.py')}" for folder in folders]


def test_the_scan_sees_imports() -> None:
    """The tests below pass on an empty scan: show that it is not."""
    found = {module for path in FILES for _, module in imports(path)}
    assert {"ast", "dataclasses.dataclass"} <= found
    assert any(module.startswith("torch") for module in found)
    inner = [module for _, module in imports(PACKAGE / "cli.py", top_level_only=True)]
    assert "sglang_hisparse.commands.check" in inner


@pytest.mark.parametrize("path", files(*STDLIB_ONLY), ids=name_of)
def test_policy_and_sizing_import_the_standard_library_only(path: Path) -> None:
    allowed = {*sys.stdlib_module_names, "sglang_hisparse"}
    assert not [f"line {line}: {m}" for line, m in imports(path) if m.partition(".")[0] not in allowed]
    assert not offenders(path, *modules(*LOWER, *UPPER))


@pytest.mark.parametrize("path", files(*LOWER), ids=name_of)
def test_lower_layers_do_not_import_upwards(path: Path) -> None:
    assert not offenders(path, *modules(*UPPER))
    assert not offenders(path, "sglang", top_level_only=True), "SGLang's JIT is imported where it is used"


@pytest.mark.parametrize("path", [p for p in FILES if p not in files("seams/")], ids=name_of)
def test_only_seams_import_sglang_srt(path: Path) -> None:
    assert not offenders(path, "sglang.srt")


@pytest.mark.parametrize("path", files(*LIGHT), ids=name_of)
def test_entry_points_import_neither_torch_nor_sglang(path: Path) -> None:
    """An ImportError in the plugin would be swallowed by SGLang, and the server would run without us."""
    assert not offenders(path, "torch", "sglang", "numpy", top_level_only=True)


BLOCKED = """
import sys
names = ("torch", "sglang", "numpy", "tvm_ffi")
sys.modules.update(dict.fromkeys(names))  # None: the import system answers as if they were not installed
"""


@pytest.mark.parametrize(
    "module",
    [
        "config",
        "capacity",
        "policy",
        "planning.page",
        "plugin",
        "cli",
        "seams.table",
        "seams.apply",
    ],
)
def test_imports_without_torch_and_sglang(module: str) -> None:
    _run(f"{BLOCKED}\nimport sglang_hisparse, sglang_hisparse.{module}")


def test_check_runs_without_torch_and_sglang() -> None:
    _run(f"{BLOCKED}\nfrom sglang_hisparse.cli import main\nassert main(['check', '--json']) == 1")


def _run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
