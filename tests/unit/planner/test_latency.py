"""Latency of a buffered queue (BATCH, section 4)."""

import math
import random

import numpy as np
import pytest

from gnomon_core.errors import GnomonError
from gnomon_planner.buffer import Buffer, BufferPlan
from gnomon_planner.latency import ExactLatency, PaperLatency, ServiceTimes, first_phases, member_shares
from gnomon_planner.map_families import Shape, erlang_mixture, hyperexponential, kpc, kronecker
from gnomon_planner.maps import Map
from gnomon_planner.samples import Estimate, GapStatistics
from gnomon_planner.service_time import (
    DETERMINISTIC,
    MAX_RATIOS,
    SHARE_EDGES,
    Measurement,
    ServiceModel,
    cells_to_measure,
    fit_service_times,
    ratios_of_deviation,
    ratios_of_quartile_range,
    ratios_of_runs,
    reduced_ratios,
    representative_ratios,
)
from tests.refusals import refused

BURSTS = Map.mmpp2((10, 200), (0.5, 0.7))
ALTERNATING = Map(np.array([[-10.0, 0.0], [0.0, -200.0]]), np.array([[0.0, 10.0], [200.0, 0.0]]))


def exact(process: Map, batch: int, timeout_s: float, *service_s: float) -> ExactLatency:
    return ExactLatency(process, BufferPlan(batch, timeout_s), ServiceTimes.fixed(service_s, batch))


def test_a_batch_of_two_of_a_poisson_process_is_the_closed_form() -> None:
    # λT = 1: e^-1 of the batches have one request, which waits 0.1 s. Of the others, the second waits 0, the first exponentially.
    rate, timeout_s = 10.0, 0.1
    latency = exact(Map.poisson(rate), 2, timeout_s, 0.02, 0.03)
    alone = math.exp(-1.0)
    mean = 2.0 - alone
    assert latency.buffer.sizes == pytest.approx([alone, 1.0 - alone])
    for time_s in (0.03, 0.05, 0.1, 0.119, 0.12, 0.125, 0.13):
        waited = min(time_s - 0.03, timeout_s)
        expected = (1.0 - alone) + (1.0 - math.exp(-rate * waited)) + alone * (time_s >= timeout_s + 0.02)
        assert latency.cdf(np.array([time_s]))[0] == pytest.approx(expected / mean, abs=1e-9)
    # F jumps from 0.747 to 0.972 at 0.12 s: all percentiles between are that atom.
    assert latency.percentile(90) == pytest.approx(0.12, rel=1e-15)
    # P99: 0.632 + 0.368 + 1 − e^(−10w) = 0.99·1.632.
    assert latency.percentile(99) == pytest.approx(0.03 - math.log(2.0 - 0.99 * mean) / rate, rel=1e-9)
    assert latency.percentile(30) == 0.03


def test_members_of_timed_out_poisson_batches_wait_uniformly() -> None:
    # Far from full, N − 1 arrivals lie uniformly in (0, T): E[members who wait ≤ w] = λw, and one more waits T.
    latency = exact(Map.poisson(20.0), 60, 0.5, 0.0)
    for wait_s in (0.1, 0.25, 0.4):
        assert latency.cdf(np.array([wait_s]))[0] == pytest.approx(20.0 * wait_s / 11.0, abs=1e-9)
    assert latency.percentile(99) == 0.5


def test_full_poisson_batches_wait_for_erlang_times() -> None:
    # Without a timeout the one with i after it waits Erlang(i): the mean over i = 0 … 3.
    latency = exact(Map.poisson(5.0), 4, math.inf, 1.0)

    def erlang(stages: int, rate_time: float) -> float:
        return 1.0 - math.exp(-rate_time) * sum(rate_time**number / math.factorial(number) for number in range(stages))

    for wait_s in (0.0, 0.1, 0.5, 2.0):
        expected = sum(erlang(stages, 5.0 * wait_s) if stages else 1.0 for stages in range(4)) / 4.0
        assert latency.cdf(np.array([1.0 + wait_s]))[0] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("process", [Map.poisson(50.0), BURSTS, ALTERNATING])
