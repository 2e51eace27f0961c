"""The claims that rest on what other benchmarks publish, and on nothing that the report measures."""

from __future__ import annotations

from benchmarks.reports.batch.sections import accuracy, comparisons, cost
from benchmarks.reports.claims import Claim
from benchmarks.reports.figures import Measured

READ = ("regression", "twitter_day", comparisons.BENCHMARK)


def claims() -> list[Claim]:
    """Claims on the regression, on the Twitter day planned anew, and on BATCH beside other systems."""
    regression, twitter, beside = (Measured(name) for name in READ)
    return [accuracy.regressed(regression), cost.replanned(twitter), *comparisons.claims(beside)]


def facts() -> dict[str, str]:
    """When each of the benchmarks was run; nothing of one that was not."""
    runs = [f"{one.name} {one.document['measured_at'][:10]}" for one in map(Measured, READ) if one.there]
    return {"Benchmarks": ", ".join(runs)} if runs else {}
