"""Markers by folder, and one line at the end that says how many GPU tests did not run and why."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_MARKED = {"gpu": pytest.mark.gpu, "e2e": pytest.mark.e2e}


def _missing_gpu() -> str:
    """Why no GPU test can run here, or "" if they can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else f"torch {torch.__version__} sees no CUDA device"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests below tests/gpu and tests/e2e, and skip GPU tests where there is no GPU."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            folder = item.path.relative_to(_HERE).parts[0]
            if folder in _MARKED:
                item.add_marker(_MARKED[folder])
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    reason = _missing_gpu() if gpu else ""
    for item in gpu if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason))
    config.stash[_SKIPPED] = (len(gpu) if reason else 0, reason or "none was selected" if not gpu else reason)


_SKIPPED = pytest.StashKey[tuple[int, str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print `GPU tests skipped: N (reason)`."""
    count, reason = config.stash.get(_SKIPPED, (0, ""))
    terminalreporter.write_line(f"GPU tests skipped: {count} ({reason or 'all selected ones ran'})")
