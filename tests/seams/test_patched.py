"""The calls that a patched tree has at its functions do what the applier does, and refuse what cannot serve."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import pytest

from sglang_hisparse.seams import patched
from sglang_hisparse.seams.patched import hisparse_seam
from sglang_hisparse.seams.seam import AFTER, AROUND, BEFORE, REGISTER, RELY, REPLACE, Kind, Seam
from tests.seams.conftest import seam


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """`asked(*rows)`: the table is these rows, and the tier is asked for."""
    monkeypatch.setattr(patched, "_asked", lambda: True)
    for name in ("_marked", "_ours"):
        monkeypatch.setattr(patched, name, {})

    def table(*rows: Seam) -> None:
        monkeypatch.setattr(patched, "_rows", {row.id: row for row in rows})
        monkeypatch.setattr(patched, "SEAMS", rows)

    return table


@pytest.mark.parametrize(
    ("kind", "result"),
    [(BEFORE, 2), (AFTER, ("after", 2)), (AROUND, ("around", 2)), (REPLACE, "replaced")],
)
def test_kinds(fake: ModuleType, asked: Any, hook_calls: list[object], kind: Kind, result: object) -> None:
    asked(seam(kind, "size"))
    ours = hisparse_seam("size")(fake.size)
    assert ours(65, page=64) == result and ours.__name__ == "size" and ours.__wrapped__ is fake.size
    assert hook_calls == ([((65,), {"page": 64})] if kind is BEFORE else [])


def test_nothing_is_touched_where_nobody_asks(
    fake: ModuleType, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(seam(AROUND, "size"))
    monkeypatch.setattr(patched, "_asked", lambda: False)
    assert hisparse_seam("size")(fake.size) is fake.size
    assert patched._marked == {}


def test_seams_of_other_processes_are_left_alone(fake: ModuleType, asked: Any) -> None:
    asked(seam(AROUND, "size", scope="bench"))
    assert hisparse_seam("size")(fake.size) is fake.size


def test_a_registry_is_handed_back_and_kept(fake: ModuleType, asked: Any) -> None:
    asked(seam(REGISTER, "REGISTRY", params=(), body=""))
    assert hisparse_seam("REGISTRY")(fake.REGISTRY) is fake.REGISTRY is patched._marked["REGISTRY"]


def test_the_same_edit_twice_and_an_unknown_one_end_the_process(fake: ModuleType, asked: Any) -> None:
    asked(seam(AROUND, "size"))
    hisparse_seam("size")(fake.size)
    with pytest.raises(SystemExit, match="two places of this SGLang carry the seam 'size'"):
        hisparse_seam("size")(fake.size)
    with pytest.raises(SystemExit, match=r"'gone' is no seam of this version; known are size"):
        hisparse_seam("gone")


@pytest.mark.parametrize("name", ["Pool.free", "Pool.empty", "size"])
def test_a_plugin_over_ours(fake: ModuleType, asked: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """One that calls on is fine; one in our place is not."""
    asked(seam(AROUND, name), seam(RELY, "Child", id="relied"))
    owner = fake.Pool if "." in name else fake
    attribute = name.rpartition(".")[2]
    raw = vars(owner)[attribute]
    static = isinstance(raw, staticmethod)
    ours = hisparse_seam(name)(raw.__func__ if static else raw)
    monkeypatch.setattr(owner, attribute, staticmethod(ours) if static else ours)
    patched.verify()

    @functools.wraps(ours)
    def timed(*args: Any) -> Any:
        return ours(*args)

    monkeypatch.setattr(owner, attribute, staticmethod(timed) if static else timed)
    patched.verify()
    monkeypatch.setattr(owner, attribute, lambda *args: 0)
    with pytest.raises(SystemExit, match=f"another plugin replaced the functions of these seams.*{name}"):
        patched.verify()


def test_what_a_row_reports(fake: ModuleType, asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    row = seam(AROUND, "size")
    monkeypatch.setattr(patched, "fingerprint_target", lambda target: (row.params, "0" * 16))
    described = patched._described(row)
    assert (described["id"], described["kind"], described["body"]) == ("size", "around", "0" * 16)
    assert described["drifted"] is True