def test_a_batch_of_one_is_served_at_once(process: Map) -> None:
    latency = exact(process, 1, 0.5, 0.02)
    assert [latency.percentile(percent) for percent in (0.1, 50, 99.99, 100)] == [0.02] * 4


@pytest.mark.parametrize("process", [Map.poisson(50.0), BURSTS, ALTERNATING])
def test_without_a_timeout_to_wait_each_request_goes_alone(process: Map) -> None:
    latency = exact(process, 8, 0.0, *(0.02 + 0.01 * size for size in range(8)))
    assert [latency.percentile(percent) for percent in (0.1, 50, 99.99, 100)] == [0.02] * 4


def test_a_timeout_that_never_ends_is_a_very_long_one() -> None:
    for process in (BURSTS, ALTERNATING, Map.poisson(0.01), Map.poisson(1e5)):
        forever, long = (exact(process, 5, timeout_s, 0.01).percentile(95) for timeout_s in (math.inf, 1e5))
        assert forever == pytest.approx(long, rel=1e-7)
        assert exact(process, 5, math.inf, 0.01).buffer.sizes[-1] == pytest.approx(1.0)


def test_the_phase_at_the_first_request_is_that_of_the_chain_over_batches() -> None:
    # Gaps of 100 ms and 5 ms alternate. In a buffer of two with T = 20 ms a short gap fills a batch (with e^-4 against it)
    # and the next begins after a long gap, before a short one again: nearly all batches begin before a short gap, though half
    # of all arrivals do.
    buffer = Buffer(ALTERNATING, BufferPlan(2, 0.02))
    assert ALTERNATING.embedded == pytest.approx([0.5, 0.5])
    # One begins before a long gap after a batch that timed out: from before a short gap with e^-4, and 1 − e^-0.2 of those fill.
    into_long, out_of_long = math.exp(-4.0), math.exp(-0.2)
    assert buffer.phases == pytest.approx(np.array([into_long, out_of_long]) / (into_long + out_of_long), rel=1e-9)


def test_batches_that_begin_in_the_same_phase_for_ever_begin_there_as_often_as_arrivals_do() -> None:
    assert Buffer(ALTERNATING, BufferPlan(2, math.inf)).phases == pytest.approx([0.5, 0.5])


def test_measured_service_times_are_mixed() -> None:
    measured = ExactLatency(Map.poisson(50.0), BufferPlan(3, 0.05), ServiceTimes(((0.01,), (0.02, 0.03), (0.03,))))
    parts = [exact(Map.poisson(50.0), 3, 0.05, 0.01, middle, 0.03) for middle in (0.02, 0.03)]
    times = np.linspace(0.0, 0.1, 23)
    assert measured.cdf(times) == pytest.approx(sum(part.cdf(times) for part in parts) / 2.0, abs=1e-9)


def test_service_times_with_shares_are_mixed_by_them() -> None:
    """A share of 3/4 is that of a time that is there three times."""
    shared, repeated = (
        ExactLatency(Map.poisson(50.0), BufferPlan(2, 0.05), service, ((0.0, 0.9), (0.1, 0.1)))
        for service in (
            ServiceTimes(((0.01, 0.03), (0.02, 0.06)), (0.75, 0.25)),
            ServiceTimes(((0.01, 0.01, 0.01, 0.03), (0.02, 0.02, 0.02, 0.06))),
        )
    )
    times = np.linspace(0.0, 0.3, 37)
    assert shared.cdf(times) == pytest.approx(repeated.cdf(times), abs=1e-9)
    for seconds, shares in (((0.01, 0.03), (0.75, 0.5)), ((0.01, 0.03), (1.5, -0.5)), ((0.01,), (0.75, 0.25))):
        with pytest.raises(GnomonError, match="share"):
            ServiceTimes((seconds,), shares)


def test_batch_that_waits_for_an_instance_takes_its_mean_service_time_afterwards() -> None:
    waits = ((0.0, 0.8), (0.05, 0.15), (0.2, 0.05))
    latency = ExactLatency(Map.poisson(50.0), BufferPlan(1, 0.0), ServiceTimes(((0.01, 0.03),)), waits)
    found = [latency.percentile(percent) for percent in (40, 80, 95, 100)]
    assert found == pytest.approx([0.01, 0.03, 0.05 + 0.02, 0.2 + 0.02])


