"""How patches are made: from the table and the package, with the least context, the same bytes everywhere."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_hisparse import pin
from sglang_hisparse.patching import check as checker
from sglang_hisparse.patching.modules import FOLDER, PACKAGE, PLACE, own_modules, rewritten
from sglang_hisparse.patching.release import PatchError, check_unchanged, opened
from sglang_hisparse.patching.series import MODULES, Series, differences, folder, make, write
from sglang_hisparse.patching.stored import load
from sglang_hisparse.seams.fingerprint import fingerprint_target
from sglang_hisparse.seams.seam import RELY, Seam
from sglang_hisparse.seams.table import SEAMS
from tests.patches.conftest import MODULES as FAKE
from tests.patches.conftest import POOL, edit

ROOT = Path(__file__).resolve().parents[2]
IN_RELEASE = "sglang/srt/pool.py"


def test_header_and_context(series: Series) -> None:
    [patch] = [patch for patch in series.patches if patch.id == "of"]
    head, _, diff = patch.text.partition("---\n")
    assert head == (
        "Subject: [PATCH] hisparse: of: around Pool.of\n\nA test needs it.\n\n"
        "Seam: of (around sglang.srt.pool:Pool.of)\n"
        f"Base: SGLang {pin.SGLANG}\nDrop when: Tests are over.\nNeeds: modules.patch, size.patch (the import)\n"
    )
    assert diff.endswith('\n@@ -25,1 +25,2 @@\n+    @hisparse_seam("of")\n     def of(tokens):\n')


def test_context_grows_until_it_is_the_only_place(series: Series) -> None:
    """Both classes have a `free`: the line before the anchor, and the one before that, are the same too."""
    [patch] = [patch for patch in series.patches if patch.id == "free"]
    [hunk] = patch.hunks
    assert hunk.places(POOL.splitlines(keepends=True)) != []
    assert len(hunk.before) + len(hunk.after) == 2 and "self.count += count" in hunk.after[1]


def test_the_import_stands_where_a_sorter_puts_it(series: Series) -> None:
    lines = series.after["python/sglang/srt/pool.py"].splitlines()
    own = [line for line in lines if line.startswith("from sglang.")]
    assert own == sorted(own) and f"from {PLACE}.seams.patched import hisparse_seam" in own


def test_fingerprints_do_not_see_the_patches(series: Series, rows: tuple[Seam, ...], release: Path) -> None:
    (release / IN_RELEASE).write_text(series.after["python/sglang/srt/pool.py"])
    for row in rows:
        if "registry" not in row.id:
            found = fingerprint_target(row.target, shutil.copytree(release, release.parent / row.id))
            assert found == (row.params, row.body)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def size(tokens):", "def sizes(tokens):", "seam size: the anchor size is missing from "),
        (
            "class Other:",
            "def size(other):\n    pass\n\n\nclass Other:",
            "the anchor size is there 2 times in ",
        ),
        ("def size(tokens):", "async def size(tokens):", "is neither a plain function nor a registry"),
        ("REGISTRY = {}\n", "", "seam registry: the anchor REGISTRY is missing"),
    ],
)
def test_anchors_of_a_release_that_does_not_fit(
    release: Path, rows: tuple[Seam, ...], old: str, new: str, said: str
) -> None:
    edit(release, IN_RELEASE, old, new)
    with pytest.raises(PatchError, match=re.escape(said)):
        make(release, rows, FAKE)


def test_written_read_back_and_compared(series: Series, rows: tuple[Seam, ...], tmp_path: Path) -> None:
    where = tmp_path / "patches"
    assert write(series, where) == sorted(series.files()) and write(series, where) == []
    stored = load(where, rows)
    assert (stored.patches, stored.preimages, stored.rely) == (series.patches, series.preimages, series.rely)
    (where / "size.patch").write_text("by hand\n")
    (where / "old.patch").write_text("of a seam that is gone\n")
    assert differences(series, where) == ["old.patch", "size.patch"]
    with pytest.raises(PatchError, match=r"old.patch, size.patch are not what .* Run `make patches`"):
        checker.stale(series, where)
    write(series, where)
    assert not (where / "old.patch").exists() and differences(series, where) == []
    with pytest.raises(PatchError, match=r"differ in pages2.patch"):
        load(where, (*rows, replace(rows[0], id="pages2")))


def test_series_lists_what_nothing_is_changed_of(series: Series) -> None:
    text = series.files()["series"]
    assert "#   pages: sglang.srt.utils:pages\n" in text
    assert [line for line in text.splitlines() if line[0] != "#"] == [patch.file for patch in series.patches]


def test_imports_are_rewritten() -> None:
    text = (
        '"""sglang_hisparse.tier stays as it is."""\n'
        "from sglang_hisparse import pin\n"
        "def f():\n    from sglang_hisparse.seams.apply import installed\n"
        'HOOK = "sglang_hisparse.seams.pool:kv_pool_class"\n'
        'NAME = "sglang_hisparse"\n'
    )
    assert rewritten(text) == (
        '"""sglang_hisparse.tier stays as it is."""\n'
        f"from {PLACE} import pin\n"
        f"def f():\n    from {PLACE}.seams.patched import installed\n"
        f'HOOK = "{PLACE}.seams.pool:kv_pool_class"\n'
        'NAME = "sglang_hisparse"\n'
    )


def test_own_modules_are_complete() -> None:
    """Everything that they import of us is among them, by module and by name, and nothing of the package is left."""
    texts = own_modules()
    names = {name.removeprefix(FOLDER + "/") for name in texts}
    assert {"__init__.py", "seams/patched.py", "tier/host_tier.py", "_csrc/resolve.cuh"} <= names
    assert not {"plugin.py", "cli.py", "seams/apply.py", "seams/process.py"} & names
    for name, text in texts.items():
        if not name.endswith(".py"):
            assert text == (PACKAGE.parent / "csrc" / name.partition("_csrc/")[2]).read_text()
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                assert not module.startswith("sglang_hisparse"), (name, node.lineno)
                if f"{module}.".startswith(f"{PLACE}."):
                    assert not _absent(texts, module, [alias.name for alias in node.names]), (
                        name,
                        node.lineno,
                    )
    for seam in SEAMS:
        if seam.hook:
            module, _, function = seam.hook.partition(":")
            moved = rewritten(f'"{module}"\nx = "{module}:{function}"\n').splitlines()[1].split('"')[1]
            assert not _absent(texts, moved.partition(":")[0], [function]), seam.id


def _absent(texts: dict[str, str], module: str, names: list[str]) -> list[str]:
    base = "python/" + module.replace(".", "/")
    text = texts.get(f"{base}.py", texts.get(f"{base}/__init__.py"))
    if text is None:
        return [module]
    bound = {
        name
        for node in ast.walk(ast.parse(text))
        for name in (
            getattr(node, "name", None) if isinstance(node, ast.FunctionDef | ast.ClassDef) else None,
            node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None,
            *(
                [a.asname or a.name for a in node.names]
                if isinstance(node, ast.Import | ast.ImportFrom)
                else ()
            ),
        )
    }
    return [
        n
        for n in names
        if n not in bound and f"{base}/{n}.py" not in texts and f"{base}/{n}/__init__.py" not in texts
    ]


@pytest.fixture(scope="module")
def real() -> Series:
    """The series of this checkout for the installed SGLang."""
    pytest.importorskip("sglang", reason=f"SGLang is not installed: pip install {pin.requirement()}")
    with opened() as root:
        return make(root)


def test_patches_are_what_make_patches_makes(real: Series) -> None:
    """What CI compares: `make patches` mends it."""
    check_unchanged(real.preimages)
    checker.stale(real, folder())


def test_one_patch_a_seam(real: Series) -> None:
    assert [patch.id for patch in real.patches] == [MODULES, *(s.id for s in SEAMS if s.kind is not RELY)]
    for patch in real.patches[1:]:
        assert patch.seam is not None and sum(len(hunk.lines) for hunk in patch.hunks) <= 2
        for part in (patch.seam.why.split()[0], f"Base: SGLang {pin.SGLANG}\n", patch.seam.retire_when):
            assert part in patch.text


def test_the_whole_life_against_the_pinned_release(real: Series, tmp_path: Path) -> None:
    write(real, tmp_path)
    with opened() as root:
        said = list(checker.check(root, real, tmp_path))
    assert "already applied" in said and said[-1] == "taken back: the tree is the same, byte by byte"


def test_same_bytes_in_another_process(real: Series, tmp_path: Path) -> None:
    """Another hash seed, locale, time zone and place of the checkout."""
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "12345",
        "LC_ALL": "C",
        "TZ": "Asia/Tokyo",
        "PYTHONPATH": str(tmp_path),
    }
    command = [sys.executable, "-m", "sglang_hisparse.patching", "make"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=300)
    assert differences(real, tmp_path / "patches") == []


def test_a_wheel_and_a_checkout_are_opened_alike(release: Path, tree: Path, tmp_path: Path) -> None:
    wheel = shutil.make_archive(str(tmp_path / "sglang-1-py3-none-any"), "zip", release)
    renamed = Path(wheel).rename(tmp_path / "sglang-1-py3-none-any.whl")
    for where in (renamed, release, release / "sglang", tree, tree / "python"):
        with opened(where) as root:
            assert (root / IN_RELEASE).read_text() == POOL
    for where in (tmp_path / "absent.whl", tmp_path):
        with pytest.raises(PatchError), opened(where):
            pass
