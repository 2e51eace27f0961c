"""What BATCH's report says of others: each sentence is whole, and has the numbers that its verdict rests on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from benchmarks.reports.batch.sections.others import COMPARISONS, Comparison
from benchmarks.reports.measured import Measured

CASES = {"Twitter": "Twitter, 1 h, P95 ≤ 800 ms", "Azure": "Azure, 1 h, P95 ≤ 150 ms", "W14": "W14, 1 h, P99 ≤ 800 ms"}


def row(late: float, percentile_s: float | None, usd_per_million: float) -> dict[str, Any]:
    return {"late": late, "percentile_s": percentile_s, "usd_per_million": usd_per_million}


ROWS = {
    "batch": row(0.01, 0.7, 2.0),
    "vanilla, largest": row(0.0, 0.06, 4.0),
    "vanilla, cherry-picked": row(0.0, 0.1, 3.0),
    "target-tracking": row(0.02, None, 2.5),
    "target-tracking, tuned": row(0.0, 0.14, 1.0),
    "mark": row(0.03, 0.9, 1.5),
}


def comparison(where: str) -> Comparison:
    return next(one for one in COMPARISONS if one.where == where)


def test_mark_is_told_beside_what_lambda_costs() -> None:
    holds, seen = comparison("Figure 3, Section II-C").holds(CASES["W14"], ROWS)
    assert holds
    assert seen == "MArk 3.00% late, P99 900 ms, Lambda 0.00% late at 2.00 times its cost"


def test_tuned_machines_are_told_with_what_they_cost() -> None:
    holds, seen = comparison("Figure 14, column 3").holds(CASES["Twitter"], ROWS)
    assert holds
    assert seen == "P95 140 ms beside BATCH's P95 700 ms, at 0.25 of the cost of vanilla Lambda, largest"


@pytest.mark.parametrize("one", COMPARISONS, ids=lambda one: one.where)
def test_what_was_seen_is_a_whole_sentence_with_numbers(one: Comparison) -> None:
    for demand in one.demands:
        _, seen = one.holds(CASES[demand], ROWS)
        assert re.search(r"\d", seen)
        assert not re.search(r"(\s|,|\bat|\bits|\bof)$", seen), seen
        assert ";" not in seen, "it parts the cases"


def test_every_case_that_is_published_is_one_of_a_demand_that_is_compared() -> None:
    published = [case["case"] for case in Measured("batch_baselines").document["cases"]]
    assert {name.partition(",")[0] for name in published} == set(CASES)
