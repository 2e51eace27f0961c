"""Costs, latencies and plans of BATCH for any arrivals."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_planner.maps import Map
from gnomon_planner.optimizer import Billing, Held, Landscape, PerCall
from gnomon_planner.plans import HELD, LAMBDA, LambdaPrice, Plan, Size, Space
from gnomon_planner.service_time import MOST, of_runs

ROUNDING = 1e-9
times = st.floats(0.001, 10.0)
some = st.lists(st.tuples(st.floats(0.5, 4.0), st.integers(1, 120)), min_size=1, max_size=12)


@given(some, times, st.sampled_from([0.001, 0.1]))
def test_the_expected_bill_is_the_mean_of_the_bills_of_the_runs(
    counts: list[tuple[float, int]], median_s: float, step_s: float
) -> None:
    runs = np.repeat([seconds for seconds, _ in counts], [count for _, count in counts])
    price = LambdaPrice("", usd_per_gb_s=1.0, usd_per_call=0.0, billing_step_s=step_s, source="")
    expected = price.mean_per_call(1024.0, np.array([median_s]), of_runs([runs])).item()
    bills = price.per_call(1024.0, median_s * (runs / np.median(runs)))
    off = 0.0 if len(runs) <= MOST else np.ptp(bills) / MOST
    assert abs(expected - bills.mean()) <= off + ROUNDING * bills.max()


PERCENT = 95.0
OFF = 1e-3  # of F, and of a time: the landscape is nearer than that to what is exact
SAME = 1.0 + 1e-8  # as cheap
rates = st.floats(0.5, 200.0)
many = tuple(0.8 + number / 50.0 for number in range(40))
ratios = st.sampled_from([(1.0,), (0.9, 1.0, 1.3), (0.5, 2.0), many])


@st.composite
def maps(draw: st.DrawFn) -> Map:
    """Poisson processes, bursts, and gaps that are long and short in turn."""
    kind = draw(st.integers(0, 2))
    if kind == 0:
        return Map.poisson(draw(rates))
    if kind == 1:
        return Map.mmpp2((draw(rates), draw(rates)), (draw(rates), draw(rates)))
    long, short = draw(rates), draw(rates)
    return Map(np.array([[-long, 0.0], [0.0, -short]]), np.array([[0.0, long], [short, 0.0]]))


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """One to three sizes, some of which serve smaller batches only, and no faster because they are alone."""
    sizes = []
    for memory_mb in draw(st.sampled_from([(1024,), (1024, 3008), (512, 1769, 10_240)])):
        service_s = draw(st.lists(st.floats(0.01, 0.5), min_size=2, max_size=6))
        sizes.append(Size(f"{memory_mb} MB", memory_mb, memory_mb / 1769, tuple(service_s), draw(ratios)))
    timeouts_s = draw(st.lists(st.floats(0.0, 0.6), min_size=1, max_size=3, unique=True))
    return Space(tuple(sizes), (1, 2, 4, 6), tuple(sorted(timeouts_s)))


def surely(plan: Plan, process: Map, slo_s: float) -> bool:
    """Whether the plan is within the SLO by more than what the landscape may be off."""
    return bool(plan.latency(process).cdf(np.array([slo_s * (1.0 - OFF)]))[0] >= PERCENT / 100.0 + OFF)


@settings(max_examples=60, deadline=None)
@given(maps(), spaces(), st.floats(0.02, 1.2))
def test_no_plan_that_is_surely_within_the_slo_is_cheaper(process: Map, space: Space, slo_s: float) -> None:
    landscape = Landscape(process, space, PerCall(LAMBDA["x86"]), PERCENT)
    every = [
        landscape.exactly(landscape.estimate(place))
        for place in itertools.product(*map(range, landscape.usd_per_request.shape))
        if np.isfinite(landscape.usd_per_request[place])
    ]
    for whole, names in ((landscape, [size.name for size in space.sizes]), *_parts(landscape)):
        plans = [plan for plan in every if plan.size.name in names]
        choice = whole.cheapest(slo_s)
        within = [plan for plan in plans if surely(plan, process, slo_s)]
        if choice.failed:
            assert not within
            assert not any(surely(plan, process, choice.plan.latency_s) for plan in plans), "the quickest"
        else:
            assert choice.plan.latency_s <= slo_s * (1.0 + 1e-9)
            assert choice.plan.usd_per_request <= SAME * min((plan.usd_per_request for plan in within), default=np.inf)
        assert choice.plan in plans


@settings(max_examples=30, deadline=None)
@given(maps(), spaces(), st.floats(0.02, 1.2), st.sampled_from([Held(HELD, 3), PerCall(LAMBDA["x86"])]))
def test_earlier_questions_change_no_plan(process: Map, space: Space, slo_s: float, billing: Billing) -> None:
    fresh, asked = (Landscape(process, space, billing, PERCENT) for _ in range(2))
    assert len(asked.front()) >= 1
    assert asked.latency_s.shape == asked.usd_per_request.shape
    assert fresh.cheapest(slo_s) == asked.cheapest(slo_s)
    for number in range(len(space.sizes)):
        part = asked.of_size(number)
        assert part.cheapest(slo_s) == fresh.of_size(number).cheapest(slo_s)
        assert part.latency_s == pytest.approx(asked.latency_s[number : number + 1])


@settings(max_examples=30, deadline=None)
@given(maps(), spaces(), st.floats(0.02, 1.2))
def test_cheapest_plan_costs_no_more_than_any_feasible_one(process: Map, space: Space, slo_s: float) -> None:
    landscape = Landscape(process, space, PerCall(LAMBDA["x86"]), PERCENT)
    for whole in (landscape, *(part for part, _ in _parts(landscape))):
        promised, choice = whole.promised(slo_s), whole.cheapest(slo_s)
        if promised is None:
            assert choice.failed
        elif not choice.failed:
            assert promised.usd_per_request <= SAME * choice.plan.usd_per_request
            if surely(promised, process, slo_s):
                assert choice.plan == whole.exactly(promised)
    assert Landscape(process, space, Held(HELD, 3), PERCENT).promised(slo_s) is None, "an estimate promises nothing"


def _parts(landscape: Landscape) -> list[tuple[Landscape, list[str]]]:
    return [(landscape.of_size(number), [size.name]) for number, size in enumerate(landscape.space.sizes)]
