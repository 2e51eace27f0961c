"""Buffer plans in virtual time: followed at once, changed between batches, and made for bursts."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gnomon_autoscaler import BUILT_IN, PolicyPlugin
from gnomon_core.errors import GnomonError
from gnomon_core.profiles import LatencyTable
from gnomon_core.scaling import CreateBody, Decision, Observation, PolicyState, SetBufferPlan
from gnomon_core.settings import ScaleSettings, Settings, read_settings
from gnomon_planner.validation import BufferChange, concurrency_quantile, instance_waits, replay_buffer, replay_changing_buffer
from gnomon_simulator.arrivals import from_trace, poisson
from gnomon_simulator.events import stream
from gnomon_simulator.profiles import Profile
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate
from gnomon_simulator.traces import read_trace

TRACE = Path(__file__).parents[3] / "benchmarks" / "traces" / "twitter_may25_1s.csv.gz"
HOUR_S = 3600.0
MODEL = Profile("v", LatencyTable({1: {size: 0.15 + 0.05 * size for size in range(1, 9)}}), load_s=2.0)


def two_hours(name: str, percent: float = 95.0) -> FunctionResult:
    """The eleventh and twelfth hour of Twitter, a fifth of its requests: 10.5 and 9.4 a second."""
    trace = read_trace(TRACE).slice(10 * HOUR_S, 2 * HOUR_S).scaled(0.2)
    settings = Settings(autoscaler=name, slo_s=1.0, slo_percentile=percent, max_batch=8, scale=ScaleSettings(min=1, max=12))
    plan = FunctionPlan("f", settings, MODEL, from_trace(trace, stream(1, "arrivals")))
    return simulate([plan], [NodePlan("node-1", 16)])["f"]


@pytest.mark.parametrize(("name", "scheduler"), [("batch", "fixed"), ("batch+", "adaptive-fill")])
def test_two_hours_of_twitter_meet_their_percentile_with_batches(name: str, scheduler: str) -> None:
    result = two_hours(name)
    assert result.scheduler == scheduler
    assert result.violations <= 0.05 * len(result.requests)
    plans = [action for decision in result.decisions for action in decision.actions if isinstance(action, SetBufferPlan)]
    assert all(plan.max_batch > 1 for plan in plans)
    # 10 requests/s served singly keep two instances busy, and their 99.9 % quantile is seven.
    summary = result.summary()
    assert summary["mean_batch"] > 1.5
    assert summary["mean_instances"] < 5.0
    assert "Poisson: " in result.decisions[-1].reason or "MMPP" in result.decisions[-1].reason


def test_a_larger_batch_holds_for_instances_that_are_there_already() -> None:
    class Steps:
        """B = 2 from the first second on, 4 from the second on."""

        name, period_s, default_scheduler = "steps", 1.0, "fixed"

        def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
            bounds = {1.0: (2, 0.5), 2.0: (4, 0.5)}.get(seen.now_s)
            made = () if seen.live else (CreateBody(1),)
            return Decision((SetBufferPlan(*bounds), *made) if bounds else made, "by the clock", 1), state

    settings = Settings(autoscaler="steps", max_batch=8, slo_s=5.0)
    times_s = [1.2, 1.21, 1.22, 1.23, 3.0, 3.01, 3.02, 3.03]
    policies = {**BUILT_IN, "steps": PolicyPlugin(lambda _: Steps(), "Steps.")}
    table = Profile("v", LatencyTable({1: {1: 0.1, 8: 0.1}}), load_s=1.1)
    plan = FunctionPlan("f", settings, table, times_s, "given", policies=policies)
    result = simulate([plan], [NodePlan("node-1", 8)])["f"]
    assert list(result.requests.batch) == [2, 2, 2, 2, 4, 4, 4, 4]
    assert result.requests.dispatched_s[4] == pytest.approx(3.03)


def by_hand(times: list[float], batch: int, timeout_s: float) -> tuple[list[float], list[int]]:
    waits, sizes, index = [], [], 0
    while index < len(times):
        members = [index]
        while len(members) < batch and members[-1] + 1 < len(times) and times[members[-1] + 1] <= times[index] + timeout_s:
            members.append(members[-1] + 1)
        sent_s = times[members[-1]] if len(members) == batch else times[index] + timeout_s
        waits += [sent_s - times[member] for member in members]
        sizes += [len(members)] * len(members)
        index = members[-1] + 1
    return waits, sizes


def test_a_full_batch_is_sent_by_its_last_request_and_another_by_its_timer() -> None:
    found = replay_buffer([0.0, 0.01, 0.5], batch=2, timeout_s=0.1)
    assert found.latency_s([0.02, 0.03]) == pytest.approx([0.04, 0.03, 0.12])
    assert found.sizes.tolist() == [2, 2, 1]
    assert found.first.tolist() == [0, 2]


def test_a_batch_of_one_waits_for_nothing() -> None:
    assert replay_buffer([0.0, 0.1, 0.1], batch=1, timeout_s=5.0).wait_s.tolist() == [0.0, 0.0, 0.0]


def test_without_a_timeout_only_what_comes_together_goes_together() -> None:
    found = replay_buffer([0.0, 0.0, 0.1], batch=8, timeout_s=0.0)
    assert found.sizes.tolist() == [2, 2, 1]
    assert found.wait_s.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("batch", "timeout_s"), [(1, 0.1), (2, 0.001), (5, 0.05), (8, 0.02), (32, 2.0)])
def test_buffer_agrees_with_a_plain_loop(batch: int, timeout_s: float) -> None:
    times = np.cumsum(np.random.default_rng(7).exponential(0.01, 3000)).tolist()
    found = replay_buffer(times, batch, timeout_s)
    waits, sizes = by_hand(times, batch, timeout_s)
    assert found.wait_s == pytest.approx(waits)
    assert found.sizes.tolist() == sizes


def test_no_request_is_a_trace_too() -> None:
    assert len(replay_buffer([], 4, 0.1).wait_s) == 0


@pytest.mark.parametrize(("times", "batch", "timeout_s"), [([1.0, 0.0], 2, 0.1), ([0.0], 0, 0.1), ([0.0], 2, -1.0)])
def test_invalid_buffer_is_refused(times: list[float], batch: int, timeout_s: float) -> None:
    with pytest.raises(GnomonError, match="timeout are invalid"):
        replay_buffer(times, batch, timeout_s)


SLO_S = 0.3
FIXED_COST = Profile("v", LatencyTable({1: {batch: 0.04 + 0.005 * batch for batch in (1, 2, 4, 8, 16)}}), load_s=0.3)
IDLE = [part for _ in range(5) for part in ((30.0, 20.0), (10.0, 0.0))]
"""Seconds and requests per second of each part."""
BURST = [(120.0, 20.0), (60.0, 160.0), (120.0, 20.0)]


def simulated(policy: str, parts: Sequence[tuple[float, float]]) -> FunctionResult:
    """Simulate these parts one after the other, as Poisson processes."""
    arrivals_s, begin_s = [], 0.0
    for number, (seconds, rate_rps) in enumerate(parts):
        if rate_rps:
            arrivals_s += [begin_s + at_s for at_s in poisson(rate_rps, seconds, stream(number, "arrivals"))]
        begin_s += seconds
    annotations = {"gnomon/autoscaler": policy, "gnomon/slo-ms": "300", "gnomon/max-batch": "16", "gnomon/deadline-ms": "10000"}
    # One request per instance is what kpa meets the objective with; by default it aims at a full batch.
    annotations |= {"gnomon/target-concurrency": "1"} if policy == "kpa" else {}
    settings = read_settings({"com.openfaas.scale.max": "40"}, annotations)
    plan = FunctionPlan("f", settings, FIXED_COST, arrivals_s, warm=1, knowledge="learned")
    return simulate([plan], [NodePlan("node-1", 64)])["f"]


def late(result: FunctionResult, since_s: float = 0.0, until_s: float = float("inf")) -> float:
    """The share of what arrived in this time that took longer than the objective, or was not answered."""
    rows = [row for row in result.requests.rows() if since_s <= row["arrived_s"] < until_s]
    return sum(row["status"] != 200 or row["finished_s"] - row["arrived_s"] > SLO_S for row in rows) / len(rows)


def acted_s(result: FunctionResult, since_s: float) -> float:
    """Seconds from then until a decision asked for more instances than there had been."""
    before = [record.desired or 0 for record in result.decisions if record.at <= since_s]
    return min(record.at for record in result.decisions if record.at > since_s and (record.desired or 0) > before[-1]) - since_s


@pytest.mark.parametrize("policy", ["batch", "batch+"])
@pytest.mark.parametrize(
    ("before", "rate_rps"),
    [([(200.0, 20.0)], 160.0), (IDLE, 160.0), (BURST, 160.0), (IDLE, 400.0)],
    ids=["calm", "idle seconds", "a burst", "idle seconds, 20 x"],
)
def test_more_instances_are_asked_for_within_two_seconds_of_a_burst(
    policy: str, before: list[tuple[float, float]], rate_rps: float
) -> None:
    since_s = sum(seconds for seconds, _ in before)
    result = simulated(policy, [*before, (30.0, rate_rps)])
    assert acted_s(result, since_s) <= 2.0
    assert late(result, since_s + 4.0) <= 0.02


@pytest.mark.parametrize("policy", ["batch", "batch+"])
def test_after_idle_seconds_a_moderate_rise_is_met_by_another_plan_within_seconds(policy: str) -> None:
    """4.5 times the rate needs no other instance at once, but another plan: it took 80 s where the window had idle seconds."""
    since_s = sum(seconds for seconds, _ in IDLE)
    result = simulated(policy, [*IDLE, (60.0, 90.0), (30.0, 20.0)])
    change_times_s = [
        record.at for record in result.decisions if any(isinstance(action, SetBufferPlan) for action in record.actions)
    ]
    assert min(at for at in change_times_s if at > since_s) <= since_s + 3.0
    assert late(result) <= 0.05


@pytest.mark.parametrize("policy", ["batch", "batch+"])
def test_bursts_are_met_at_half_of_what_kpa_holds(policy: str) -> None:
    parts = [*BURST, *BURST[1:]]
    ours, kpa = simulated(policy, parts), simulated("kpa", parts)
    assert late(ours) <= 0.05
    assert ours.core_s <= 0.5 * kpa.core_s


ALWAYS = -math.inf


def by_hand_as_bounds_change(times: list[float], bounds: list[BufferChange]) -> tuple[list[float], list[int]]:
    """The batches with their times and sizes, event by event: arrivals, changes, and the timer of the oldest request."""
    sent: list[float] = []
    sizes: list[int] = []
    waiting: list[float] = []
    now = bounds[0]

    def send(at_s: float) -> None:
        sent.extend([at_s] * len(waiting[: now.batch]))
        sizes.extend([len(waiting[: now.batch])] * len(waiting[: now.batch]))
        del waiting[: now.batch]

    events = sorted(
        [(time_s, 0, place) for place, time_s in enumerate(times)] + [(b.since_s, 1, n) for n, b in enumerate(bounds)]
    )
    for at_s, kind, place in [*events, (math.inf, 2, 0)]:
        while waiting and waiting[0] + now.timeout_s < at_s:
            send(waiting[0] + now.timeout_s)
        if kind == 0:
            waiting.append(times[place])
            if len(waiting) >= now.batch:
                send(at_s)
        elif kind == 1:
            now = bounds[place]
            while waiting and (len(waiting) >= now.batch or waiting[0] + now.timeout_s <= at_s):
                send(at_s)
    return sent, sizes


def test_a_batch_that_is_open_goes_by_the_new_bounds() -> None:
    times = [0.0, 0.1, 0.2]
    longer = replay_changing_buffer(times, [BufferChange(ALWAYS, 8, 0.5), BufferChange(0.3, 8, 1.0)])
    assert longer.wait_s == pytest.approx([1.0, 0.9, 0.8])
    shorter = replay_changing_buffer(times, [BufferChange(ALWAYS, 8, 0.5), BufferChange(0.3, 8, 0.2)])
    assert shorter.wait_s == pytest.approx([0.3, 0.2, 0.1]), "its time was up: it is sent at once"
    smaller = replay_changing_buffer(times, [BufferChange(ALWAYS, 8, 0.5), BufferChange(0.3, 2, 0.5)])
    assert smaller.wait_s == pytest.approx([0.3, 0.2, 0.5]), "two are full at once, the third waits for its own time"
    assert smaller.sizes.tolist() == [2, 2, 1]


@pytest.mark.parametrize("seed", range(8))
def test_buffer_with_changing_bounds_agrees_with_a_plain_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(0.01, 2000)).tolist()
    moments = np.sort(rng.uniform(0.0, times[-1], 60)).tolist()
    sizes, waits = rng.integers(1, 9, 61).tolist(), rng.uniform(0.0, 0.08, 61).tolist()
    bounds = [BufferChange(since, size, wait) for since, size, wait in zip([ALWAYS, *moments], sizes, waits, strict=True)]
    found = replay_changing_buffer(times, bounds)
    sent, expected = by_hand_as_bounds_change(times, bounds)
    assert found.wait_s + np.array(times) == pytest.approx(np.array(sent))
    assert found.sizes.tolist() == expected


def test_the_same_bounds_again_change_nothing() -> None:
    times = np.cumsum(np.random.default_rng(3).exponential(0.01, 3000))
    once = replay_buffer(times, 5, 0.05)
    again = replay_changing_buffer(times, [BufferChange(since, 5, 0.05) for since in (ALWAYS, 3.0, 3.0, 9.5)])
    assert np.array_equal(once.wait_s, again.wait_s)
    assert np.array_equal(once.first, again.first)


@pytest.mark.parametrize(
    "bounds", [[], [BufferChange(1.0, 2, 0.1), BufferChange(0.5, 2, 0.1)], [BufferChange(0.0, 2, 0.1), BufferChange(1.0, 0, 0.1)]]
)
def test_bounds_that_are_none_are_refused(bounds: list[BufferChange]) -> None:
    with pytest.raises(GnomonError, match="timeout are invalid"):
        replay_changing_buffer([0.0], bounds)


def test_how_many_batches_are_in_service_at_once() -> None:
    sent, takes = np.array([0.0, 0.1, 0.2]), np.full(3, 0.25)
    assert concurrency_quantile(sent, takes, (0.0, 1.0)) == 3, "three for 0.05 s"
    assert concurrency_quantile(sent, takes, (0.0, 1.0), share=0.95) == 2
    assert concurrency_quantile(sent, takes, (0.5, 1.0)) == 1, "at least one"


def test_a_batch_waits_for_the_first_instance_that_is_free() -> None:
    sent, takes = np.array([0.0, 0.1, 0.2]), np.full(3, 0.25)
    assert instance_waits(sent, takes, [(0.0, 3)]) == pytest.approx([0.0, 0.0, 0.0])
    assert instance_waits(sent, takes, [(0.0, 2)]) == pytest.approx([0.0, 0.0, 0.05])
    assert instance_waits(sent, takes, [(0.0, 1)]) == pytest.approx([0.0, 0.15, 0.3])
    assert instance_waits(sent, takes, [(0.0, 1), (0.12, 2)]) == pytest.approx([0.0, 0.02, 0.05]), "another came at 0.12"
    assert instance_waits(sent, takes, [(0.0, 2), (0.15, 1)]) == pytest.approx([0.0, 0.0, 0.15]), "one goes after its batch"


def test_with_one_instance_waits_are_lindleys() -> None:
    rng = np.random.default_rng(5)
    sent, takes = np.cumsum(rng.exponential(0.1, 500)), rng.uniform(0.0, 0.18, 500)
    waits = [0.0]
    for gap, before in zip(np.diff(sent), itertools.islice(takes, 499), strict=True):
        waits.append(max(0.0, waits[-1] + before - gap))
    assert instance_waits(sent, takes, [(0.0, 1)]) == pytest.approx(waits)
