"""BATCH beside its baselines: what each row means, on short demands where it can be worked out."""

import json
import math

import numpy as np
import pytest

from benchmarks import batch_baselines
from benchmarks.batch_baselines import (
    BATCHES,
    MEMORIES_MB,
    NAMES,
    RATIOS,
    Demand,
    Objective,
    Row,
    Served,
    Supply,
    cases,
    demand_of,
    from_csv,
    served,
    side_by_side,
    supply,
    to_csv,
)
from benchmarks.programs import QUICK_RESULTS
from benchmarks.simulation.markov import markov_arrivals
from gnomon_core.errors import GnomonError
from gnomon_planner.billing import LAMBDA, ProvisionedPrice
from gnomon_planner.maps import Map
from gnomon_planner.plans import Size

LOOSE = Objective(1.0, 95.0)
SECONDS = tuple(0.06 + 0.04 * batch for batch in range(1, 9))
SUPPLY = Supply(
    tuple(Size(f"{mb} MB", mb, mb / 1769, tuple(second * 1769 / mb for second in SECONDS)) for mb in (885, 1769, 3008)),
    LAMBDA["x86"],
    Size("machine", 4096.0, 1.0, SECONDS),
    ProvisionedPrice("2026-11", 1e-5, 0.0, "a test"),
    30.0,
)


def poisson(rate_rps: float, seconds: float, begin_s: float) -> Demand:
    times_s = markov_arrivals(Map.poisson(rate_rps), int(rate_rps * seconds * 1.2), np.random.default_rng(7))
    return Demand(times_s[times_s < seconds], begin_s)


def made_up(*latency_s: float, usd: float = 0.0) -> Served:
    """A demand whose requests came a second after the other."""
    return Served("x", np.arange(float(len(latency_s))), np.array(latency_s), [1.0], usd, 1.0, 1.0, 0.0, "")


STEADY = poisson(20.0, 900.0, 600.0)


@pytest.fixture(scope="module")
def steady() -> dict[str, Row]:
    return {row.name: row for row in side_by_side(STEADY, SUPPLY, LOOSE)}


def test_everybody_answers_the_same_requests(steady: dict[str, Row]) -> None:
    assert tuple(steady) == NAMES
    assert {row.requests for row in steady.values()} == {len(STEADY.judged_s)}
    assert len(STEADY.judged_s) == pytest.approx(6_000, rel=0.05)


def test_vanilla_is_one_latency_and_one_price(steady: dict[str, Row]) -> None:
    largest, cherry = steady["vanilla, largest"], steady["vanilla, cherry-picked"]
    assert largest.percentile_s == largest.median_s == pytest.approx(0.1 * 1769 / 3008)
    assert largest.usd_per_million == pytest.approx((3008 / 1024 * 0.059 * 1.66667e-5 + 2e-7) * 1e6)
    # Here memory × duration is the same at all sizes, and only rounding up to milliseconds differs.
    assert cherry.said == "1769 MB"
    assert cherry.usd_per_million < largest.usd_per_million
    assert largest.late == cherry.late == 0.0


def test_batches_meet_the_percentile_at_the_least_cost_of_calls(steady: dict[str, Row]) -> None:
    batch = steady["batch"]
    assert batch.late <= 0.05 + 0.01
    assert batch.percentile_s <= 1.01 * LOOSE.slo_s
    assert batch.batch > 2.0
    assert batch.usd_per_million < 0.8 * steady["vanilla, cherry-picked"].usd_per_million


def test_machines_cost_what_they_are_held_for(steady: dict[str, Row]) -> None:
    for name in ("target-tracking", "target-tracking, tuned", "batch on machines"):
        row = steady[name]
        assert row.usd_per_million == pytest.approx(row.machines * 1e-5 / 20.0 * 1e6, rel=0.05)
        assert row.on_demand == 0.0
    # Half of ten a second each: four machines for twenty, and a fifth from the first three minutes in which a little more comes.
    assert 4.0 <= steady["target-tracking"].machines <= 5.0
    assert steady["target-tracking, tuned"].usd_per_million <= steady["target-tracking"].usd_per_million
    assert steady["mark"].batch > 1.0


def test_the_same_demand_gives_the_same_rows() -> None:
    assert side_by_side(STEADY, SUPPLY, LOOSE, ["mark", "batch"]) == side_by_side(STEADY, SUPPLY, LOOSE, ["mark", "batch"])


def test_at_a_surge_mark_calls_functions_and_target_tracking_is_late() -> None:
    calm = poisson(20.0, 900.0, 600.0).times_s
    surge = 900.0 + poisson(120.0, 120.0, 60.0).times_s
    demand = Demand(np.concatenate([calm, surge]), 600.0)
    mark, tracking = (served(name, demand, SUPPLY, LOOSE) for name in ("mark", "target-tracking"))
    assert LOOSE.late(tracking.latency_s) > 0.3
    assert LOOSE.late(mark.latency_s) < 0.5 * LOOSE.late(tracking.latency_s)
    assert 0.05 < mark.on_demand < 0.9
    # Nothing is called while machines carry everything.
    called = demand.judged_s[np.isclose(mark.latency_s, 0.1)]
    assert len(called[called > 300.0]) > 0.9 * mark.on_demand * len(mark.latency_s)


