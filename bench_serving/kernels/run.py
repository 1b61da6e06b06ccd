"""All kernel benchmarks in one process, on one pinned buffer; the tables come last."""

from __future__ import annotations

from . import ceilings, groups, listed, page_tune, pages, resolve, tune
from .bench import main

SECTIONS = {
    "ceilings": ceilings.run,
    "resolve": resolve.run,
    "groups": groups.run,
    "listed": listed.run,
    "pages": pages.run,
    "page_tune": page_tune.run,
    "tune": tune.run,
}

if __name__ == "__main__":
    raise SystemExit(main("run", "All kernel benchmarks.", SECTIONS))
