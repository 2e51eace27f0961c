"""Figures of reports."""

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.batch_baselines.__main__ import MINUTES
from benchmarks.batch_baselines.baselines import RATIOS, Minute, to_csv
from benchmarks.reports.asyfunc_hours import BELOW, METRICS, by_serial, rows, table, tables
from benchmarks.reports.batch.sections import arrivals
from benchmarks.reports.batch.sections.comparisons import COLOURS, COMPARISONS, PARTS, Comparison, claims
from benchmarks.reports.figures import Measured

DOCUMENT = Path(__file__).parents[3] / "docs" / "figures" / "asyfunc" / "hours.md"


def figure(mode: str, metric: str, value: float, detail: str = "", serial: int = 5) -> dict[str, object]:
    return {
        "key": f"torchvision:vgg16@1: {mode}, {serial}% serial, 1.5 × SLO, κ by profile, 60 min: {metric}",
        "value": value,
        "detail": detail,
    }


def test_the_documents_tables_are_those_of_the_published_results() -> None:
    assert DOCUMENT.read_text().partition(BELOW)[2] == tables()


def test_a_row_has_every_policy_that_was_simulated_beside_asyfunc() -> None:
    told = (
        "asyfunc- without layers 0.3, asyfunc- without adaptive 2.5e-3, k-lv 0.7, opt 0; 16 cores (b = 8 in 2 ms, η 20), 20 nodes"
    )
    found = rows(
        [
            figure("private", "SLO violations", 0.25, told),
            figure("shared", "SLO violations", 0.24),
            figure("private", "Bodies", 9),
        ]
    )
    others = {"asyfunc- without layers": 0.3, "asyfunc- without adaptive": 0.0025, "k-lv": 0.7, "opt": 0.0}
    assert found["SLO violations"] == {"vgg16": {"asyfunc": 0.25, **others, "asyfunc, shared": 0.24}}
    assert found["memory"] == {}


def test_unsimulated_cell_is_a_dash() -> None:
    text = table(METRICS["memory"], {"b": {"asyfunc": 1.0}, "a": {"asyfunc": 2.0, "od": 1234.5}})
    assert text.splitlines()[2:] == ["| model | asyfunc | od |", "| --- | --- | --- |", "| a | 2 | 1.23e+03 |", "| b | 1 | – |"]


def test_serial_fractions_stand_side_by_side_where_more_than_the_usual_one_was_simulated() -> None:
    told = "k-lv 0.7, od 2; 16 cores (b = 8 in 2 ms, η 20), 20 nodes"
    usual, other = figure("private", "memory", 3.0, told), figure("private", "memory", 4.0, told, serial=10)
    assert by_serial([usual], "memory") == {}
    found = by_serial([usual, other], "memory")["vgg16"]
    assert (found["asyfunc, 5%"], found["asyfunc, 10%"], found["od, 10%"]) == (3.0, 4.0, 2.0)
    assert rows([usual, other])["memory"]["vgg16"]["asyfunc"] == 3.0


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
def test_finding_is_a_sentence_with_numbers(one: Comparison) -> None:
    for demand in one.demands:
        _, seen = one.holds(CASES[demand], ROWS)
        assert re.search(r"\d", seen)
        assert not re.search(r"(\s|,|\bat|\bits|\bof)$", seen), seen
        assert ";" not in seen, "it parts the cases"


def test_every_case_that_is_published_is_one_of_a_demand_that_is_compared() -> None:
    published = [case["case"] for case in Measured("batch_baselines").document["cases"]]
    assert {name.partition(",")[0] for name in published} == set(CASES)


def test_every_claim_is_in_one_section() -> None:
    measured = Measured("batch_baselines")
    parts = [[claim.where for claim in claims(measured, part)] for part in (*PARTS, "others")]
    assert all(parts)
    assert sorted(where for part in parts for where in part) == sorted(claim.where for claim in claims(measured))


def test_a_long_day_is_shown_around_its_surge() -> None:
    flat = [50.0] * 100
    assert arrivals.around_surge(flat[:40]) == range(40)
    risen = [*flat, *[150.0] * 100]
    shown = arrivals.around_surge(risen)
    assert len(shown) == arrivals.SHOWN
    assert shown.index(100) == arrivals.SHOWN // 3
    late = [*flat, *[150.0] * 8]
    assert arrivals.around_surge(late)[-1] == len(late) - 1


def test_surge_is_drawn_minute_by_minute() -> None:
    before, during = Minute(10.0, 0.1, 0.2, 1.0), Minute(90.0, 5.0, None, 3.0)
    runs = {"mark": [before] * 5 + [during] * 5, "batch": [before] * 10}
    drawn = arrivals.over_time("fig3", "MArk beside BATCH.", runs, 0.8, COLOURS)
    assert all(text in drawn.svg for text in ("Arrivals", "P99 of each minute", "Machines held, or calls under way", "mark"))
    curves = {"W14": {who: [0.5] * len(RATIOS) for who in runs}}
    assert "latency ÷ SLO" in arrivals.exceeding("ccdf", "How late.", curves, COLOURS).svg


def test_minutes_are_read_where_they_were_kept(tmp_path: Path) -> None:
    assert arrivals.minutes(tmp_path) == {}
    minute = Minute(10.0, 0.1, None, 1.5)
    (tmp_path / MINUTES).write_text(to_csv([("Twitter, 1 h", "mark", [minute, minute]), ("Twitter, 1 h", "batch", [minute])]))
    assert arrivals.minutes(tmp_path) == {"Twitter, 1 h": {"mark": [minute, minute], "batch": [minute]}}
