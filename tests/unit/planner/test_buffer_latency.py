"""The latency behind a buffer, against closed forms, limits and an event-by-event simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gnomon_core.errors import GnomonError
from gnomon_planner.buffer import Buffer, BufferPlan
from gnomon_planner.latency import ExactLatency, ServiceTimes
from gnomon_planner.maps import Map
from gnomon_planner.paper import PaperLatency, first_phases, member_shares

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


def test_a_batch_that_waits_for_an_instance_takes_its_mean_time_behind_that() -> None:
    waits = ((0.0, 0.8), (0.05, 0.15), (0.2, 0.05))
    latency = ExactLatency(Map.poisson(50.0), BufferPlan(1, 0.0), ServiceTimes(((0.01, 0.03),)), waits)
    found = [latency.percentile(percent) for percent in (40, 80, 95, 100)]
    assert found == pytest.approx([0.01, 0.03, 0.05 + 0.02, 0.2 + 0.02])


@pytest.mark.parametrize(
    ("process", "batch", "timeout_s"),
    [(BURSTS, 6, 0.05), (ALTERNATING, 3, 0.1), (Map.mmpp2((100, 200), (30, 70)), 16, 0.2)],
    ids=["bursts", "alternating", "quick-phases"],
)
def test_it_agrees_with_every_batch_of_a_long_run(process: Map, batch: int, timeout_s: float) -> None:
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
    for gap, chance in zip(random.exponential(size=events), random.random(events), strict=True):
        now_s += gap / rates[phase]
        move = int(np.searchsorted(choices[phase][:-1], chance))
        if move >= process.order:
            arrivals.append(now_s)
        phase = move % process.order
    latencies, first = [], 0
    while first < len(arrivals) - batch:
        closes_s = min(arrivals[first] + timeout_s, arrivals[first + batch - 1])
        size = sum(one <= closes_s for one in arrivals[first : first + batch])
        latencies += [closes_s - one + service_s[size - 1] for one in arrivals[first : first + size]]
        first += size
    return np.array(latencies)


def test_what_makes_no_sense_is_refused() -> None:
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
    """Whoever waits without end for the third request waits as long as two gaps take, by Eqs. 10 and 15."""
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
