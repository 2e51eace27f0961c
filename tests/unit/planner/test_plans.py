"""Buffer plans, their prices and their validation."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.simulation.markov import markov_arrivals
from benchmarks.vanilla_lambda import unbatched_plan
from gnomon_core.errors import GnomonError
from gnomon_planner.billing import EC2, FARGATE, LAMBDA, PerCall, Provisioned, ProvisionedPrice
from gnomon_planner.buffer import Buffer, BufferPlan
from gnomon_planner.instances import fleet_for
from gnomon_planner.latency import ExactLatency, ServiceTimes
from gnomon_planner.maps import Map
from gnomon_planner.numerics import BRACKET_WIDTH
from gnomon_planner.optimizer import Landscape
from gnomon_planner.plans import Choice, Plan, Size, Space
from gnomon_planner.service_time import ratios_of_runs
from gnomon_planner.sweep import Waits
from gnomon_planner.validation import MAX_ARRIVALS, Objective, Trial, Window, instance_waits, replay_buffer, validate_plan

BURSTS = Map.mmpp2((10.0, 120.0), (0.5, 0.5))
SIZES = tuple(
    Size(f"{memory} MB", memory, memory / 1769, tuple((0.02 + 0.012 * batch) * 3008 / memory for batch in range(1, most + 1)))
    for memory, most in ((1280, 4), (2048, 6), (3008, 6))
)
MANY = tuple(0.8 + number / 50.0 for number in range(40))
SPACE = Space(SIZES, (1, 2, 4, 6), (0.0, 0.02, 0.05, 0.2, math.inf))


@pytest.fixture(scope="module")
def landscape() -> Landscape:
    return Landscape(BURSTS, SPACE, PerCall(LAMBDA["x86"]), 95.0)


@pytest.mark.parametrize(
    "process",
    [
        BURSTS,
        Map.poisson(50.0),
        Map.poisson(1e5),
        Map.poisson(0.01),
        Map(np.array([[-10.1, 0], [0, -202]]), np.array([[0.1, 10], [200, 2]])),
    ],
    ids=["bursts", "poisson", "quick", "slow", "alternating"],
)
def test_the_sweep_finds_what_the_exact_latency_says(process: Map) -> None:
    waits = Waits(process, SPACE.batches, SPACE.timeouts_s)
    for batch in SPACE.batches:
        service_s = np.array([size.service_s[:batch] for size in SIZES if len(size.service_s) >= batch])
        for percent in (50.0, 95.0):
            found = waits[batch].percentiles(service_s, percent)
            for (row, service), (column, timeout_s) in itertools.product(enumerate(service_s), enumerate(SPACE.timeouts_s)):
                exact = ExactLatency(process, BufferPlan(batch, timeout_s), ServiceTimes.fixed(service)).percentile(percent)
                assert found[row, column] == pytest.approx(exact, rel=5e-4)


def test_the_sweep_mixes_service_times_as_the_exact_latency_does() -> None:
    rows = tuple(replace(size, ratios=ratios) for size, ratios in zip(SIZES, (MANY, (0.9, 1.2), (0.95, 1.0, 1.5)), strict=True))
    varying = Landscape(BURSTS, replace(SPACE, sizes=rows), PerCall(LAMBDA["x86"]), 95.0)
    for place in itertools.product(range(3), range(4), range(5)):
        if math.isfinite(varying.latency_s[place]):
            plan = varying.estimate(place)
            assert plan.latency_s == pytest.approx(varying.exactly(plan).latency_s, rel=5e-4)


def test_where_service_varies_a_plan_holds_its_percentile_with_it() -> None:
    """Batches that take up to twice their median: who counts with the median alone misses the SLO."""
    process, slo_s, price = Map.poisson(60.0), 0.15, PerCall(LAMBDA["x86"])
    rng = np.random.default_rng(5)
    drawn = np.exp(0.25 * rng.standard_normal(4000))
    usual = Size("1769 MB", 1769, 1.0, tuple(0.02 + 0.012 * batch for batch in range(1, 9)))
    varying = replace(usual, ratios=ratios_of_runs([drawn]))
    space = Space((usual,), tuple(range(1, 9)), tuple(step / 100.0 for step in range(1, 14)))
    times = markov_arrivals(process, 200_000, rng)
    found = {}
    for size in (usual, varying):
        choice = Landscape(process, replace(space, sizes=(size,)), price, 95.0).cheapest(slo_s)
        assert not choice.failed
        buffer = choice.plan.buffer
        run = replay_buffer(times, buffer.batch, buffer.timeout_s)
        drawn_of_batch = np.repeat(rng.choice(drawn, len(run.first)), run.sizes[run.first])
        service_s = np.array(usual.service_s)[run.sizes - 1] * drawn_of_batch
        found[size] = float(np.quantile(run.wait_s + service_s, 0.95)), choice.plan.latency_s
    assert found[usual][0] > 1.02 * slo_s
    assert found[varying][0] == pytest.approx(found[varying][1], rel=0.02)
    assert found[varying][0] < 1.01 * slo_s


@pytest.mark.parametrize(("batch", "deviation", "slow"), [(1, 0.1, 0.0), (4, 0.02, 0.03)])
def test_every_percentile_is_that_of_runs_that_vary(batch: int, deviation: float, slow: float) -> None:
    """By a tenth, or three in a hundred 1.6 times as slow: with nine means of ninths P99 was 6 and 5 % short."""
    process, plan, rng = Map.poisson(60.0), BufferPlan(batch, 0.01), np.random.default_rng(6)
    drawn = np.exp(deviation * rng.standard_normal(20_000)) * np.where(rng.random(20_000) < slow, 1.6, 1.0)
    size = Size("1769 MB", 1769, 1.0, (0.032, 0.044, 0.056, 0.068), ratios_of_runs([drawn]))
    run = replay_buffer(markov_arrivals(process, 400_000, rng), plan.batch, plan.timeout_s)
    ratios = np.repeat(rng.choice(drawn / np.median(drawn), len(run.first)), run.sizes[run.first])
    seconds = run.wait_s + np.array(size.service_s)[run.sizes - 1] * ratios
    latency = Plan(size, plan, math.nan, math.nan).latency(process)
    for percent in (50.0, 90.0, 95.0, 99.0):
        assert latency.percentile(percent) == pytest.approx(np.quantile(seconds, percent / 100.0), rel=0.01)


def test_the_slowest_runs_are_paid_for_too() -> None:
    """95 ms fit into a step of 100 ms, and five of 100 runs take 102.6 ms: 1.05 steps. Nine means of ninths said 1."""
    size = Size("2816 MB", 2816.0, 2816 / 1769, (0.095,), ratios_of_runs([[0.095] * 95 + [0.1026] * 5]))
    cost = Landscape(Map.poisson(10.0), Space((size,), (1,), (0.0,)), PerCall(LAMBDA["paper"]), 95.0).usd_per_request
    assert cost.item() == pytest.approx(2816 / 1024 * 0.105 * 1.66667e-5 + 2e-7)
    assert unbatched_plan(size, LAMBDA["paper"], 95.0).usd_per_request == pytest.approx(cost.item())


def test_the_quickest_plan_within_a_budget_keeps_it() -> None:
    """A median of 95 ms promises $4.78 per million, and 5 % of the requests are late for that step: they cost $5.01."""
    price, budget_usd = LAMBDA["paper"], 4.9e-6
    runs = np.array([1.0] * 95 + [1.08] * 5)
    sizes = tuple(
        Size(f"{memory_mb} MB", memory_mb, memory_mb / 1769, (seconds,), ratios_of_runs([seconds * runs]))
        for memory_mb, seconds in ((1280, 0.18), (2816, 0.095))
    )
    plan = Landscape(Map.poisson(10.0), Space(sizes, (1,), (0.0,)), PerCall(price), 95.0).quickest(budget_usd).plan
    paid_usd = [
        price.per_call(size.memory_mb, size.service_s[0] * np.random.default_rng(7).choice(runs, 100_000)).mean()
        for size in sizes
    ]
    assert plan.size == sizes[0]
    assert paid_usd[0] < budget_usd < paid_usd[1]
    assert plan.usd_per_request == pytest.approx(paid_usd[0])


def test_varying_service_times_cost_their_mean() -> None:
    size = Size("1 core", 1024.0, 1.0, (0.1, 0.2), (0.5, 2.0))
    waits = Waits(Map.poisson(10.0), (1,), (0.1,))[1]
    cost, _ = PerCall(LAMBDA["x86"]).costs(Map.poisson(10.0), [size], np.array([[0.1]]), waits)
    assert cost[0, 0] == pytest.approx(LAMBDA["x86"].per_call(1024, np.array([0.05, 0.2])).mean())
    plan = Landscape(Map.poisson(20.0), Space((size,), (1,), (0.0,)), Provisioned(FARGATE), 60.0).cheapest(1.0).plan
    # 125 ms in the mean: Poisson(2.5) is at most 8 with 99.89 %, at most 9 with 99.97 %. Half of the batches take 50 ms.
    assert plan.instances == 9
    assert plan.latency_s == pytest.approx(0.2)


def test_all_requests_are_within_the_longest_that_one_can_take() -> None:
    """P100: what rounding leaves of F makes it neither shorter nor a latency that is never reached."""
    space = replace(SPACE, timeouts_s=(0.02, 0.05, 0.2))
    last = Landscape(BURSTS, space, PerCall(LAMBDA["x86"]), 100.0)
    for place in itertools.product(range(3), range(4), range(3)):
        plan = last.estimate(place)
        if math.isfinite(plan.latency_s):
            alone = plan.buffer.batch == 1
            longest_s = plan.size.service_s[plan.buffer.batch - 1] + (0.0 if alone else plan.buffer.timeout_s)
            assert 0.9 * longest_s <= plan.latency_s <= longest_s * (1.0 + BRACKET_WIDTH)
    slowest_s = SIZES[0].service_s[-1] + 0.2
    assert last.cheapest(slowest_s).plan.usd_per_request == last.usd_per_request.min()


@pytest.mark.parametrize(("memory_mb", "cores"), [(math.nan, 1.0), (-1.0, 1.0), (1769.0, math.inf), (1769.0, -1.0)])
def test_a_size_that_cannot_be_priced_is_refused_by_its_name(memory_mb: float, cores: float) -> None:
    with pytest.raises(GnomonError, match="The memory or cores of odd are invalid"):
        Space((SIZES[0], Size("odd", memory_mb, cores, (0.1,))), (1,), (0.0,))


@pytest.mark.parametrize("price", [math.nan, math.inf, -1.0])
def test_a_price_is_a_number_from_0(price: float) -> None:
    for core, memory in ((price, 0.0), (0.0, price)):
        with pytest.raises(GnomonError, match="price of cores or memory"):
            ProvisionedPrice("", core, memory, "")


def test_nothing_cheaper_meets_the_slo(landscape: Landscape) -> None:
    slo_s = 0.15
    choice = landscape.cheapest(slo_s)
    assert not choice.failed
    assert choice.plan.latency_s <= slo_s
    every = [
        landscape.exactly(landscape.estimate(place))
        for place in itertools.product(range(3), range(4), range(5))
        if math.isfinite(landscape.latency_s[place])
    ]
    assert len(every) == 55
    assert choice.plan.usd_per_request == min(plan.usd_per_request for plan in every if plan.latency_s <= slo_s)
    budget = choice.plan.usd_per_request * 1.2
    quickest = landscape.quickest(budget).plan
    assert quickest.latency_s == pytest.approx(min(plan.latency_s for plan in every if plan.usd_per_request <= budget), rel=5e-4)


@pytest.mark.parametrize(("slo_s", "timeout_s"), [(0.04, 0.0), (0.14, 0.1)], ids=["service alone", "timeout and service"])
def test_an_slo_that_is_met_exactly_is_met(slo_s: float, timeout_s: float) -> None:
    """Percentiles have atoms: a request that is served alone takes S, the first of a batch of one its T + S."""
    size = Size("1 core", 1769, 1.0, (0.04, 0.052, 0.064, 0.076))
    rare = Landscape(Map.poisson(0.001), Space((size,), (1, 4), (timeout_s,)), PerCall(LAMBDA["x86"]), 95.0)
    choice = rare.cheapest(slo_s)
    assert choice.failed == ""
    assert choice.plan.latency_s == pytest.approx(slo_s)


def test_plans_that_need_too_many_instances_lose_and_do_not_end_the_search() -> None:
    size = Size("1 core", 0, 1.0, (0.6, 0.7, 0.8, 0.9))
    landscape = Landscape(Map.poisson(20_000.0), Space((size,), (1, 2, 4), (0.0, 0.1)), Provisioned(FARGATE), 95.0)
    choice = landscape.cheapest(0.1)
    assert "No plan has its P95 within 100 ms" in choice.failed
    assert choice.plan.buffer.batch > 1
    assert all(plan.buffer.batch > 1 for _, plan in landscape.neighbours(choice.plan)), "one by one needs 12,000"


def test_where_every_plan_needs_too_many_instances_that_is_said() -> None:
    size = Size("1 core", 0, 1.0, (0.6,))
    landscape = Landscape(Map.poisson(1e6), Space((size,), (1,), (0.0,)), Provisioned(FARGATE), 95.0)
    with pytest.raises(GnomonError) as refused:
        landscape.cheapest(1.0)
    assert refused.value.code == "too_many_instances"
    # 600,000 are busy in the mean, and 3.09·√600,000 more in one of a thousand moments.
    assert "the nearest, 1 core, B = 1, T = 0 ms, takes about 602394" in refused.value.message


def test_a_plan_takes_no_more_instances_than_there_may_be() -> None:
    size = Size("1 core", 0, 1.0, (0.05, 0.07, 0.09, 0.11))
    space = Space((size,), (1, 2, 3, 4), tuple(step / 100.0 for step in range(1, 13)))

    def chosen(most: float, slo_s: float) -> Choice:
        return Landscape(Map.poisson(60.0), space, Provisioned(FARGATE), 95.0, most).cheapest(slo_s)

    assert chosen(math.inf, 0.1).plan.instances == 5
    four = chosen(4, 0.1)
    assert "No plan has its P95 within 100 ms with 4 instances at most; the least that can be had is 105.9 ms" in four.failed
    assert four.plan.instances == 4
    assert chosen(4, four.plan.latency_s).plan == four.plan
    three = chosen(3, 0.4)
    assert "No plan does with 3 instances at most; the fewest found are 4, and its P95 is with as many" in three.failed
    assert three.plan.instances == 4


def test_no_plan_of_the_front_is_beaten(landscape: Landscape) -> None:
    front = landscape.pareto_front()
    assert len(front) > 3
    for first, second in itertools.pairwise(front):
        assert first.latency_s <= second.latency_s
        assert first.usd_per_request > second.usd_per_request
    for latency_s, usd in zip(landscape.latency_s.ravel(), landscape.usd_per_request.ravel(), strict=True):
        assert not any(latency_s < plan.latency_s and usd < plan.usd_per_request for plan in front)


def test_infeasible_objective_names_the_nearest_plan(landscape: Landscape) -> None:
    choice = landscape.cheapest(0.01)
    assert "P95 within 10 ms" in choice.failed
    # The least: a batch of one on the largest instance, 20 + 12 ms.
    assert choice.plan.latency_s == pytest.approx(0.032)
    choice = landscape.quickest(1e-9)
    assert "$0.001 per million" in choice.failed
    assert choice.plan.usd_per_request == pytest.approx(landscape.usd_per_request.min())
    for slo_s in (0.0, -1.0, math.nan):
        with pytest.raises(GnomonError, match="SLO"):
            landscape.cheapest(slo_s)
    with pytest.raises(GnomonError, match="budget"):
        landscape.quickest(0.0)
    with pytest.raises(GnomonError, match="serve any of these batches"):
        Landscape(BURSTS, Space(SIZES, (7,), (0.1,)), PerCall(LAMBDA["x86"]), 95.0)


def test_lambda_bills_by_the_millisecond_and_once_did_by_a_hundred() -> None:
    # 105.2 ms at 1,769 MB.
    gb = 1769 / 1024
    for name, billed_s in (("x86", 0.106), ("paper", 0.2)):
        cost = LAMBDA[name].per_call(1769, np.array([0.1052, 0.3]))
        assert cost == pytest.approx([gb * billed_s * 1.66667e-5 + 2e-7, gb * 0.3 * 1.66667e-5 + 2e-7])


def test_a_request_pays_its_share_of_its_batch() -> None:
    # Poisson, λT = 1, B = 2: e^-1 of the batches have one, the others two.
    waits = Waits(Map.poisson(10.0), (2,), (0.1,))[2]
    cost, _ = PerCall(LAMBDA["x86"]).costs(Map.poisson(10.0), [SIZES[0]], np.array([[0.1, 0.2]]), waits)
    alone = math.exp(-1.0)
    first, second = LAMBDA["x86"].per_call(1280, np.array([0.1, 0.2]))
    assert cost[0, 0] == pytest.approx((alone * first + (1.0 - alone) * second) / (2.0 - alone))


def test_a_whole_machine_costs_its_hourly_price() -> None:
    machine = EC2["c5.4xlarge"]
    assert machine.provisioned().per_second(16, 1.0) * 3600 == pytest.approx(machine.usd_per_hour)


def test_the_fleet_of_single_requests_is_the_quantile_of_a_poisson_number() -> None:
    # 20/s for 0.3 s: Poisson(6) is at most 14 with 99.86 %, at most 15 with 99.95 %.
    fleet = fleet_for(Buffer(Map.poisson(20.0), BufferPlan(1, 0.1)), 0.3)
    assert fleet.instances == 15
    assert sum(share for _, share in fleet.waits) == pytest.approx(1.0)


@pytest.mark.parametrize(("process", "batch", "timeout_s"), [(Map.poisson(60.0), 4, 0.05), (BURSTS, 6, 0.1)])
def test_the_fleet_is_what_a_run_needs(process: Map, batch: int, timeout_s: float) -> None:
    service_s = 0.4
    fleet = fleet_for(Buffer(process, BufferPlan(batch, timeout_s)), service_s)
    times = markov_arrivals(process, 400_000, np.random.default_rng(3))
    run = replay_buffer(times, batch, timeout_s)
    sent = np.sort(times[run.first] + run.wait_s[run.first])
    moments = np.random.default_rng(4).uniform(sent[0] + service_s, sent[-1], 400_000)
    busy = np.searchsorted(sent, moments, side="right") - np.searchsorted(sent, moments - service_s, side="right")
    assert abs(fleet.instances - np.quantile(busy, 0.999)) <= 1
    # First come, first served, by so many instances.
    free, waited = np.zeros(fleet.instances), np.empty(len(sent))
    for number, moment in enumerate(sent):
        waited[number] = max(0.0, free[number % fleet.instances] - moment)
        free[number % fleet.instances] = moment + waited[number] + service_s
    assert sum(share for wait_s, share in fleet.waits if wait_s > 0.0) == pytest.approx((waited > 1e-9).mean(), abs=0.004)


def test_held_instances_wait_and_pay_for_their_number() -> None:
    sizes = tuple(
        Size(f"{cores} cores", 1024.0, cores, tuple((0.05 + 0.05 * batch) / cores for batch in range(1, 7))) for cores in (1, 2)
    )
    landscape = Landscape(BURSTS, Space(sizes, (1, 2, 4, 6), (0.01, 0.05, 0.1)), Provisioned(FARGATE), 95.0)
    choice = landscape.cheapest(0.5)
    plan = choice.plan
    assert not choice.failed
    assert plan.instances is not None
    assert plan.usd_per_request == pytest.approx(plan.instances * FARGATE.per_second(plan.size.cores, 1024.0) / BURSTS.rate_rps)
    assert plan.latency(BURSTS).percentile(95.0) == plan.latency_s <= 0.5
    every = [landscape.exactly(landscape.estimate(place)) for place in itertools.product(range(2), range(4), range(3))]
    assert plan.usd_per_request == min(plan.usd_per_request for plan in every if plan.latency_s <= 0.5)


SIZE = Size("1 core", 512, 1, tuple(0.04 + 0.005 * batch for batch in range(1, 17)))
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
TIMEOUTS_S = tuple(round(0.3 * (step / 12) ** 2, 4) for step in range(1, 13))
OBJECTIVE = Objective(0.3, 95.0, BATCHES, TIMEOUTS_S)


def bursty(seed: int) -> list[float]:
    """An hour with another rate every ten seconds, mostly low and now and then twenty times the mean: no MAP of two phases."""
    rng = np.random.default_rng(seed)
    rates = np.minimum(np.repeat(rng.pareto(1.2, 360) * 15.0 + 1.0, 10), 600.0)
    return rng.poisson(rates).astype(float).tolist()


@pytest.mark.parametrize("seed", range(4))
def test_plan_that_misses_on_its_own_window_is_replaced_by_one_that_holds(seed: int) -> None:
    window = Window(bursty(seed), 1.0)
    planned = Trial(BufferPlan(10, 0.0333), 3)
    assert window.replay(planned, SIZE, 0.3).late_share > 0.1
    found = validate_plan(window, planned, SIZE, OBJECTIVE)
    assert found.late_share <= 0.04, "a fifth of the 5 % that may be late is kept as a margin"
    assert found.instances is not None
    assert found.instances <= 6
    assert window.replay(found, SIZE, 0.3).late_share == found.late_share


def test_a_plan_that_holds_is_left_alone() -> None:
    counts = np.random.default_rng(1).poisson(50.0, 600).astype(float).tolist()
    planned = Trial(BufferPlan(5, 0.0521), 2)
    found = validate_plan(Window(counts, 1.0), planned, SIZE, OBJECTIVE)
    assert (found.buffer, found.instances) == (planned.buffer, planned.instances)
    assert found.late_share < 0.01


def test_no_more_instances_are_taken_than_there_may_be() -> None:
    found = validate_plan(
        Window(bursty(0), 1.0), Trial(BufferPlan(4, 0.0333), 1), SIZE, Objective(0.3, 95.0, BATCHES, TIMEOUTS_S, max_instances=2)
    )
    assert found.instances == 2
    assert found.late_share > 0.04, "the nearest that can be had"


def test_where_calls_are_paid_a_shorter_wait_is_found_without_instances() -> None:
    counts = np.random.default_rng(2).poisson(50.0, 600).astype(float).tolist()
    size = Size("1769 MB", 1769, 1, tuple(0.02 + 0.01 * batch for batch in range(1, 17)))
    timeouts_s = tuple(0.3 * step / 48 for step in range(1, 49))
    planned = Trial(BufferPlan(12, 0.2), None)
    window = Window(counts, 1.0)
    before = window.replay(planned, size, 0.3, LAMBDA["x86"])
    assert before.late_share > 0.05
    found = validate_plan(window, planned, size, Objective(0.3, 95.0, BATCHES, timeouts_s), LAMBDA["x86"])
    assert found.instances is None
    assert found.late_share <= 0.04
    assert found.usd_per_request < 1.2 * before.usd_per_request


def test_arrivals_stay_in_their_bins_and_are_the_same_each_time() -> None:
    counts = [3.0, 0.0, 250.0, 1.0, 7.0]
    times = Window(counts, 0.5).times_s
    assert np.histogram(times, bins=np.arange(6) * 0.5)[0].tolist() == counts
    assert np.array_equal(times, Window(counts, 0.5).times_s)
    within = times[(times >= 1.0) & (times < 1.5)] - 1.0
    gaps = np.diff(within)
    assert float(gaps.std() / gaps.mean()) == pytest.approx(1.0, abs=0.2), "as uneven as chance"


def test_fractions_of_arrivals_add_up() -> None:
    assert len(Window([0.4] * 100, 1.0).times_s) == 40


def test_of_a_long_window_an_even_share_is_replayed() -> None:
    counts = [100.0] * 1800 + [10.0] * 1800
    times = Window(counts, 1.0).times_s
    assert len(times) == pytest.approx(MAX_ARRIVALS, rel=0.05)


def test_queues_share_the_arrivals_and_the_instances() -> None:
    window = Window(bursty(1), 1.0, queues=2)
    first, second = window.queues
    assert len(first) == pytest.approx(len(second), rel=0.05)
    assert len(first) + len(second) == len(window.times_s)
    found = validate_plan(window, Trial(BufferPlan(8, 0.0333), 2), SIZE, Objective(0.3, 95.0, BATCHES, TIMEOUTS_S, queues=2))
    assert found.instances is not None
    assert found.instances % 2 == 0
    assert found.late_share <= 0.04


def test_a_single_queue_and_batches_of_one_are_a_queue_with_so_many_servers() -> None:
    window = Window([40.0] * 60, 1.0)
    late = window.replay(Trial(BufferPlan(1, 0.0), 2), SIZE, 0.1).late_share
    waits = instance_waits(window.times_s, np.full(len(window.times_s), SIZE.service_s[0]), ((-np.inf, 2),))
    assert late == pytest.approx(float(np.mean(waits + SIZE.service_s[0] > 0.1)))
