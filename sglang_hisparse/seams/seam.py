"""One row of the seam table: a function of stock SGLang that this package changes, or relies on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

HOOK_PREFIX = "sglang_hisparse.seams."
SCOPES = ("args", "scheduler", "cpu", "bench")


class Kind(IntEnum):
    """What is done to the target. A row takes the cheapest kind that does the job; its `why` defends it.

    | kind | the hook is called as | when |
    |---|---|---|
    | RELY | no hook | nothing is changed, but we depend on how the body works |
    | REGISTER | `hook(target_object) -> None` | once, while applying; for public registries |
    | BEFORE | `hook(*args, **kwargs) -> None` | before each call, with the call's arguments |
    | AFTER | `hook(result, *args, **kwargs) -> result` | after each call; what it returns is the result |
    | AROUND | `hook(original, *args, **kwargs) -> result` | instead; calls `original` itself |
    | REPLACE | `hook(*args, **kwargs) -> result` | instead; the original is never called |
    """

    RELY = 0
    REGISTER = 1
    BEFORE = 2
    AFTER = 3
    AROUND = 4
    REPLACE = 5


RELY, REGISTER, BEFORE, AFTER, AROUND, REPLACE = Kind


@dataclass(frozen=True)
class Seam:
    """A touched function: where it is, what we do to it, and the text we tested against.

    `id` names the seam in messages, docs and tests. `target` is `package.module:Qual.name`, in the module and
    class that *define* it (not a re-export, not a subclass). `hook` is
    `sglang_hisparse.seams.module:function`, imported when the seam is applied; empty for RELY. `params` are
    the expected parameter names in order, with `*args` and `**kwargs` starred. `body` is the fingerprint of
    the function without its docstrings; `python -m sglang_hisparse.seams.fingerprint TARGET` prints both. A
    target that is neither a function nor a class (a registry dict, say) has `params=()` and `body=""`: only
    its presence is checked.

    `scope` says in which processes the seam is applied: `args` in every process that loads plugins,
    `scheduler` only where a scheduler runs (its targets are costly to import elsewhere), `cpu` where that has
    no CUDA device, `bench` where it replays selections for a benchmark.

    Raises `ValueError` for a row that contradicts itself.
    """

    id: str
    target: str
    kind: Kind
    hook: str
    why: str
    retire_when: str
    params: tuple[str, ...]
    body: str
    scope: str

    def __post_init__(self) -> None:
        module, _, qualname = self.target.partition(":")
        if not module or not qualname:
            raise ValueError(f"seam {self.id}: target {self.target!r} is not `package.module:Qual.name`")
        if (self.kind is RELY) != (self.hook == ""):
            raise ValueError(f"seam {self.id}: RELY has no hook, every other kind has one; got {self.hook!r}")
        if self.hook and not (self.hook.startswith(HOOK_PREFIX) and self.hook.count(":") == 1):
            raise ValueError(f"seam {self.id}: hook {self.hook!r} is not `{HOOK_PREFIX}module:function`")
        if self.scope not in SCOPES:
            raise ValueError(f"seam {self.id}: scope {self.scope!r} is not one of {', '.join(SCOPES)}")
        if not self.why.strip() or not self.retire_when.strip():
            raise ValueError(f"seam {self.id}: `why` and `retire_when` must say something")

    @property
    def module(self) -> str:
        """The module that defines the target."""
        return self.target.partition(":")[0]

    @property
    def qualname(self) -> str:
        """The target's dotted name inside its module."""
        return self.target.partition(":")[2]
