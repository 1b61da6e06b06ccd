"""How a seam's target differs from the one we tested: the same words at start-up, in the CLI and in tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sglang_hisparse.seams.fingerprint import Fingerprint, FingerprintError, fingerprint_target
from sglang_hisparse.seams.seam import RELY, Seam


@dataclass(frozen=True)
class Problem:
    """One reason why a seam does not fit.

    `kind` is `missing` (target not there), `drift` (other parameters or body), `conflict` (somebody else
    changed it) or `hook` (our own function cannot be used). `hard` problems cannot be overridden: there is
    nothing to apply the seam to, or nothing to apply.
    """

    seam: Seam
    kind: str
    detail: str

    @property
    def hard(self) -> bool:
        """Whether the seam cannot be applied even where drift is allowed."""
        return self.kind == "hook" or (self.kind == "missing" and self.seam.kind is not RELY)

    def __str__(self) -> str:
        return f"{self.seam.id} [{self.kind}] {self.seam.target}\n      {self.detail}"


def compare(seam: Seam, found: Fingerprint) -> Problem | None:
    """The drift between a row and what was found, or None. Parameter changes are spelled out by name."""
    params, body = found
    changes = []
    if params != seam.params:
        gone = [name for name in seam.params if name not in params]
        new = [name for name in params if name not in seam.params]
        parts = [f"{word} {', '.join(names)}" for word, names in (("without", gone), ("with", new)) if names]
        changes.append(f"parameters {' and '.join(parts) or 'in another order'}: now ({', '.join(params)})")
    if body != seam.body:
        changes.append(f"body {body or 'none'}, expected {seam.body or 'none'}")
    return Problem(seam, "drift", "; ".join(changes)) if changes else None


def check_source(seams: Iterable[Seam], root: str | Path | None = None) -> dict[str, Problem | None]:
    """Compare every row with the source files of SGLang (installed, or below `root`), importing none of them.

    Returns the problem of each seam by its id, None where it fits.
    """
    result: dict[str, Problem | None] = {}
    for seam in seams:
        try:
            result[seam.id] = compare(seam, fingerprint_target(seam.target, root))
        except FingerprintError as error:
            result[seam.id] = Problem(seam, "missing", str(error))
    return result
