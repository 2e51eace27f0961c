"""The Twitter day: the cheapest plan by few runs is the cheapest of all, and a quick run has what is documented."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import twitter_day
from benchmarks.programs import QUICK_RESULTS
from benchmarks.twitter_day import CASES, HOUR_S, HOURS, Case, of_hour
from gnomon_planner.numerics import Vector

LAMBDA, HELD = (next(case for case in CASES if case.paid == paid) for paid in ("Lambda", "held"))


@pytest.mark.parametrize("case", [replace(LAMBDA, max_batch=8), replace(HELD, max_batch=7)], ids=["Lambda", "held"])
def test_the_cheapest_by_few_runs_is_the_cheapest_of_all(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twitter_day, "STEPS", {"Lambda": 12, "held": 12})
    times = HOUR_S + np.cumsum(np.random.default_rng(11).exponential(0.02, 4000))
    runs: list[tuple[int, float]] = []
    run_one = twitter_day.ran

    def ran(of: Case, during: Vector, batch: int, timeout_s: float) -> twitter_day.Cheapest:
        runs.append((batch, timeout_s))
        return run_one(of, during, batch, timeout_s)

    monkeypatch.setattr(twitter_day, "ran", ran)
    few = twitter_day.cheapest(case, times)
    count = len(runs)
    everything = twitter_day.every(case, times, range(1, case.max_batch + 1), twitter_day.timeouts_of(case))
    assert few.met
    assert few.usd_per_request == pytest.approx(everything.usd_per_request, rel=1e-12)
    assert count < (len(runs) - count) / 2


@pytest.mark.slow
def test_hours_are_whole_and_their_requests_those_of_the_trace() -> None:
    assert list(HOURS) == list(range(1, 23))
    hour = of_hour(10)
    assert len(hour) == pytest.approx(52.57 * 3600, rel=1e-3)
    assert np.all((hour >= 36_000.0) & (hour < 39_600.0))


@pytest.mark.slow
@pytest.mark.timeout(570)
def test_a_quick_run_has_the_figures_and_the_hours_that_are_documented() -> None:
    twitter_day.main(["--quick", "--afresh"])
    document = json.loads((QUICK_RESULTS / "twitter_day.json").read_bytes())
    keys = [figure["key"] for figure in document["figures"]]
    for case in document["cases"]:
        for what in ("on_change: hours met", "on_change: cost", "hourly: hours met", "hourly: cost", "batches"):
            assert f"{case['key']}: {what}" in keys
        for hour in case["hours"]:
            assert hour["cheapest"]["met"]
            assert hour["on_change"]["usd_per_million"] > 0.0
            assert 0.9 < hour["on_change"]["within_slo"] <= 1.0