@pytest.mark.parametrize(
    ("process", "batch", "timeout_s"),
    [(BURSTS, 6, 0.05), (ALTERNATING, 3, 0.1), (Map.mmpp2((100, 200), (30, 70)), 16, 0.2)],
    ids=["bursts", "alternating", "quick-phases"],
)
def test_buffer_latency_agrees_with_a_long_run(process: Map, batch: int, timeout_s: float) -> None:
    service_s = [0.01 + 0.003 * size for size in range(1, batch + 1)]
    latency = exact(process, batch, timeout_s, *service_s)
    seen = np.sort(simulated(process, batch, timeout_s, service_s, events=150_000))
    times = np.linspace(0.0, timeout_s + service_s[-1], 60) + 1e-4  # beside the atoms, whose floats differ by their last digit
    assert latency.cdf(times) == pytest.approx(np.searchsorted(seen, times, side="right") / len(seen), abs=0.012)


def simulated(process: Map, batch: int, timeout_s: float, service_s: list[float], events: int) -> np.ndarray:
    """Latencies of a run of the buffer, one batch after the other."""
    random = np.random.default_rng(7)
    rates = -process.D0.diagonal()
    moves = np.concatenate([process.D0 - np.diag(process.D0.diagonal()), process.D1], axis=1) / rates[:, None]
    choices = np.cumsum(moves, axis=1)
    now_s, phase, arrivals = 0.0, 0, []
    for gap, rng in zip(random.exponential(size=events), random.random(events), strict=True):
        now_s += gap / rates[phase]
        move = int(np.searchsorted(choices[phase][:-1], rng))
        if move >= process.order:
            arrivals.append(now_s)
        phase = move % process.order
    latencies, first = [], 0
    while first < len(arrivals) - batch:
        closes_s = min(arrivals[first] + timeout_s, arrivals[first + batch - 1])
        size = sum(arrival <= closes_s for arrival in arrivals[first : first + batch])
        latencies += [closes_s - arrival + service_s[size - 1] for arrival in arrivals[first : first + size]]
        first += size
    return np.array(latencies)


def test_invalid_parameters_are_refused() -> None:
    for batch, timeout_s in ((0, 1.0), (2, -1.0), (2, math.nan)):
        with pytest.raises(GnomonError, match=r"A batch has|A timeout is"):
            BufferPlan(batch, timeout_s)
    with pytest.raises(GnomonError, match="Give 4 times"):
        exact(BURSTS, 4, 0.1, 0.1, 0.2)
    for seconds in (-1.0, math.nan, math.inf):
        with pytest.raises(GnomonError, match="service time"):
            exact(BURSTS, 2, 0.1, seconds)
    for percent in (0.0, 101.0, math.nan):
        with pytest.raises(GnomonError, match="Percentiles"):
            exact(BURSTS, 2, 0.1, 0.1).percentile(percent)


def test_the_papers_equations_with_a_worked_number() -> None:
    # λ = 50/s, B = 4, T = 100 ms: π = e^-5·(1, 5, 12.5), 0.875; ρ_k ∝ k·π; τ = 3/50 s. P95 lies in the window of 4, from 35
    # to 95 ms.
    plan = BufferPlan(4, 0.1)
    ends = np.exp(-5.0) * np.array([1.0, 5.0, 12.5])
    members = np.array([*ends, 1.0 - ends.sum()]) * [1, 2, 3, 4]
    shares = members / members.sum()
    assert member_shares(Map.poisson(50.0), plan, np.ones(1)) == pytest.approx(shares)
    at_s = np.array([0.08])
    uniform = np.array([0.0, (0.08 - 0.025) / 0.1, (0.08 - 0.03) / 0.1, (0.08 - 0.035) / 0.06])
    service = ServiceTimes.fixed([0.02, 0.025, 0.03, 0.035])
    literal = PaperLatency(Map.poisson(50.0), plan, service, literal=True)
    assert literal.cdf(at_s)[0] == pytest.approx(shares @ uniform)
    # The first of two and of three waits the whole timeout, the last of four not at all.
    latency = PaperLatency(Map.poisson(50.0), plan, service)
    assert latency.cdf(at_s)[0] == pytest.approx(shares @ (uniform * [0.0, 1 / 2, 2 / 3, 3 / 4] + [0.0, 0.0, 0.0, 1 / 4]))
    assert [each.percentile(100) for each in (literal, latency)] == pytest.approx([0.13, 0.13])


