"""Buffer plans in virtual time."""

from pathlib import Path

import numpy as np
import pytest

from gnomon_autoscaler import BUILT_IN, PolicyPlugin
from gnomon_core.errors import GnomonError
from gnomon_core.profiles import LatencyTable
from gnomon_core.scaling import CreateBody, Decision, Observation, PolicyState, SetBufferPlan
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_planner.validation import buffered
from gnomon_simulator.arrivals import from_trace
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
    found = buffered([0.0, 0.01, 0.5], batch=2, timeout_s=0.1)
    assert found.latency_s([0.02, 0.03]) == pytest.approx([0.04, 0.03, 0.12])
    assert found.sizes.tolist() == [2, 2, 1]
    assert found.first.tolist() == [0, 2]


def test_a_batch_of_one_waits_for_nothing() -> None:
    assert buffered([0.0, 0.1, 0.1], batch=1, timeout_s=5.0).wait_s.tolist() == [0.0, 0.0, 0.0]


def test_without_a_timeout_only_what_comes_together_goes_together() -> None:
    found = buffered([0.0, 0.0, 0.1], batch=8, timeout_s=0.0)
    assert found.sizes.tolist() == [2, 2, 1]
    assert found.wait_s.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("batch", "timeout_s"), [(1, 0.1), (2, 0.001), (5, 0.05), (8, 0.02), (32, 2.0)])
def test_buffer_agrees_with_a_plain_loop(batch: int, timeout_s: float) -> None:
    times = np.cumsum(np.random.default_rng(7).exponential(0.01, 3000)).tolist()
    found = buffered(times, batch, timeout_s)
    waits, sizes = by_hand(times, batch, timeout_s)
    assert found.wait_s == pytest.approx(waits)
    assert found.sizes.tolist() == sizes


def test_no_request_is_a_trace_too() -> None:
    assert len(buffered([], 4, 0.1).wait_s) == 0


@pytest.mark.parametrize(("times", "batch", "timeout_s"), [([1.0, 0.0], 2, 0.1), ([0.0], 0, 0.1), ([0.0], 2, -1.0)])
def test_invalid_buffer_is_refused(times: list[float], batch: int, timeout_s: float) -> None:
    with pytest.raises(GnomonError, match="cannot do that"):
        buffered(times, batch, timeout_s)
