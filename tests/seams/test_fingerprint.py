"""What changes a fingerprint and what does not, and that source and live object agree."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from sglang_hisparse.seams.fingerprint import (
    NO_SOURCE,
    FingerprintError,
    fingerprint,
    fingerprint_source,
    fingerprint_target,
    main,
    module_source,
)
from sglang_hisparse.seams.target import resolve
from tests.seams.conftest import POOL

BASE = '''
@cached
def f(a: int, b=2, *rest, key=None, **options) -> int:
    """Says what it does."""
    def inner():
        """So does this."""
        return "text"
    return a + b
'''


def of(tmp_path: Path, text: str, qualname: str = "f") -> tuple[tuple[str, ...], str]:
    path = tmp_path / f"m{len(list(tmp_path.iterdir()))}.py"
    path.write_text(text)
    return fingerprint_source(path, qualname)


def test_value_is_fixed(tmp_path: Path) -> None:
    """The table holds such values: neither Python's version nor a change of ours may move them."""
    assert of(tmp_path, BASE) == (("a", "b", "*rest", "key", "**options"), "70cc55096664f0eb")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Says what it does.", "Says something else."),
        ('    """Says what it does."""\n', ""),
        ("So does this.", "And this."),
        ("return a + b", "# why\n    return (a +\n            b)"),
        ("b=2,", "b = 2 ,"),
        ('"text"', "'text'"),
        ("\n@cached", "\nimport os\n\n\n@cached"),
    ],
)
def test_text_that_does_not_run_does_not_count(tmp_path: Path, old: str, new: str) -> None:
    assert of(tmp_path, BASE.replace(old, new)) == of(tmp_path, BASE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return a + b", "return a - b"),
        ("b=2", "b=3"),
        ("b=2", "b=2.0"),
        ("a: int", "a: float"),
        ("@cached\n", ""),
        ("def f", "async def f"),
        ('"text"', '"""text\n    """'),
        ('"text"', 'b"text"'),
        ("return a + b", "return a + b\n    return a"),
        ("*rest, key", "*, key"),
        ("key=None", "key=True"),
    ],
)
def test_what_runs_counts(tmp_path: Path, old: str, new: str) -> None:
    assert of(tmp_path, BASE.replace(old, new))[1] != of(tmp_path, BASE)[1]


@pytest.mark.parametrize(
    "qualname",
    [
        "size", "Pool", "Pool.__init__", "Pool.free", "Pool.tokens", "Pool.empty", "Pool.of", "Pool.label",
        "Pool.drawn", "Pool.later", "traced", "REGISTRY",
    ],
)  # fmt: skip
def test_live_object_and_source_agree(fake: ModuleType, qualname: str) -> None:
    target = f"sglang.fake_pool:{qualname}"
    assert fake.__file__
    found = fingerprint_source(fake.__file__, qualname)
    assert fingerprint(resolve(target).raw) == found
    assert (found == NO_SOURCE) == (qualname == "REGISTRY")


def test_multi_line_string_in_a_method_counts(tmp_path: Path, fake: ModuleType) -> None:
    assert "    as it is" in POOL
    indented = Path(str(fake.__file__)).read_text().replace("as it is", "    as it is")
    assert of(tmp_path, indented, "Pool.free") != fingerprint(fake.Pool.free)


def test_property_is_its_getter(tmp_path: Path) -> None:
    getter, setter = (
        "@property\n    def x(self): return 1",
        "@x.setter\n    def x(self, value): self.y = value",
    )
    text = f"class C:\n    {getter}\n    {setter}\n"
    assert of(tmp_path, text, "C.x")[0] == ("self",)


def test_overloads_do_not_count(tmp_path: Path) -> None:
    text = "@overload\ndef f(a: int): ...\n@typing.overload\ndef f(a: str): ...\ndef f(a, b): return a\n"
    assert of(tmp_path, text)[0] == ("a", "b")


def test_one_of_two_definitions_cannot_be_told(tmp_path: Path) -> None:
    text = "if cuda():\n    def f(a): return a\nelse:\n    def f(a): return 0\n"
    with pytest.raises(FingerprintError, match="more than once, lines 2, 4"):
        of(tmp_path, text)
    assert of(tmp_path, text.replace("return 0", "return a"))[0] == ("a",)


@pytest.mark.parametrize(
    "text", ["try:\n    def f(): ...\nexcept E:\n    pass\n", "with c:\n    def f(): ...\n"]
)
def test_definitions_inside_blocks_are_found(tmp_path: Path, text: str) -> None:
    assert of(tmp_path, text)[1]


@pytest.mark.parametrize("qualname", ["g", "C.f", "f.inner.deeper"])
def test_missing_name_is_an_error(tmp_path: Path, qualname: str) -> None:
    with pytest.raises(FingerprintError, match="does not define"):
        of(tmp_path, BASE, qualname)


def test_live_lambda_has_no_body() -> None:
    double = lambda a: 2 * a  # noqa: E731
    with pytest.raises(FingerprintError, match="no body to compare"):
        fingerprint(double)


def test_module_is_found_without_import(tmp_path: Path) -> None:
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    (tmp_path / "pkg" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "pkg" / "sub" / "__init__.py").write_text(BASE)
    (tmp_path / "pkg" / "leaf.py").write_text(BASE)
    assert fingerprint_target("pkg.sub:f", tmp_path) == fingerprint_target("pkg.leaf:f", tmp_path)
    assert module_source("sglang_hisparse.seams.seam").name == "seam.py"
    for missing in ("pkg.gone", "no_such_package_here"):
        with pytest.raises(FingerprintError):
            module_source(missing, tmp_path if missing.startswith("pkg") else None)


def test_command_prints_the_values_of_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pkg.py").write_text(BASE + "def g(a): ...\n")
    params, body = fingerprint_target("pkg:g", tmp_path)
    assert params == ("a",)
    assert main(["--root", str(tmp_path), "pkg:g", "pkg:f"]) == 0
    printed = capsys.readouterr().out
    assert f'params=("a",),\nbody="{body}",' in printed
    assert 'params=("a", "b", "*rest", "key", "**options"),' in printed
    assert main(["--root", str(tmp_path), "pkg:nothing"]) == 1
    assert "does not define nothing" in capsys.readouterr().out
