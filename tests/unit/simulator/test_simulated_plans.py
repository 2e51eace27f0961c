"""`batch` and `batch+` on simulated functions: their plans are carried out and meet the objective on recorded demand."""

from pathlib import Path

import pytest

from gnomon_autoscaler import BUILT_IN, PolicyPlugin
from gnomon_core.profiles import LatencyTable
from gnomon_core.scaling import CreateBody, Decision, Observation, PolicyState, SetBufferPlan
from gnomon_core.settings import ScaleSettings, Settings
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