@pytest.mark.parametrize("process", [Map.poisson(50.0), BURSTS, Map.mmpp2((45, 60), (0.003, 0.003))])
def test_the_papers_equations_are_nearer_with_the_first_and_the_last_request_apart(process: Map) -> None:
    gaps = []
    for batch, timeout_s in ((2, 0.02), (4, 0.1), (8, 0.05), (16, 0.2)):
        plan, service = BufferPlan(batch, timeout_s), ServiceTimes.fixed([0.01 + 0.034 * size for size in range(1, batch + 1)])
        times = np.linspace(0.0, timeout_s + float(service.means[-1]), 300)
        right = ExactLatency(process, plan, service).cdf(times)
        read, literal = (PaperLatency(process, plan, service, literal=literal).cdf(times) for literal in (False, True))
        gaps.append((np.abs(read - right).max(), np.abs(literal - right).max()))
    assert np.mean(gaps, axis=0)[0] < 0.7 * np.mean(gaps, axis=0)[1]


def test_the_papers_guess_of_the_first_phase() -> None:
    # W16: 10 and 200/s, each left 0.01 times per second; T = 50 ms, B = 8: α ∝ 1000/min(8, 1.5), 20000/min(8, 11).
    guess = first_phases(Map.mmpp2((10, 200), (0.01, 0.01)), BufferPlan(8, 0.05))
    assert guess == pytest.approx(np.array([1000 / 1.5, 20000 / 8]) / (1000 / 1.5 + 20000 / 8))


def test_the_papers_full_batch_is_never_older_than_the_timeout() -> None:
    latency = PaperLatency(Map.poisson(1.0), BufferPlan(3, 0.1), ServiceTimes.fixed([0.01], 3))
    assert latency.percentile(100) == pytest.approx(0.11)


@pytest.mark.parametrize("literal", [False, True])
def test_the_papers_equations_know_phases_in_which_nothing_arrives(*, literal: bool) -> None:
    """A batch that waits without end for the third request waits as long as two gaps take, by Eqs. 10 and 15."""
    silent = Map.mmpp2((0.0, 100.0), (20.0, 30.0))
    plan = BufferPlan(3, math.inf)
    assert first_phases(silent, plan) == pytest.approx([0.0, 1.0])
    latency = PaperLatency(silent, plan, ServiceTimes.fixed([0.01], 3), literal=literal)
    assert latency.percentile(100) == pytest.approx(0.01 + 2.0 / silent.rate_rps)


def test_phases_that_hardly_ever_change_have_batches_by_their_arrivals() -> None:
    """10 and 200/s, each half of the time, B = 32, T = 100 ms: 2 in the mean and 21; 4.8 % of all requests are in small ones."""
    plan = BufferPlan(32, 0.1)
    changing, lasting = (Buffer(Map.mmpp2((10, 200), (leave, leave)), plan) for leave in (1e-6, 1e-13))
    assert lasting.phases == pytest.approx(changing.phases, rel=1e-4)
    alone = [Buffer(Map.poisson(rate), plan).mean_size for rate in (10.0, 200.0)]
    members = lasting.phases * alone
    assert members / members.sum() == pytest.approx([10 / 210, 200 / 210], rel=1e-6)


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_no_batch_begins_in_a_phase_in_which_nothing_arrives(silent: int) -> None:
    """Wherever it stands among the phases: the chain over batches never comes back to it."""
    moves, arrivals = np.full((3, 3), 2.0), np.diag([60.0, 200.0, 20.0])
    arrivals[silent, silent] = 0.0
    np.fill_diagonal(moves, 0.0)
    process = Map(moves - np.diag((moves + arrivals).sum(axis=1)), arrivals)
    others = [phase for phase in range(3) if phase != silent]
    nearly = Map(process.D0 - np.diag(np.eye(3)[silent]) * 1e-9, process.D1 + np.diag(np.eye(3)[silent]) * 1e-9)
    for plan in (BufferPlan(2, 0.05), BufferPlan(8, 0.05), BufferPlan(8, math.inf)):
        phases = Buffer(process, plan).phases
        assert phases[silent] == 0.0
        assert phases[others].sum() == pytest.approx(1.0)
        assert phases == pytest.approx(Buffer(nearly, plan).phases, abs=1e-8)


