"""What decides whether the demo failed: outputs, or where they were checked, the rows that attention read."""

from __future__ import annotations

import pytest

from bench_serving.demo import Run, plan_for, table, verdict
from bench_serving.serving import Answer


def run_of(name: str, tokens: list[int], reads: dict[str, int] | None = None, retractions: int = 0) -> Run:
    answer = Answer(tuple(tokens), (-0.5,) * len(tokens), (), 0, retractions, "length")
    return Run(name, [answer], 1.0, {}, reads or {})


def test_outputs_decide_where_rows_were_not_checked() -> None:
    first = run_of("all resident", [1, 2])
    assert verdict([first, run_of("quarter", [1, 2])]) == ""
    assert (
        verdict([first, run_of("quarter", [1, 3])])
        == "quarter: the output of request 0 differs from the first run's"
    )
    assert verdict([first, run_of("quarter", [1, 3], retractions=1)]) == ""


@pytest.mark.parametrize(
    ("compared", "different", "wrong"),
    [
        (10, 0, ""),
        (10, 2, "quarter: 2 rows that attention read are not"),
        (0, 0, "quarter: no row that attention read"),
    ],
)
def test_rows_decide_where_they_were_checked(compared: int, different: int, wrong: str) -> None:
    reads = {"rows_compared": compared, "rows_different": different}
    runs = [
        run_of("all resident", [1, 2], {"rows_compared": 5, "rows_different": 0}),
        run_of("quarter", [1, 3], reads),
    ]
    assert verdict(runs).startswith(wrong) and bool(verdict(runs)) == bool(wrong)
    assert f"{compared} / {different}" in table(runs) and "0/1" in table(runs)


def test_a_run_that_was_not_checked_beside_one_that_was_fails() -> None:
    runs = [run_of("all resident", [1], {"rows_compared": 5, "rows_different": 0}), run_of("quarter", [1])]
    assert verdict(runs) == "quarter: no row that attention read was compared"


def test_rows_are_checked_on_a_gpu() -> None:
    assert plan_for(True, 2, 8).env["SGLANG_HISPARSE_TEST_READS"] == "1"
    assert "SGLANG_HISPARSE_TEST_READS" not in plan_for(False, 2, 8).env
