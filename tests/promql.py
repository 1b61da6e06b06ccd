"""Series that the shipped dashboard and alert rules ask for, and samples of a scrape: enough to compare the two."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

MONITORING = Path(__file__).resolve().parents[1] / "docs" / "monitoring"
SELECTOR = re.compile(r"\b(sglang:[a-zA-Z0-9_:]+)(?:\{([^}]*)\})?")
SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Labels = frozenset[tuple[str, str]]
Samples = dict[tuple[str, Labels], float]


def load(name: str) -> Any:
    """A shipped file of docs/monitoring, parsed."""
    text = (MONITORING / name).read_text()
    return json.loads(text) if name.endswith(".json") else yaml.safe_load(text)


def expressions(tree: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """(path, PromQL expression) of everything in a parsed dashboard or rule file that is one."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key in ("expr", "query") and isinstance(value, str) and "sglang:" in value:
                yield f"{where}.{key}", value
            else:
                yield from expressions(value, f"{where}.{key}")
    elif isinstance(tree, list):
        for place, value in enumerate(tree):
            yield from expressions(value, f"{where}[{place}]")


def selectors(expression: str) -> Iterator[tuple[str, Labels]]:
    """Series of SGLang in an expression, with the labels that they must carry (`=` only, no variables)."""
    for name, matchers in SELECTOR.findall(expression):
        yield name, frozenset(pair for pair in LABEL.findall(matchers) if not pair[1].startswith("$"))


def parse(text: str) -> Samples:
    """Samples of a /metrics page by name and labels."""
    found: Samples = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            sample = SAMPLE.match(line)
            assert sample, f"not a sample: {line!r}"
            found[sample["name"], frozenset(LABEL.findall(sample["labels"] or ""))] = float(sample["value"])
    return found


def matching(samples: Samples, name: str, labels: Labels) -> list[float]:
    """Samples of `name` that carry `labels`."""
    return [number for (known, have), number in samples.items() if known == name and labels <= have]


def value(samples: Samples, name: str, **labels: str) -> float:
    """Their sum. AssertionError where there is none."""
    found = matching(samples, name, frozenset(labels.items()))
    assert found, f"no sample of {name} with {labels}"
    return sum(found)