ONE = hyperexponential(Shape(3.0, 4.0, 0.9))
TWO = hyperexponential(Shape(2.0, 4.5, 0.2))


def test_a_factor_has_the_shape_it_is_asked_for() -> None:
    assert ONE.rate_rps == pytest.approx(1.0)
    assert (ONE.scv, ONE.skewness) == (pytest.approx(3.0), pytest.approx(4.0))
    assert ONE.autocorrelation(3) == pytest.approx(0.9**3 * (1 - 1 / 3) / 2)


def test_a_product_multiplies_moments_and_joint_moments() -> None:
    product = kronecker(ONE, TWO)
    for power, (whole, first, second) in enumerate(zip(product.moments(3), ONE.moments(3), TWO.moments(3), strict=True), start=1):
        assert whole == pytest.approx(first * second / math.factorial(power))
    for lag in (1, 5):
        joint = [1 + process.scv * process.autocorrelation(lag) for process in (product, ONE, TWO)]
        assert joint[0] == pytest.approx(joint[1] * joint[2])


def gaps_of(process: Map) -> GapStatistics:
    lags = (1, 2, 3, 5, 10, 20, 50, 100)
    correlations = tuple(Estimate(process.autocorrelation(lag), 0.001) for lag in lags)
    return GapStatistics(Estimate(process.scv, 0.01), Estimate(process.skewness, 0.01), lags, correlations)


@pytest.mark.parametrize("factors", [2, 3])
def test_a_composition_has_the_moments_exactly_and_the_correlations_nearly(factors: int) -> None:
    target = kronecker(hyperexponential(Shape(3.0, 5.0, 0.99)), hyperexponential(Shape(3.0, 5.0, 0.5)))
    found = kpc(0.02, gaps_of(target), factors)
    assert found.order == 2**factors
    assert found.mean_s == pytest.approx(0.02)
    assert (found.scv, found.skewness) == (pytest.approx(target.scv, rel=1e-6), pytest.approx(target.skewness, rel=1e-6))
    for lag in (1, 5, 50):
        assert found.autocorrelation(lag) == pytest.approx(target.autocorrelation(lag), rel=0.06)


def test_gaps_as_even_as_poissons_have_no_composition() -> None:
    assert kpc(1.0, gaps_of(Map.poisson(1.0)), 2) is None


@pytest.mark.parametrize("scv", [1.0, 0.8, 0.5, 0.4, 1 / 3, 0.2, 1 / 8])
def test_steps_have_the_scv_they_are_asked_for(scv: float) -> None:
    process = erlang_mixture(0.25, scv)
    assert process.mean_s == pytest.approx(0.25)
    assert process.scv == pytest.approx(scv)
    assert process.order <= 8


def test_equal_gaps_get_eight_steps() -> None:
    process = erlang_mixture(1.0, 0.0)
    assert (process.order, process.scv) == (8, pytest.approx(1 / 8))


def test_all_measured_runs_are_kept_relative_to_the_median_of_their_cell() -> None:
    assert ratios_of_runs([[0.1, 0.12, 0.09], [2.0, 2.0, 3.0]]) == pytest.approx((1.0, 1.2, 0.9, 1.0, 1.0, 1.5))


