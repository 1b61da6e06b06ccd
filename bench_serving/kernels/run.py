"""All kernel benchmarks in one process, on one pinned buffer; the tables come last."""

from __future__ import annotations

from . import ceilings, groups, listed, pages, resolve, tune
from .bench import main

SECTIONS = {
    "ceilings": ceilings.run,
    "resolve": resolve.run,
    "groups": groups.run,
    "listed": listed.run,
    "pages": pages.run,
    "tune": tune.run,
}

if __name__ == "__main__":
    raise SystemExit(main("run", "All kernel benchmarks.", SECTIONS))
