"""Applying seams: what each kind does, where the change reaches, and that it is all rows or none."""

from __future__ import annotations

import inspect
import json
import sys
from types import ModuleType

import pytest

from sglang_hisparse.seams.apply import SeamMismatch, apply, installed, undo, verify
from sglang_hisparse.seams.seam import AFTER, AROUND, BEFORE, REGISTER, RELY, REPLACE
from tests.seams.conftest import seam


def test_before_sees_the_arguments_and_changes_nothing(fake: ModuleType, hook_calls: list[object]) -> None:
    apply([seam(BEFORE, "size")])
    assert fake.size(130, page=32) == 5
    assert hook_calls == [((130,), {"page": 32})]


@pytest.mark.parametrize(
    ("kind", "expected"), [(AFTER, ("after", 3)), (AROUND, ("around", 3)), (REPLACE, "replaced")]
)
def test_kinds_that_give_the_result(fake: ModuleType, kind, expected) -> None:
    apply([seam(kind, "size")])
    assert fake.size(130) == expected


def test_register_gets_the_object_once(fake: ModuleType, hook_calls: list[object]) -> None:
    row = seam(REGISTER, "REGISTRY")
    apply([row])
    apply([row])
    assert len(hook_calls) == 1
    assert hook_calls[0] is fake.REGISTRY


def test_rely_changes_nothing_and_is_listed(fake: ModuleType) -> None:
    stock = fake.size
    apply([seam(RELY, "size")])
    assert fake.size is stock
    assert [row["kind"] for row in installed()] == ["rely"]


@pytest.mark.parametrize(
    ("name", "call", "stock"),
    [
        ("Pool.free", lambda pool: pool.free(1), 3),
        ("Pool.tokens", lambda pool: pool.tokens, 128),
        ("Pool.empty", lambda pool: pool.empty(), 0),
        ("Pool.of", lambda pool: pool.of(64), None),
        ("Pool.label", lambda pool: pool.label, "pool of 2"),
        ("Pool.drawn", lambda pool: pool.drawn(1), 1),
    ],
)
def test_every_sort_of_attribute(fake: ModuleType, name: str, call, stock) -> None:
    raw = vars(fake.Pool)[name.split(".")[1]]
    apply([seam(AROUND, name)])
    kind, result = call(fake.Pool(2))
    assert kind == "around"
    assert stock is None or result == stock
    assert type(vars(fake.Pool)[name.split(".")[1]]) is type(raw)
    undo()
    assert vars(fake.Pool)[name.split(".")[1]] is raw


def test_init_is_wrapped_like_any_method(fake: ModuleType, hook_calls: list[object]) -> None:
    apply([seam(BEFORE, "Pool.__init__")])
    pool = fake.Child(4)
    assert pool.pages == 4
    assert hook_calls == [((pool, 4), {})]


def test_importers_by_name_get_the_wrapper(fake: ModuleType, load) -> None:
    main = load("__mp_main__", "from sglang.fake_pool import size")
    ours = load("sglang_hisparse.seams.fake_caller", "from sglang.fake_pool import size")
    other = load("elsewhere", "from sglang.fake_pool import size")
    user = sys.modules["sglang.fake_user"]
    apply([seam(AROUND, "size")])
    assert user.size is fake.size and main.size is fake.size
    assert user.pages_of(64) == ("around", 1)
    assert ours.size(64) == 1, "our hooks must keep the stock function they imported"
    assert other.size(64) == 1
    undo()
    assert user.size is fake.size is main.size is other.size


def test_other_names_of_a_method_get_the_wrapper(fake: ModuleType) -> None:
    apply([seam(AROUND, "Pool.free")])
    assert fake.Pool(1).give_back(1) == ("around", 2)
    assert fake.Child(1).release(1) == ("around", 2)


def test_functions_kept_in_a_dict_are_not_reached(fake: ModuleType) -> None:
    """A documented limit: such a seam has to target the registry itself."""
    fake.REGISTRY["size"] = fake.size
    apply([seam(AROUND, "size")])
    assert fake.REGISTRY["size"](64) == 1


def test_signature_and_name_stay_those_of_stock(fake: ModuleType) -> None:
    apply([seam(AROUND, "size")])
    assert list(inspect.signature(fake.size).parameters) == ["tokens", "page"]
    assert fake.size.__name__ == "size"


def test_twice_is_once(fake: ModuleType) -> None:
    rows = [seam(AROUND, "size"), seam(RELY, "Pool.free")]
    apply(rows)
    wrapper = fake.size
    apply(rows)
    assert fake.size is wrapper
    assert [row["id"] for row in installed()] == ["size", "Pool.free"]


def test_a_later_call_adds_rows(fake: ModuleType) -> None:
    size, free = seam(AROUND, "size"), seam(AROUND, "Pool.free")
    apply([size])
    apply([size, free])
    assert fake.size(64) == ("around", 1)
    assert fake.Pool(1).free(1) == ("around", 2)


def test_relying_on_what_we_changed_ourselves_is_fine(fake: ModuleType) -> None:
    row = seam(RELY, "size", id="relied")
    apply([seam(AROUND, "size")])
    apply([row])
    assert {entry["id"] for entry in installed()} == {"size", "relied"}


def test_none_when_a_registration_fails(fake: ModuleType) -> None:
    stock = fake.size
    rows = [
        seam(AROUND, "size"),
        seam(REGISTER, "REGISTRY", hook="sglang_hisparse.seams.fake_hooks:broken"),
    ]
    with pytest.raises(SeamMismatch, match="no room in the registry"):
        apply(rows)
    assert fake.size is stock and sys.modules["sglang.fake_user"].size is stock
    assert installed() == []


def test_none_when_a_target_cannot_be_set(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sealed(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(f"{name} is sealed")

    rows = [seam(AROUND, "Pool.free"), seam(AROUND, "size")]
    stock = vars(fake.Pool)["free"]
    sys.modules["sglang.fake_user"].__class__ = Sealed
    with pytest.raises(SeamMismatch, match="size is sealed"):
        apply(rows)
    assert vars(fake.Pool)["free"] is stock and fake.size.__module__ == "sglang.fake_pool"
    assert fake.size(64) == 1
    assert installed() == []


def test_a_place_that_does_not_keep_our_function_is_noticed(fake: ModuleType) -> None:
    class Stubborn(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            pass

    sys.modules["sglang.fake_user"].__class__ = Stubborn
    stock = fake.size
    with pytest.raises(SeamMismatch, match=r"fake_user\.size is no longer ours"):
        apply([seam(AROUND, "size")])
    assert fake.size is stock


def test_installed_is_json(fake: ModuleType) -> None:
    row = seam(AROUND, "Pool.free")
    apply([row])
    assert json.loads(json.dumps(installed())) == [
        {
            "id": "Pool.free",
            "target": "sglang.fake_pool:Pool.free",
            "kind": "around",
            "params": ["self", "count"],
            "body": row.body,
            "drifted": False,
        }
    ]


def test_verify_sees_a_function_that_was_taken_over(fake: ModuleType) -> None:
    apply([seam(AROUND, "size")])
    verify()
    ours, fake.size = fake.size, len
    with pytest.raises(SeamMismatch, match=r"fake_pool\.size is no longer ours"):
        verify()
    fake.size = ours
    verify()
