"""What is refused, and that one message names all of it."""

from __future__ import annotations

import functools
import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest

from sglang_hisparse.seams import apply as applier
from sglang_hisparse.seams.apply import SeamMismatch, apply, installed
from sglang_hisparse.seams.seam import AFTER, AROUND, BEFORE, REGISTER, RELY, REPLACE, Seam
from tests.seams.conftest import POOL, seam


def refusal(*rows: Seam) -> str:
    """The message of the refusal; nothing may be in force after it."""
    with pytest.raises(SeamMismatch) as caught:
        apply(rows)
    assert installed() == []
    return str(caught.value)


def test_it_is_no_exception_that_a_plugin_loader_swallows(fake: ModuleType) -> None:
    with pytest.raises(SeamMismatch) as caught:
        apply([seam(RELY, "gone", params=(), body="")])
    assert isinstance(caught.value, SystemExit) and not isinstance(caught.value, Exception)
    assert caught.value.code not in (0, None)


def test_changed_body_is_named(fake: ModuleType, load) -> None:
    row, found = seam(AROUND, "size"), seam(RELY, "Pool.free")
    load("sglang.fake_pool", POOL.replace("-(-tokens // page)", "tokens // page + 1"))
    changed = seam(RELY, "size")
    message = refusal(row, found)
    assert "size [drift] sglang.fake_pool:size" in message
    assert f"body {changed.body}, expected {row.body}" in message
    assert "Pool.free" not in message and "1 of 2 seams" in message


def test_changed_parameters_are_spelled_out(fake: ModuleType, load) -> None:
    row = seam(BEFORE, "size")
    load("sglang.fake_pool", POOL.replace("page=64", "block=64"))
    message = refusal(row)
    assert "without page" in message and "with block" in message and "now (tokens, block)" in message


def test_every_problem_is_in_one_message(fake: ModuleType) -> None:
    stock = fake.size
    message = refusal(
        seam(AROUND, "size"),
        seam(AROUND, "Pool.free", body="0" * 16),
        seam(AROUND, "nowhere", params=(), body=""),
        seam(AFTER, "Pool.tokens", hook="sglang_hisparse.seams.fake_hooks:absent"),
        seam(RELY, "thing", module="fake_gone", params=(), body=""),
    )
    assert "4 of 5 seams" in message
    for name in ("Pool.free [drift]", "nowhere [missing]", "Pool.tokens [hook]", "thing [missing]"):
        assert name in message
    assert fake.size is stock


def test_message_says_what_to_do(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier, "sglang_version", lambda: "9.9.9")
    message = refusal(seam(AROUND, "size", body="0" * 16))
    for part in ("SGLang is 9.9.9", f"pip install sglang=={applier.pin.SGLANG}", f"{applier.ALLOW_DRIFT}=1"):
        assert part in message


def test_inherited_target_names_the_class_that_defines_it(fake: ModuleType) -> None:
    assert "inherited from sglang.fake_pool:Pool" in refusal(seam(AROUND, "Child.free", params=(), body=""))


def test_reexported_target_is_refused(fake: ModuleType) -> None:
    message = refusal(seam(AROUND, "size", module="sglang.fake_user"))
    assert "[conflict]" in message and "sglang.fake_pool.py" in message


def test_class_and_async_targets_are_refused(fake: ModuleType) -> None:
    assert "name a method of it" in refusal(seam(REPLACE, "Pool"))
    assert "is async" in refusal(seam(AFTER, "Pool.later"))