def test_of_more_runs_than_are_kept_the_mean_and_the_quantiles_are() -> None:
    cells = [
        median_s * np.exp(0.08 * np.random.default_rng(cell).standard_normal(500)) for cell, median_s in enumerate((0.1, 2.0))
    ]
    ratios = ratios_of_runs(cells)
    assert len(ratios) == MAX_RATIOS
    together = np.concatenate([cell / np.median(cell) for cell in cells])
    assert np.mean(ratios) == pytest.approx(together.mean())
    for q in (0.05, 0.5, 0.95, 0.99):
        assert np.quantile(ratios, q) == pytest.approx(np.quantile(together, q), rel=5e-3)


def test_the_few_are_the_percentiles_that_are_asked_for() -> None:
    """Served at once, a request's percentiles are those of the runs; the worked number of the module."""
    runs = np.exp(0.1 * np.random.default_rng(1).standard_normal(300_000))
    ratios, shares = representative_ratios(ratios_of_runs([runs]))
    assert len(ratios) == len(shares) == len(SHARE_EDGES) - 1 == 9
    assert np.dot(ratios, shares) == pytest.approx((runs / np.median(runs)).mean())
    upto = np.cumsum(shares)
    for percent, worked in ((50.0, 1.0), (90.0, 1.14), (95.0, 1.18), (99.0, 1.26)):
        found = ratios[int(np.searchsorted(upto, percent / 100.0))]
        assert found == pytest.approx(np.quantile(runs, percent / 100.0), rel=5e-3)
        assert round(found, 2) == worked


@pytest.mark.parametrize("cells", [[], [[0.1]], [[0.1], [0.2]], [[0.1, 0.1, 0.10001]]])
def test_runs_that_say_nothing_of_a_spread_make_one_service_time(cells: list[list[float]]) -> None:
    ratios, shares = representative_ratios(ratios_of_runs(cells))
    assert ratios == pytest.approx((1.0,), abs=1e-4)
    assert shares == (1.0,)


def test_a_range_and_a_deviation_stand_for_the_same_law() -> None:
    times = np.exp(0.05 * np.random.default_rng(1).standard_normal(200_000))
    quarter, three = np.quantile(times, (0.25, 0.75))
    runs = representative_ratios(ratios_of_runs([times]))
    for ratios in (ratios_of_quartile_range(float(three - quarter)), ratios_of_deviation(float(np.abs(times - 1.0).mean()))):
        assert representative_ratios(ratios)[0] == pytest.approx(runs[0], rel=2e-3)
    assert ratios_of_quartile_range(0.0) == ratios_of_deviation(0.0) == DETERMINISTIC


@pytest.mark.parametrize("run", [0.0, -1.0, math.nan, math.inf])
def test_a_run_that_is_no_time_is_refused(run: float) -> None:
    with refused(code="bad_measurements"):
        ratios_of_runs([[0.1, run]])


def test_few_ratios_stay_as_they_are_and_many_are_condensed_with_their_mean() -> None:
    assert representative_ratios((1.5, 1.0)) == ((1.5, 1.0), (0.5, 0.5))
    many = tuple(0.9 + number / 500.0 for number in range(100))
    assert reduced_ratios(many[::-1]) == many[::-1]
    ratios, shares = representative_ratios(many[::-1])
    assert ratios == tuple(sorted(ratios))
    assert np.dot(ratios, shares) == pytest.approx(np.mean(many))
    # The largest fortieth: two whole ones, and half of the one below them.
    assert ratios[-1] == pytest.approx((many[-1] + many[-2] + many[-3] / 2.0) / 2.5)


@pytest.mark.parametrize("ratios", [[], [0.0], [1.0, -1.0], [math.nan], [math.inf] * 20])
def test_ratios_that_are_none_are_refused(ratios: list[float]) -> None:
    with refused(code="bad_measurements"):
        reduced_ratios(ratios)


MEMORIES = [512 + 64 * number for number in range(46)]
BATCHES = list(range(1, 21))


def amdahl(memory: float, batch: int) -> float:
    """A serial part, a part per sample on the memory's share of a core."""
    return 0.004 + (0.010 + 0.022 * batch) * 1769 / memory


def measured(seconds: float, memory: float, batch: int) -> Measurement:
    return Measurement(memory, batch, seconds)


