"""The report on INFaaS: its document says what the committed results say, and its claims are computed as they are worded."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reports.infaas.__main__ import published_claims
from benchmarks.reports.infaas.configurations import configured
from benchmarks.reports.infaas.serving import reaches, windows
from benchmarks.reports.report import rows_of
from gnomon_simulator.variant_catalogs import table_2_variants

DOCUMENT = Path(__file__).parents[3] / "docs" / "infaas.md"


def test_document_says_what_the_committed_results_say() -> None:
    rows = rows_of(published_claims()).splitlines()[2:]
    assert rows
    assert [row for row in rows if row not in DOCUMENT.read_text(encoding="utf-8").splitlines()] == [], "make report-infaas"


def test_simulated_claims_say_that_they_are_simulated() -> None:
    served = [claim for claim in published_claims() if claim.where.startswith(("Figure 5", "Figure 6"))]
    assert len(served) > 10
    assert all(claim.found.startswith("simulated: ") for claim in served if claim.verdict != "not measured")


def test_plans_for_table_2_stand_beside_each_variant_alone() -> None:
    found = configured(table_2_variants(), 1000.0, 0.3)
    assert (found.exact.cost_per_s, found.greedy.cost_per_s) == (22.0, 22.0)
    assert sorted(found.alone.values()) == [30.0, 32.0, 200.0]
    strict = configured(table_2_variants(), 10.0, 0.05)
    assert sorted(strict.alone.values()) == [3.0, 16.0], "a variant that takes 200 ms does not meet 50"


@pytest.mark.parametrize(("value", "paper"), [(1.06, 1.1), (1.626, 1.63), (3.0, 3.0), (2.96, 3.0)])
def test_value_reaches_the_papers_to_the_digits_that_it_gives(value: float, paper: float) -> None:
    assert reaches(value, paper)
    assert not reaches(value - 0.6, paper)


def test_windows_are_whole_and_have_rates() -> None:
    assert windows([4, 6, 8, 8, 100], 2) == [5.0, 8.0]
