"""A list of claims is read as it was written, and is renewed by what other benchmarks have published since."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reports.batch import published
from benchmarks.reports.claims import Claim, judged, listed, read, renewed, unmeasured

COMMITTED = Path(__file__).parents[3] / "docs" / "figures" / "batch" / "claims.md"
FACTS = {"Machine": "2 cores, 24 GiB", "Made": "2026-11-21 22:45 UTC"}
CLAIMS = [
    judged("Figure 1", "It rises.", "It falls by 3 %.", holds=False, why="Prices: they are others."),
    unmeasured("Figure 2", "It is slow.", "python -m benchmarks slow"),
]


def test_a_list_is_read_as_it_was_written() -> None:
    text = listed("A paper", FACTS, CLAIMS)
    assert read(text) == ("A paper", FACTS, CLAIMS)
    assert "A paper: 2 claims, 1 not reproduced, 1 not measured. Machine:" in text
    with pytest.raises(ValueError, match="four cells"):
        read(text + "| Figure 3 | It is odd. |\n")


def test_what_is_renewed_is_counted_again_and_the_rest_stays() -> None:
    measured = Claim("Figure 2", "It is slow.", "It takes 3 s.", "reproduced")
    text = renewed(listed("A paper", FACTS, CLAIMS), [measured], {"Benchmarks": "slow 2026-11-22"})
    assert read(text) == ("A paper", {**FACTS, "Benchmarks": "slow 2026-11-22"}, [CLAIMS[0], measured])
    assert "1 reproduced, 1 not reproduced. Machine:" in text
    with pytest.raises(ValueError, match="Figure 9"):
        renewed(text, [unmeasured("Figure 9", "It is new.", "a command")], {})


def test_the_committed_claims_say_what_the_committed_results_say() -> None:
    text = COMMITTED.read_text(encoding="utf-8")
    assert text == renewed(text, published.claims(), published.facts()), "python -m benchmarks.reports.batch --renew does it"


def test_every_benchmark_that_is_read_has_been_run() -> None:
    assert not [claim.where for claim in published.claims() if claim.verdict == "not measured"]