def test_fewer_than_three_percent_of_the_cells_are_measured_corners_included() -> None:
    cells = cells_to_measure(MEMORIES, BATCHES)
    assert len(set(cells)) == len(cells) <= 27
    assert {(512, 1), (512, 20), (3392, 1), (3392, 20)} <= set(cells)


def test_all_other_cells_are_predicted_within_two_percent() -> None:
    rng = random.Random(5)
    noisy = [
        measured(amdahl(memory, batch) * rng.gauss(1.0, 0.01), memory, batch)
        for memory, batch in cells_to_measure(MEMORIES, BATCHES)
    ]
    model = fit_service_times(noisy)
    errors = [abs(model.seconds(memory, batch) / amdahl(memory, batch) - 1.0) for memory in MEMORIES for batch in BATCHES]
    assert sum(errors) / len(errors) < 0.01
    assert max(errors) < 0.04
    assert model.error < 0.02 <= model.worst * 2.0


def test_a_surface_without_noise_is_found_exactly() -> None:
    model = fit_service_times(
        [measured(amdahl(memory, batch), memory, batch) for memory, batch in cells_to_measure(MEMORIES, BATCHES)]
    )
    assert model.error < 1e-9
    assert model.row(1000.0, 3) == pytest.approx([amdahl(1000.0, batch) for batch in (1, 2, 3)])


def test_extrapolation_is_refused_unless_requested() -> None:
    model = fit_service_times(
        [measured(amdahl(memory, batch), memory, batch) for memory, batch in cells_to_measure(MEMORIES, BATCHES)]
    )
    for memory, batch in ((256, 4), (4000, 4), (1024, 21)):
        with pytest.raises(GnomonError, match="beyond what was measured"):
            model.seconds(memory, batch)
        assert model.seconds(memory, batch, extrapolate=True) == pytest.approx(amdahl(memory, batch), rel=1e-6)


def test_too_little_is_refused() -> None:
    with pytest.raises(GnomonError, match="too few"):
        cells_to_measure([1, 2, 3], [1, 2])
    for seconds in (0.0, math.nan, math.inf):
        with pytest.raises(GnomonError, match="positive times"):
            fit_service_times([measured(seconds, 512, batch) for batch in (1, 2, 3, 4, 5)])
    with pytest.raises(GnomonError, match="fewer than 4"):
        fit_service_times([measured(1.0, 512, 1)])


WHOLE = 1769.0
LAMBDAS = list(range(128, 3009, 64))


def on_threads(memory: float, batch: int) -> float:
    """One thread up to a core, two beyond: 5 ms that nobody shares and 20 ms for each sample, all under the memory's quota."""
    threads = math.ceil(memory / WHOLE)
    return (threads * 0.005 + 0.020 * batch) * WHOLE / memory


def test_times_that_jump_where_a_thread_is_added_are_told_within_two_percent() -> None:
    rng = random.Random(11)
    cells = cells_to_measure(LAMBDAS, BATCHES, core_size=WHOLE)
    assert len(set(cells)) == len(cells) <= 27
    # Both sides of the jump have their edges measured: 1,728 MB is the last size with one thread.
    assert {128, 1728, 1792, 3008} <= {memory for memory, _ in cells}
    points = [measured(on_threads(memory, batch) * rng.gauss(1.0, 0.005), memory, batch) for memory, batch in cells]
    aware, smooth = fit_service_times(points, core_size=WHOLE), fit_service_times(points)

    def worst(model: ServiceModel) -> float:
        return max(abs(model.seconds(memory, batch) / on_threads(memory, batch) - 1.0) for memory in LAMBDAS for batch in BATCHES)

    assert worst(aware) < 0.02 < worst(smooth)


def test_without_noise_the_simplest_polynomial_is_found_exactly() -> None:
    cells = cells_to_measure(LAMBDAS, BATCHES, core_size=WHOLE)
    model = fit_service_times([measured(on_threads(memory, batch), memory, batch) for memory, batch in cells], core_size=WHOLE)
    assert model.error < 1e-9
    assert model.seconds(1856, 7) == pytest.approx(on_threads(1856, 7))


