"""Folders that are written once and then shared by processes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def written_once(target: Path, marker: str, write: Callable[[Path], None]) -> Path:
    """`target`, filled by `write(folder)` unless it holds the file `marker` already. Two processes may do so at once:
    each writes a draft beside it, and the first to rename its own wins. OSError where the folder can't be made."""
    if (target / marker).exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        write(draft)
        draft.chmod(0o755)
        draft.rename(target)
    except OSError:
        if not (target / marker).exists():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target
