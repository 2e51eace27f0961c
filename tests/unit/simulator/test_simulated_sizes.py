"""`batch` chooses the cores of simulated instances: they are resized while they serve, and nothing is lost on the way."""

from pathlib import Path

from gnomon_core.scaling import Resize
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.function_plan import FunctionPlan
from gnomon_simulator.profiles import read_profile
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_node import NodePlan
from gnomon_simulator.simulation import simulate

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
