"""Properties of BATCH's mathematics for any arrivals: fits, thinned arrivals, latencies behind a buffer, costs and plans."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gnomon_planner.billing import FARGATE, LAMBDA, Billing, LambdaPrice, PerCall, Provisioned
from gnomon_planner.buffer import BufferPlan
from gnomon_planner.fit import fit
from gnomon_planner.latency import ExactLatency, PaperLatency, ServiceTimes
from gnomon_planner.map_families import Chain, Shape, erlang_mixture, map2, mmpp2, skewness_bounds, with_skewness
from gnomon_planner.maps import Map
from gnomon_planner.optimizer import Landscape
from gnomon_planner.plans import Plan, Size, Space
from gnomon_planner.samples import sample_of_counts, sample_of_times
from gnomon_planner.service_time import MAX_RATIOS, ratios_of_runs

means = st.floats(1e-4, 1e4)
positive = st.floats(1e-3, 1e3)
shares = st.floats(0.02, 0.98)


@given(means, st.floats(1.02, 60.0), st.floats(1.01, 20.0), st.floats(0.0, 0.999))
def test_hyperexponential_moments_and_any_positive_decay_are_met(mean_s: float, scv: float, beyond: float, decay: float) -> None:
    low, _ = skewness_bounds(scv)
    process, has = map2(mean_s, Shape(scv, low * beyond, decay))
    assert has == Shape(scv, low * beyond, decay)
    assert process.mean_s == pytest.approx(mean_s, rel=1e-6)
    assert process.scv == pytest.approx(scv, rel=1e-5)
    assert process.skewness == pytest.approx(low * beyond, rel=1e-4)
    assert process.autocorrelation(1) == pytest.approx(has.lag1, rel=1e-4, abs=1e-8)


@given(st.floats(0.51, 0.98), shares)
def test_moments_below_one_are_met(scv: float, share: float) -> None:
    low, high = skewness_bounds(scv)
    skewness = low + share * (high - low)
    process, _ = map2(1.0, Shape(scv, skewness))
    assert process.scv == pytest.approx(scv, rel=1e-5)
    assert process.skewness == pytest.approx(skewness, rel=1e-3, abs=1e-5)


@given(means, st.floats(0.0, 1e4), st.floats(-1e4, 1e6), st.floats(-2.0, 2.0))
def test_any_four_numbers_get_a_process_of_that_mean(mean_s: float, scv: float, skewness: float, decay: float) -> None:
    for made in (map2, mmpp2):
        process, has = made(mean_s, Shape(scv, skewness, decay))
        assert process.mean_s == pytest.approx(mean_s, rel=1e-4)
        assert process.order <= 2
        assert process.scv == pytest.approx(has.scv, rel=1e-2)


@given(st.tuples(positive, st.floats(0.0, 1e3)), st.tuples(positive, positive))
def test_every_mmpp2_is_found_again(rates: tuple[float, float], leaving: tuple[float, float]) -> None:
    process = Map.mmpp2(rates, leaving)
    if process.scv < 1.01 or process.autocorrelation(1) < 1e-5:
        return
    decay = process.autocorrelation(2) / process.autocorrelation(1)
    found, _ = mmpp2(process.mean_s, Shape(process.scv, process.skewness, decay))
    assert found.moments(2) == pytest.approx(process.moments(2), rel=1e-3)
    assert found.autocorrelation(1) == pytest.approx(process.autocorrelation(1), rel=1e-2, abs=1e-6)


@given(st.floats(0.0, 1.0), means)
def test_regular_gaps_have_the_nearest_scv_of_eight_phases(scv: float, mean_s: float) -> None:
    process = erlang_mixture(mean_s, scv)
    assert process.scv == pytest.approx(max(scv, 1 / 8), rel=1e-6)
    assert process.mean_s == pytest.approx(mean_s, rel=1e-9)


@given(means, st.lists(st.tuples(positive, positive), min_size=1, max_size=3), st.floats(-50.0, 50.0))
def test_any_chains_get_their_mean_and_variance(rate: float, chains: list[tuple[float, float]], skewness: float) -> None:
    process = with_skewness(rate, tuple(Chain(variance, pace) for variance, pace in chains), skewness)
    theta, rates = process.stationary, process.D1.diagonal()
    assert float(theta @ rates) == pytest.approx(rate, rel=1e-6)
    assert float(theta @ (rates - rate) ** 2) == pytest.approx(math.fsum(variance for variance, _ in chains), rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(1e-9, 1e9), min_size=2, max_size=200), st.integers(1, 4))
def test_a_fit_never_fails_on_positive_gaps(gaps: list[float], times: int) -> None:
    stamps = np.cumsum(gaps * times)
    assume(stamps[-1] > stamps[0])  # which rounding may prevent
    fitted = fit(sample_of_times(stamps))
    assert fitted.process.rate_rps == pytest.approx(fitted.sample.rate_rps, rel=1e-6)
    assert math.isfinite(fitted.chosen.misfit.total)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=300).filter(any), st.floats(1e-3, 1e3))
def test_a_fit_never_fails_on_counts(counts: list[int], bin_s: float) -> None:
    fitted = fit(sample_of_counts(counts, bin_s))
    assert fitted.process.rate_rps == pytest.approx(sum(counts) / (len(counts) * bin_s), rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(-12, 12))
def test_another_unit_of_time_gives_the_same_process_in_that_unit(seed: int, power: int) -> None:
    # A power of two scales without rounding, so that even choices between near equals are the same.
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1.0, 400) * np.where(np.arange(400) // 50 % 2, 0.1, 1.0)
    unit = 2.0**power
    first, second = fit(sample_of_times(np.cumsum(gaps))), fit(sample_of_times(np.cumsum(gaps) * unit))
    assert second.chosen.family == first.chosen.family
    assert second.process.D0 * unit == pytest.approx(first.process.D0, rel=1e-6, abs=1e-12)
    assert second.process.D1 * unit == pytest.approx(first.process.D1, rel=1e-6, abs=1e-12)


rates = st.floats(1e-2, 1e2)
kept_shares = st.floats(0.01, 1.0)


@st.composite
def processes(draw: st.DrawFn) -> Map:
    """One to three phases that are all reached, with an arrival or without one; the diagonal of D0 follows."""
    order = draw(st.integers(1, 3))
    moves, arrivals = (np.array(draw(st.lists(rates, min_size=order**2, max_size=order**2))).reshape(order, order) for _ in "01")
    np.fill_diagonal(moves, 0.0)
    np.fill_diagonal(moves, -(moves + arrivals).sum(axis=1))
    return Map(moves, arrivals)


@given(processes(), kept_shares)
def test_a_share_of_the_requests_comes_that_much_more_slowly(process: Map, share: float) -> None:
    assert process.thinned(share).rate_rps == pytest.approx(share * process.rate_rps, rel=1e-9)


@given(processes(), kept_shares, st.floats(0.01, 100.0))
def test_excess_variance_shrinks_with_the_thinning_share(process: Map, share: float, window_s: float) -> None:
    for window in (None, window_s):
        whole = process.dispersion(window)
        assert process.thinned(share).dispersion(window) == pytest.approx(1.0 + share * (whole - 1.0), rel=1e-6, abs=1e-6)


@given(processes(), kept_shares, kept_shares)
def test_a_share_of_a_share_is_a_share(process: Map, first: float, second: float) -> None:
    twice, once = process.thinned(first).thinned(second), process.thinned(first * second)
    assert np.allclose(twice.D0, once.D0, rtol=1e-9, atol=1e-12)
    assert np.allclose(twice.D1, once.D1, rtol=1e-9, atol=1e-12)


@given(processes())
def test_all_of_them_are_the_process_itself(process: Map) -> None:
    assert process.thinned(1.0) == process


@given(rates, kept_shares)
def test_independent_arrivals_stay_independent(rate_rps: float, share: float) -> None:
    thinned = Map.poisson(rate_rps).thinned(share)
    assert thinned.order == 1
    assert thinned.rate_rps == pytest.approx(share * rate_rps)


buffer_rates = st.floats(0.05, 500.0)


@st.composite
def maps(draw: st.DrawFn) -> Map:
    """Poisson, MMPP(2), and MAPs of two and three phases with all moves."""
    order = draw(st.integers(1, 3))
    if order == 1:
        return Map.poisson(draw(buffer_rates))
    if draw(st.booleans()):
        return Map.mmpp2((draw(buffer_rates), draw(buffer_rates)), (draw(buffer_rates), draw(buffer_rates)))
    d0 = np.array([[0.0 if row == column else draw(buffer_rates) for column in range(order)] for row in range(order)])
    d1 = np.array([[draw(buffer_rates) for _ in range(order)] for _ in range(order)])
    return Map(d0 - np.diag((d0 + d1).sum(axis=1)), d1)


batches = st.integers(1, 12)
timeouts = st.floats(0.0, 3.0)


@st.composite
def services(draw: st.DrawFn, batch: int) -> ServiceTimes:
    return ServiceTimes.fixed([draw(st.floats(0.0, 0.5)) for _ in range(batch)])


@settings(max_examples=60, deadline=None)
@given(st.data(), maps(), batches, timeouts)
def test_f_rises_from_zero_to_one(data: st.DataObject, process: Map, batch: int, timeout_s: float) -> None:
    service = data.draw(services(batch))
    for latency in (
        ExactLatency(process, BufferPlan(batch, timeout_s), service),
        PaperLatency(process, BufferPlan(batch, timeout_s), service),
    ):
        most = float(service.means.max()) + timeout_s
        found = latency.cdf(np.linspace(-0.01, most + 0.01, 200))
        assert np.diff(found).min() >= -1e-8
        assert found[0] == 0.0
        assert found[-1] == pytest.approx(1.0, abs=1e-9)
        assert latency.percentile(100) <= most + 1e-12


@settings(max_examples=60, deadline=None)
@given(maps(), batches, timeouts)
def test_sizes_and_phases_are_distributions_that_lose_no_request(process: Map, batch: int, timeout_s: float) -> None:
    buffer = ExactLatency(process, BufferPlan(batch, timeout_s), ServiceTimes.fixed([0.0], batch)).buffer
    assert buffer.sizes.sum() == pytest.approx(1.0)
    assert buffer.sizes.min() >= 0.0
    assert buffer.phases.sum() == pytest.approx(1.0)
    # All members of a batch of k have waited at most T by the end, except the first of an incomplete one, counted apart.
    everyone = buffer.members(np.array([buffer.timeout_s]))[0]
    complete = np.arange(1, batch + 1) == batch
    assert everyone == pytest.approx(buffer.sizes * (np.arange(1, batch + 1) - ~complete), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.data(), maps(), batches, timeouts, st.floats(0.5, 99.9))
def test_a_percentile_is_the_least_time_that_reaches_it(
    data: st.DataObject, process: Map, batch: int, timeout_s: float, percent: float
) -> None:
    latency = ExactLatency(process, BufferPlan(batch, timeout_s), data.draw(services(batch)))
    at_s = latency.percentile(percent)
    assert latency.cdf(np.array([at_s]))[0] >= percent / 100.0 - 1e-8
    assert latency.cdf(np.array([at_s - 1e-6 * (1.0 + at_s)]))[0] <= percent / 100.0 + 1e-8


@settings(max_examples=40, deadline=None)
@given(maps(), st.integers(2, 10), timeouts, st.floats(0.01, 100.0))
def test_only_ratios_of_times_matter(process: Map, batch: int, timeout_s: float, factor: float) -> None:
    service = [0.01 * size for size in range(1, batch + 1)]
    here = ExactLatency(process, BufferPlan(batch, timeout_s), ServiceTimes.fixed(service))
    there = ExactLatency(
        process.rescaled(process.rate_rps * factor),
        BufferPlan(batch, timeout_s / factor),
        ServiceTimes.fixed([value / factor for value in service]),
    )
    for percent in (50, 95):
        assert there.percentile(percent) * factor == pytest.approx(here.percentile(percent), rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(buffer_rates, st.integers(2, 8), st.floats(0.001, 1.0))
def test_phases_that_differ_in_nothing_are_a_poisson_process(rate_rps: float, batch: int, timeout_s: float) -> None:
    first, second = (
        ExactLatency(process, BufferPlan(batch, timeout_s), ServiceTimes.fixed([0.01], batch))
        for process in (Map.poisson(rate_rps), Map.mmpp2((rate_rps, rate_rps), (3.0, 0.2)))
    )
    times = np.linspace(0.0, timeout_s + 0.011, 50)
    assert second.cdf(times) == pytest.approx(first.cdf(times), abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(maps(), st.integers(2, 8))
def test_a_full_batch_is_certain_where_nobody_stops_waiting(process: Map, batch: int) -> None:
    buffer = ExactLatency(process, BufferPlan(batch, math.inf), ServiceTimes.fixed([0.01], batch)).buffer
    assert buffer.sizes[-1] == pytest.approx(1.0)


ROUNDING = 1e-9
times = st.floats(0.001, 10.0)
some = st.lists(st.tuples(st.floats(0.5, 4.0), st.integers(1, 120)), min_size=1, max_size=12)


@given(some, times, st.sampled_from([0.001, 0.1]))
def test_the_expected_bill_is_the_mean_of_the_bills_of_the_runs(
    counts: list[tuple[float, int]], median_s: float, step_s: float
) -> None:
    runs = np.repeat([seconds for seconds, _ in counts], [count for _, count in counts])
    price = LambdaPrice("", usd_per_gb_s=1.0, usd_per_call=0.0, billing_step_s=step_s, source="")
    expected = price.mean_per_call(1024.0, np.array([median_s]), ratios_of_runs([runs])).item()
    bills = price.per_call(1024.0, median_s * (runs / np.median(runs)))
    off = 0.0 if len(runs) <= MAX_RATIOS else np.ptp(bills) / MAX_RATIOS
    assert abs(expected - bills.mean()) <= off + ROUNDING * bills.max()


PERCENT = 95.0
OFF = 1e-3  # of F, and of a time: the landscape is nearer than that to what is exact
SAME = 1.0 + 1e-8  # as cheap
plan_rates = st.floats(0.5, 200.0)
many = tuple(0.8 + number / 50.0 for number in range(40))
ratios = st.sampled_from([(1.0,), (0.9, 1.0, 1.3), (0.5, 2.0), many])


@st.composite
def plan_maps(draw: st.DrawFn) -> Map:
    """Poisson processes, bursts, and gaps that are long and short in turn."""
    kind = draw(st.integers(0, 2))
    if kind == 0:
        return Map.poisson(draw(plan_rates))
    if kind == 1:
        return Map.mmpp2((draw(plan_rates), draw(plan_rates)), (draw(plan_rates), draw(plan_rates)))
    long, short = draw(plan_rates), draw(plan_rates)
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
    """True if the plan is within the SLO by more than what the landscape may be off."""
    return bool(plan.latency(process).cdf(np.array([slo_s * (1.0 - OFF)]))[0] >= PERCENT / 100.0 + OFF)


@settings(max_examples=60, deadline=None)
@given(plan_maps(), spaces(), st.floats(0.02, 1.2))
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
@given(plan_maps(), spaces(), st.floats(0.02, 1.2), st.sampled_from([Provisioned(FARGATE, 3), PerCall(LAMBDA["x86"])]))
def test_earlier_questions_change_no_plan(process: Map, space: Space, slo_s: float, billing: Billing) -> None:
    fresh, asked = (Landscape(process, space, billing, PERCENT) for _ in range(2))
    assert len(asked.pareto_front()) >= 1
    assert asked.latency_s.shape == asked.usd_per_request.shape
    assert fresh.cheapest(slo_s) == asked.cheapest(slo_s)
    for number in range(len(space.sizes)):
        part = asked.of_size(number)
        assert part.cheapest(slo_s) == fresh.of_size(number).cheapest(slo_s)
        assert part.latency_s == pytest.approx(asked.latency_s[number : number + 1])


@settings(max_examples=30, deadline=None)
@given(plan_maps(), spaces(), st.floats(0.02, 1.2))
def test_cheapest_plan_costs_no_more_than_any_feasible_one(process: Map, space: Space, slo_s: float) -> None:
    landscape = Landscape(process, space, PerCall(LAMBDA["x86"]), PERCENT)
    for whole in (landscape, *(part for part, _ in _parts(landscape))):
        promised, choice = whole.cheapest_estimate(slo_s), whole.cheapest(slo_s)
        if promised is None:
            assert choice.failed
        elif not choice.failed:
            assert promised.usd_per_request <= SAME * choice.plan.usd_per_request
            if surely(promised, process, slo_s):
                assert choice.plan == whole.exactly(promised)
    assert Landscape(process, space, Provisioned(FARGATE, 3), PERCENT).cheapest_estimate(slo_s) is None, (
        "an estimate promises nothing"
    )


def _parts(landscape: Landscape) -> list[tuple[Landscape, list[str]]]:
    return [(landscape.of_size(number), [size.name]) for number, size in enumerate(landscape.space.sizes)]