@pytest.mark.parametrize("hook", ["fake_hooks:not_callable", "fake_hooks:absent", "fake_absent:hook"])
def test_unusable_hook_is_refused_whatever_drift_is_allowed(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    monkeypatch.setenv(applier.ALLOW_DRIFT, "1")
    assert "size [hook]" in refusal(seam(AROUND, "size", hook=f"sglang_hisparse.seams.{hook}"))


def test_two_seams_on_one_target_are_refused(fake: ModuleType) -> None:
    message = refusal(seam(BEFORE, "size", id="first"), seam(AFTER, "size", id="second"))
    assert "seam first changes the same target" in message


def test_one_id_for_two_rows_is_refused(fake: ModuleType) -> None:
    assert "same id" in refusal(seam(BEFORE, "size", id="twin"), seam(BEFORE, "Pool.free", id="twin"))


def test_one_id_in_two_calls_is_refused(fake: ModuleType) -> None:
    apply([seam(BEFORE, "size", id="twin")])
    with pytest.raises(SeamMismatch, match="ids must be unique"):
        apply([seam(BEFORE, "Pool.free", id="twin")])


def test_somebody_elses_wrapper_is_found(fake: ModuleType) -> None:
    row, stock = seam(AROUND, "Pool.free"), fake.Pool.free

    @functools.wraps(stock)
    def timed(*args):
        return stock(*args)

    fake.Pool.free = timed
    message = refusal(row)
    assert "Pool.free [conflict]" in message and "timed" in message
    assert fake.Pool.free is timed


def test_somebody_elses_wrapper_on_a_decorated_function_is_found(fake: ModuleType) -> None:
    row, stock = seam(AROUND, "Pool.drawn"), fake.Pool.drawn

    @functools.wraps(stock)
    def timed(*args):
        return stock(*args)

    fake.Pool.drawn = timed
    assert "Pool.drawn [conflict]" in refusal(row)


def test_wrapper_around_ours_is_found(fake: ModuleType) -> None:
    apply([seam(AROUND, "Pool.free")])
    ours = fake.Pool.free

    @functools.wraps(ours)
    def timed(*args):
        return ours(*args)

    fake.Pool.free = timed
    with pytest.raises(SeamMismatch, match="timed"):
        apply([seam(RELY, "Pool.free", id="relied")])
    fake.Pool.free = ours


def test_replaced_function_is_found(fake: ModuleType) -> None:
    row = seam(AROUND, "Pool.free")
    fake.Pool.free = refusal
    message = refusal(row)
    assert "[drift]" in message and "[conflict]" in message and "test_refusal.py" in message


@pytest.mark.parametrize("hooked", ["sglang.fake_pool.Pool.free", "sglang.fake_pool.Pool"])
def test_hook_of_another_plugin_is_a_conflict(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch, hooked: str
) -> None:
    source = SimpleNamespace(plugin_name="timer", dist_name="timer-dist")
    hooks = {hooked: [("around", test_replaced_function_is_found, source)], "sglang.fake_pool.size": []}
    registry = SimpleNamespace(HookRegistry=SimpleNamespace(_hooks=hooks))
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", registry)
    message = refusal(seam(AROUND, "Pool.free"), seam(REGISTER, "REGISTRY"), seam(AROUND, "size"))
    assert "1 of 3 seams" in message and "Pool.free [conflict]" in message and "plugin timer" in message


def test_hook_registered_after_us_is_found_by_verify(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply([seam(AROUND, "size")])
    hooks = {"sglang.fake_pool.size": [("after", refusal, None)]}
    registry = SimpleNamespace(HookRegistry=SimpleNamespace(_hooks=hooks))
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", registry)
    with pytest.raises(SeamMismatch, match="also hooked by an unnamed plugin"):
        applier.verify()


def test_other_version_with_equal_bodies_is_a_warning(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(applier, "sglang_version", lambda: "9.9.9")
    with caplog.at_level(logging.WARNING):
        apply([seam(AROUND, "size")])
    assert "SGLang is 9.9.9" in caplog.text
    assert fake.size(64) == ("around", 1)


def test_pinned_version_is_silent(fake: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        apply([seam(AROUND, "size")])
    assert caplog.text == ""


def test_allowed_drift_prints_the_list_and_goes_on(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(applier.ALLOW_DRIFT, "1")
    apply([seam(AROUND, "size", body="0" * 16), seam(RELY, "gone", params=(), body="")])
    printed = capsys.readouterr().err
    assert "size [drift]" in printed and "gone [missing]" in printed
    assert fake.size(64) == ("around", 1)
    assert [(row["id"], row["drifted"]) for row in installed()] == [("size", True)]


def test_allowed_drift_cannot_apply_to_nothing(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(applier.ALLOW_DRIFT, "1")
    stock = fake.size
    assert "gone [missing]" in refusal(seam(AROUND, "size"), seam(AROUND, "gone", params=(), body=""))
    assert fake.size is stock


@pytest.mark.parametrize("value", ["0", "", "true"])
def test_drift_is_allowed_by_1_only(fake: ModuleType, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(applier.ALLOW_DRIFT, value)
    assert "size [drift]" in refusal(seam(AROUND, "size", body="0" * 16))
