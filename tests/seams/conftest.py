"""A made-up corner of SGLang: modules under its name, and hooks under ours, that exist for one test."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sglang_hisparse.seams import apply as applier
from sglang_hisparse.seams.fingerprint import fingerprint
from sglang_hisparse.seams.seam import RELY, Kind, Seam
from sglang_hisparse.seams.target import resolve

POOL = '''
    import functools

    REGISTRY = {}

    def size(tokens, page=64):
        """Pages that hold the tokens."""
        return -(-tokens // page)

    def traced(function):
        @functools.wraps(function)
        def inner(*args):
            return function(*args)
        return inner

    class Pool:
        def __init__(self, pages):
            self.pages = pages

        def free(self, count):
            """Give pages back."""
            text = """kept
    as it is"""
            self.pages += count
            return self.pages

        give_back = free

        @property
        def tokens(self):
            return self.pages * 64

        @staticmethod
        def empty():
            return 0

        @classmethod
        def of(cls, tokens):
            return cls(size(tokens))

        @functools.cached_property
        def label(self):
            return f"pool of {self.pages}"

        @traced
        def drawn(self, count):
            return self.pages - count

        async def later(self):
            return self.pages

    class Child(Pool):
        release = Pool.free
'''
USER = """
    from sglang.fake_pool import Pool, size

    def pages_of(tokens):
        return size(tokens)
"""
HOOKS = """
    calls = []

    def before(*args, **kwargs):
        calls.append((args, kwargs))

    def after(result, *args, **kwargs):
        return ("after", result)

    def around(original, *args, **kwargs):
        return ("around", original(*args, **kwargs))

    def replace(*args, **kwargs):
        return "replaced"

    def register(target):
        calls.append(target)

    def broken(target):
        raise RuntimeError("no room in the registry")

    not_callable = 3
"""

Load = Callable[[str, str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a source text as a module of the given name, for the length of the test."""

    def load_text(name: str, text: str) -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load_text


@pytest.fixture
def fake(load: Load, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`sglang.fake_pool`, with `sglang.fake_user` and the hooks beside it; the test's seams are undone after
    it."""
    monkeypatch.setattr(applier, "_installed", {})
    monkeypatch.setattr(applier, "sglang_version", _pinned_version)
    monkeypatch.delenv(applier.ALLOW_DRIFT, raising=False)
    pool = load("sglang.fake_pool", POOL)
    load("sglang.fake_user", USER)
    load("sglang_hisparse.seams.fake_hooks", HOOKS)
    yield pool
    applier.undo()


def _pinned_version() -> str:
    return applier.pin.SGLANG


@pytest.fixture
def hook_calls(fake: ModuleType) -> list[object]:
    """What the `before` and `register` hooks were called with."""
    calls: list[object] = sys.modules["sglang_hisparse.seams.fake_hooks"].calls
    return calls


def seam(
    kind: Kind,
    name: str,
    *,
    id: str = "",
    module: str = "sglang.fake_pool",
    hook: str | None = None,
    **changes: object,
) -> Seam:
    """A row for `sglang.fake_pool:name` that fits the module as it is now, except for `changes`."""
    target = f"{module}:{name}"
    params, body = ((), "") if changes.keys() >= {"params", "body"} else fingerprint(resolve(target).raw)
    if hook is None:
        hook = "" if kind is RELY else f"sglang_hisparse.seams.fake_hooks:{kind.name.lower()}"
    fields = {"params": params, "body": body, "scope": "args", **changes}
    return Seam(id or name, target, kind, hook, why="a test", retire_when="never", **fields)  # type: ignore[arg-type]