def test_a_request_without_an_answer_is_late_for_ever() -> None:
    row = made_up(0.1, math.inf, 0.2, 0.3, usd=4e-6).row(Objective(0.2, 75.0))
    assert (row.late, row.percentile_s, row.median_s) == (0.5, 0.3, 0.2)
    assert row.usd_per_million == pytest.approx(1.0)
    endless = made_up(math.inf).row(LOOSE)
    assert endless.to_json()["percentile_s"] is None
    assert Row.from_json(json.loads(json.dumps(endless.to_json()))) == endless


def test_late_share_is_reported_for_each_objective() -> None:
    row = made_up(0.1, 0.2, 0.3, math.inf).row(Objective(0.2, 75.0))
    shares = dict(zip(RATIOS, row.ccdf, strict=True))
    assert (shares[0.0], shares[0.5], shares[1.0], shares[1.5], shares[3.0]) == (1.0, 0.75, 0.5, 0.25, 0.25)
    assert all(after <= before for before, after in zip(row.ccdf, row.ccdf[1:], strict=False))


def test_every_minute_has_its_rate_its_latencies_and_its_instances(steady: dict[str, Row]) -> None:
    for row in steady.values():
        assert len(row.minutes) == 5
        assert sum(60.0 * minute.rate_rps for minute in row.minutes) == pytest.approx(row.requests, rel=1e-4)
        assert all(minute.median_s is not None and minute.p99_s is not None for minute in row.minutes)
    # A call for each of twenty a second, 59 ms each, is 1.2 at once.
    for minute in steady["vanilla, largest"].minutes:
        assert minute.instances == pytest.approx(minute.rate_rps * 0.1 * 1769 / 3008, rel=1e-3)
    held = steady["target-tracking"]
    assert sum(minute.instances for minute in held.minutes) / 5 == pytest.approx(held.machines, rel=0.01)


def test_minutes_are_read_as_they_were_written(steady: dict[str, Row]) -> None:
    empty = made_up(math.inf).row(LOOSE).minutes
    assert (empty[0].median_s, empty[0].p99_s) == (None, None)
    text = to_csv([("a case", "mark", steady["mark"].minutes), ("another", "x", empty)])
    assert from_csv(text) == {("a case", "mark"): list(steady["mark"].minutes), ("another", "x"): list(empty)}


def test_at_a_surge_minutes_show_how_machines_come_late() -> None:
    calm = poisson(20.0, 900.0, 600.0).times_s
    surge = 900.0 + poisson(120.0, 240.0, 60.0).times_s
    row = served("target-tracking", Demand(np.concatenate([calm, surge]), 600.0), SUPPLY, LOOSE).row(LOOSE)
    before, during = row.minutes[4], row.minutes[5]
    assert during.rate_rps > 4 * before.rate_rps
    assert during.p99_s is None, "one in a hundred was never answered"
    assert during.median_s is not None
    assert before.median_s is not None
    assert during.median_s > 10 * before.median_s
    assert row.minutes[-1].instances > 1.5 * before.instances


def test_incomparable_inputs_are_refused() -> None:
    with pytest.raises(GnomonError, match="no baseline"):
        served("sagemaker", STEADY, SUPPLY, LOOSE)
    with pytest.raises(GnomonError, match="no history"):
        served("batch", Demand(STEADY.times_s, 0.0), SUPPLY, LOOSE)
    with pytest.raises(GnomonError, match="no history"):
        served("batch", Demand(STEADY.times_s, 2000.0), SUPPLY, LOOSE)


def test_sizes_for_sale_are_the_measured_ones() -> None:
    sold = supply()
    assert [size.memory_mb for size in sold.functions] == list(MEMORIES_MB)
    assert {len(size.service_s) for size in (*sold.functions, sold.machine)} == {BATCHES}
    assert sold.machine.service_s[0] == pytest.approx(0.0552045)
    # 885 MB are half a core.
    half = next(size for size in sold.functions if size.memory_mb == 896)
    assert half.service_s[7] == pytest.approx(0.792591 * 1769 / 896)
    for slow, quick in zip(sold.functions, sold.functions[1:], strict=False):
        assert all(after < before for before, after in zip(slow.service_s, quick.service_s, strict=True))
    assert sold.usd_per_machine_s == pytest.approx(0.085 / 3600)


def test_each_case_has_an_hour_of_history_and_its_own_key() -> None:
    assert len({case.key for case in cases(quick=False)}) == len(cases(quick=False))
    demand = demand_of(cases(quick=True)[0])
    assert demand.begin_s == 3600.0
    assert demand.times_s[-1] == pytest.approx(4500.0, abs=1.0)


@pytest.mark.slow
@pytest.mark.timeout(570)
def test_a_quick_run_has_a_row_of_each_in_every_case() -> None:
    batch_baselines.main(["--quick", "--afresh"])
    document = json.loads((QUICK_RESULTS / "batch_baselines.json").read_bytes())
    keys = {figure["key"] for figure in document["figures"]}
    for case in document["cases"]:
        assert [row["name"] for row in case["rows"]] == list(NAMES)
        for name in NAMES:
            assert {f"{case['case']}: {name}: late", f"{case['case']}: {name}: cost"} <= keys