def test_single_thread_count_equals_none() -> None:
    sizes = LAMBDAS[:20]
    assert cells_to_measure(sizes, BATCHES, core_size=WHOLE) == cells_to_measure(sizes, BATCHES)
    points = [measured(amdahl(memory, batch), memory, batch) for memory, batch in cells_to_measure(sizes, BATCHES)]
    assert fit_service_times(points, core_size=WHOLE).powers == fit_service_times(points).powers


def test_noise_never_leads_to_times_that_are_not_positive_between_the_measured_cells() -> None:
    for seed in range(5):
        rng = random.Random(seed)
        cells = cells_to_measure(LAMBDAS, BATCHES, core_size=WHOLE)
        points = [measured(on_threads(memory, batch) * rng.uniform(0.5, 1.5), memory, batch) for memory, batch in cells]
        model = fit_service_times(points, core_size=WHOLE)
        assert min(model.seconds(memory, batch) for memory in LAMBDAS for batch in BATCHES) > 0.0


ROW_MS = {
    128: (368.4, 1550.9, 3831.4, 7080.0, 8211.9),
    896: (40.3, 156.9, 405.0, 821.1, 991.6),
    1728: (20.7, 70.9, 187.4, 377.3, 463.1),
    1792: (26.0, 96.2, 259.7, 473.8, 573.1),
    3008: (14.4, 49.4, 124.1, 233.2, 274.6),
}
"""EfficientNet-Lite0 under quotas of Lambda's memory sizes, batches of 1, 4, 10, 17 and 20: medians of a noisy machine."""
BETWEEN_MS = {(320, 1): 123.0, (448, 2): 153.8, (448, 10): 950.4, (512, 20): 1911.3, (1280, 5): 123.3, (2432, 4): 67.5}


def test_interpolation_is_validated_by_leaving_out_a_size() -> None:
    """With the others of its size a cell is told by them: a polynomial of log x was 3 % off then, and 44 % between the sizes."""
    points = [
        measured(ms / 1000, memory, batch)
        for memory, row in ROW_MS.items()
        for batch, ms in zip((1, 4, 10, 17, 20), row, strict=True)
    ]
    model = fit_service_times(points, core_size=WHOLE)
    off = {cell: abs(model.seconds(*cell) * 1000 / ms - 1.0) for cell, ms in BETWEEN_MS.items()}
    assert max(off.values()) < 0.16, off
    assert sum(off.values()) / len(off) < 0.08, off


def test_many_sizes_have_few_batches_each_and_not_all_the_same() -> None:
    cells = cells_to_measure(LAMBDAS, BATCHES, core_size=WHOLE)
    batches = {memory: {batch for cell, batch in cells if cell == memory} for memory, _ in cells}
    assert len(batches) == 9
    assert all({1, 20} <= those and len(those) == 3 for those in batches.values())
    assert len(set().union(*batches.values())) == 5


def test_sizes_of_a_number_of_threads_each_are_left_out_too() -> None:
    """`gnomon lambda-profile` measures these unless told otherwise: 22 coefficients for 25 cells were up to 99 % off between."""
    sizes, rng = (1024, 1769, 3538, 5307, 8845), random.Random(1)
    points = [
        measured(on_threads(size, batch) * rng.gauss(1.0, 0.03), size, batch) for size in sizes for batch in (1, 2, 4, 8, 16)
    ]
    model = fit_service_times(points, core_size=WHOLE)
    between = [(size, batch) for size in range(1024, 8846, 64) for batch in range(1, 17)]
    assert max(abs(model.seconds(*cell) / on_threads(*cell) - 1.0) for cell in between) < 0.1


def test_numbers_of_cores_are_left_out_too() -> None:
    rng = random.Random(1)
    points = [
        measured(amdahl(WHOLE * cores, batch) * rng.gauss(1.0, 0.04), cores, batch)
        for cores in (1, 2, 4, 8)
        for batch in (1, 2, 4, 8, 16)
    ]
    model = fit_service_times(points, core_size=1.0)
    cells = [(cores, batch) for cores in range(1, 9) for batch in range(1, 17)]
    assert max(abs(model.seconds(*cell) / amdahl(WHOLE * cell[0], cell[1]) - 1.0) for cell in cells) < 0.1
