"""Unified diffs of added lines and new files, written here so that they are the same bytes with any git."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_hisparse.patching.edits import Insertion
from sglang_hisparse.patching.release import PatchError, blob_id, lines_of

MOST_CONTEXT = 12
NOTHING = "0" * 40


@dataclass(frozen=True)
class Hunk:
    """Lines that go in between `before` and `after`, which stand together once in the file."""

    at: int
    before: tuple[str, ...]
    lines: tuple[str, ...]
    after: tuple[str, ...]

    def places(self, old: Sequence[str]) -> list[int]:
        """Lines (from 0) of `old` where the new ones could go in."""
        around = (*self.before, *self.after)
        length = len(around)
        return [
            i + len(self.before) for i in range(len(old) - length + 1) if tuple(old[i : i + length]) == around
        ]


def hunks(old: Sequence[str], insertions: Sequence[Insertion], name: str) -> list[Hunk]:
    """One hunk an insertion, each with the fewest lines of context that stand in the file once."""
    return [_hunk(old, insertion, name) for insertion in sorted(insertions, key=lambda i: i.at)]


def _hunk(old: Sequence[str], insertion: Insertion, name: str) -> Hunk:
    at = insertion.at
    for total in range(1, MOST_CONTEXT + 1):
        for leading in range(total):  # git takes a hunk without lines after it for the end of the file
            found = Hunk(
                at, tuple(old[at - leading : at]), insertion.lines, tuple(old[at : at + total - leading])
            )
            if at >= leading and len(found.after) == total - leading and found.places(old) == [at]:
                return found
    raise PatchError(f"{name}: no {MOST_CONTEXT} lines around line {at + 1} stand there only once")


def apply_hunks(old: Sequence[str], found: Sequence[Hunk]) -> list[str]:
    """`old` with the hunks' lines, each where its own lines are. ValueError where one has no single place."""
    new = list(old)
    for hunk in reversed(found):
        [at] = hunk.places(new)
        new[at:at] = hunk.lines
    return new


def edited(name: str, old: str, found: Sequence[Hunk]) -> tuple[str, str]:
    """(diff, new text) of the file `name`."""
    new = "".join(apply_hunks(lines_of(old), found))
    out = [
        f"diff --git a/{name} b/{name}\n",
        f"index {blob_id(old.encode())}..{blob_id(new.encode())} 100644\n",
        f"--- a/{name}\n",
        f"+++ b/{name}\n",
    ]
    shift = 0
    for hunk in found:
        start = hunk.at - len(hunk.before) + 1
        count = len(hunk.before) + len(hunk.after)
        out.append(f"@@ -{start},{count} +{start + shift},{count + len(hunk.lines)} @@\n")
        out += [f" {line}" for line in hunk.before]
        out += [f"+{line}" for line in hunk.lines]
        out += [f" {line}" for line in hunk.after]
        shift += len(hunk.lines)
    return "".join(out), new


def created(name: str, text: str) -> str:
    """The diff that makes the file `name`."""
    head = f"diff --git a/{name} b/{name}\nnew file mode 100644\nindex {NOTHING}..{blob_id(text.encode())}\n"
    if not text:
        return head
    lines = lines_of(text)
    if not text.endswith("\n"):
        raise PatchError(f"{name} does not end with a line end")
    body = "".join(f"+{line}" for line in lines)
    return f"{head}--- /dev/null\n+++ b/{name}\n@@ -0,0 +1,{len(lines)} @@\n{body}"
