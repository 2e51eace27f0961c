"""`batch` chooses the cores of simulated instances: they are resized while they serve, and nothing is lost on the way."""

from pathlib import Path

from gnomon_autoscaler import BUILT_IN, PolicyPlugin
from gnomon_core.profiles import LatencyTable
from gnomon_core.scaling import CreateBody, Decision, Observation, PolicyState, Resize
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.profiles import Noise, Profile, read_profile
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate

PROFILE = Path(__file__).parents[3] / "profiles" / "resnet50.json"
HALF_AN_HOUR_S = 1800.0


def half_an_hour(plan_cores: str) -> FunctionResult:
    """Four requests a second, evenly, for a function that begins with one core, and may have two."""
    settings = Settings(
        autoscaler="batch", slo_s=0.09, slo_percentile=95.0, max_batch=4, plan_cores=plan_cores,
        scale=ScaleSettings(min=1, max=8),
    )  # fmt: skip
    arrivals = [number / 4.0 for number in range(round(4 * HALF_AN_HOUR_S))]
    plan = FunctionPlan("f", settings, read_profile(PROFILE), arrivals, warm=1)
    return simulate([plan], [NodePlan("node-1", 16)])["f"]


def test_an_objective_that_only_two_cores_meet_is_met_from_the_first_plan_on() -> None:
    chosen, fixed = half_an_hour("any"), half_an_hour("fixed")
    resizes = [action for decision in chosen.decisions for action in decision.actions if isinstance(action, Resize)]
    assert {action.cores for action in resizes} == {2}
    assert "2 cores" in chosen.decisions[-1].reason
    assert "1 core: P95" in chosen.decisions[-1].reason
    assert len(chosen.requests) == len(fixed.requests) == 4 * HALF_AN_HOUR_S
    assert chosen.violations < 0.05 * len(chosen.requests) < fixed.violations


def test_instances_of_a_fixed_size_keep_it() -> None:
    result = half_an_hour("fixed")
    assert not any(isinstance(action, Resize) for decision in result.decisions for action in decision.actions)
    assert "No plan has its P95 within 90 ms" in result.decisions[-1].reason


def test_policies_see_how_far_batches_are_from_what_was_predicted_of_the_sizes_that_there_are() -> None:
    seen_spreads: list[float] = []

    class TwoCores:
        """An instance of two cores, for a function of one."""

        name, period_s, default_scheduler = "two", 1.0, "immediate"

        def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
            seen_spreads.append(seen.latency_spread)
            return Decision(() if seen.live else (CreateBody(2),), "two cores", 1), state

    settings = Settings(autoscaler="two", max_batch=1, slo_s=5.0)
    profile = Profile("v", LatencyTable({1: {1: 0.2}, 2: {1: 0.1}}), noise=Noise("lognormal", 0.3))
    policies = {**BUILT_IN, "two": PolicyPlugin(lambda _: TwoCores(), "Two cores.")}
    plan = FunctionPlan("f", settings, profile, [2.0 + 0.3 * number for number in range(200)], policies=policies)
    simulate([plan], [NodePlan("node-1", 16)])
    assert seen_spreads[0] == 0.0
    # The mean distance from the mean of a log-normal time whose standard deviation is 0.3 of it: 0.23.
    assert 0.1 < seen_spreads[-1] < 0.4
