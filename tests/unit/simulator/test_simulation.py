"""A simulated run and its results."""

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.profiles import LatencyTable
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.profiles import Profile, constant
from gnomon_simulator.results import FunctionResult, percentile, spread_ms, table
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate

NODES = [NodePlan("node-1", 8)]
BATCHING = Profile("v", LatencyTable({1: {1: 1.0, 2: 1.5, 4: 2.0}}))


def settings(minimum: int = 1, maximum: int = 20, *, autoscaler: str = "fixed", **fields: object) -> Settings:
    scale = ScaleSettings(min=minimum, max=maximum)
    return Settings(autoscaler=autoscaler, scale=scale, **{"scheduler": "immediate", **fields})  # type: ignore[arg-type]


def run(plan: FunctionPlan, nodes: list[NodePlan] = NODES) -> FunctionResult:
    return simulate([plan], nodes)[plan.name]


def test_requests_wait_for_the_instance_and_travel_together() -> None:
    result = run(FunctionPlan("f", settings(max_batch=4), BATCHING, [0.25, 0.5, 0.75], "given", warm=1))
    assert list(result.requests.dispatched_s) == [0.25, 1.25, 1.25]
    assert list(result.requests.finished_s) == [1.25, 2.75, 2.75]
    assert list(result.requests.batch) == [1, 2, 2]
    assert list(result.requests.status) == [200] * 3


def test_a_cold_instance_loads_first() -> None:
    result = run(FunctionPlan("f", settings(), constant("v", 0.1, load_s=2.0), [0.5]))
    assert list(result.requests.dispatched_s) == [2.0]
    assert result.decisions[0].actions


def test_from_zero_the_first_request_wakes_the_function_and_is_held() -> None:
    zero = Settings(autoscaler="fixed", scheduler="immediate", scale=ScaleSettings(min=0, zero_duration_s=1.0))
    result = run(FunctionPlan("f", zero, constant("v", 0.1, load_s=0.5), [10.2]))
    assert list(result.requests.status) == [200]
    # It had gone to zero; the request is not kept waiting for the autoscaler's next look.
    assert result.requests.dispatched_s[0] == pytest.approx(10.7)


def test_impossible_deadline_is_refused_at_once() -> None:
    result = run(FunctionPlan("f", settings(deadline_s=0.5, slo_s=0.5), constant("v", 1.0), [0.5, 0.6], "given", warm=1))
    assert list(result.requests.status) == [504, 504]
    assert list(result.requests.finished_s) == [0.5, 0.6]
    assert result.violations == 2
    assert result.summary()["answered"] == 0


def test_a_late_request_is_answered_at_its_deadline() -> None:
    # Nothing is known of latency, so both are let in; the second waits behind the first until its deadline.
    result = run(FunctionPlan("f", settings(deadline_s=1.5), constant("v", 1.2), [0.5, 0.6], "learned", warm=1))
    assert list(result.requests.status) == [200, 504]
    assert result.requests.finished_s[1] == pytest.approx(1.7)


def test_a_crash_fails_its_own_batch_and_is_replaced() -> None:
    plan = FunctionPlan("f", settings(), constant("v", 1.0, load_s=0.25), [0.5, 3.0], warm=1, crashes_s=[1.0])
    result = run(plan)
    assert list(result.requests.status) == [502, 200]
    assert result.requests.finished_s[0] == 1.0
    assert "missing" in result.decisions[-1].reason


def test_scaling_down_drains_before_it_stops() -> None:
    # 1.5 × 10 rps needs two instances of 10 rps while it lasts; afterwards one.
    arrivals = [index / 10 for index in range(600)] + [90.0 + index for index in range(60)]
    result = run(FunctionPlan("f", settings(autoscaler="k-lv", max_batch=1), constant("v", 0.1), arrivals, "given", warm=1))
    assert list(result.requests.status) == [200] * len(arrivals)
    assert (result.fewest_instances, result.most_instances) == (1, 2)
    assert [record.desired for record in result.decisions if record.actions] == [2, 1]


def test_a_full_cluster_refuses_and_says_so() -> None:
    plan = FunctionPlan("f", settings(minimum=3, cores=4), constant("v", 0.1, cores=4), [1.0])
    result = run(plan)
    assert result.most_instances == 2
    assert "no_capacity" in result.decisions[0].error


def test_costs_are_counted_from_creation_to_end() -> None:
    result = run(FunctionPlan("f", settings(cores=2), constant("v", 1.0, cores=2, load_s=0.5), [0.0]))
    assert result.duration_s >= 1.5
    assert result.instance_s == result.duration_s
    assert result.core_s == 2 * result.duration_s
    assert result.busy_core_s == pytest.approx(2.0)


def test_functions_share_the_nodes_and_nothing_else() -> None:
    plans = [FunctionPlan(name, settings(), constant("v", 0.1), [0.1 * index for index in range(20)], warm=1) for name in "ab"]
    together = simulate(plans, NODES)
    alone = simulate(plans[:1], NODES)
    assert together["a"].requests.finished_s == alone["a"].requests.finished_s == together["b"].requests.finished_s
    assert {name for result in together.values() for name in result.requests.instances} == {"a-1", "b-2"}


def test_adaptive_fill_makes_larger_batches_than_immediate_within_the_slo() -> None:
    arrivals = [index / 4 for index in range(400)]
    plans = {
        scheduler: FunctionPlan(
            "f", settings(2, 2, scheduler=scheduler, max_batch=4, slo_s=4.0), BATCHING, arrivals, "given", warm=2
        )
        for scheduler in ("adaptive-fill", "immediate")
    }
    results = {scheduler: run(plan) for scheduler, plan in plans.items()}
    assert results["adaptive-fill"].violations == 0
    assert results["adaptive-fill"].summary()["mean_batch"] > results["immediate"].summary()["mean_batch"]


def test_a_function_whose_profile_lacks_its_cores_is_refused() -> None:
    with pytest.raises(GnomonError, match="3 cores"):
        run(FunctionPlan("f", settings(cores=3), BATCHING, [0.0]))


def test_the_table_has_a_line_a_function() -> None:
    result = run(FunctionPlan("f", settings(), constant("v", 0.1), [0.0], warm=1))
    heading, line = table([result]).splitlines()
    assert heading.split()[:3] == ["function", "autoscaler", "scheduler"]
    assert line.split()[:5] == ["f", "fixed", "immediate", "1", "0.00%"]


@pytest.mark.parametrize(("percent", "value"), [(0, 1.0), (1, 1.0), (50, 50.0), (95, 95.0), (99.9, 100.0), (100, 100.0)])
def test_nearest_rank(percent: float, value: float) -> None:
    assert percentile([float(n) for n in range(1, 101)], percent) == value


def test_binary_fractions_do_not_shift_the_rank() -> None:
    assert percentile([float(n) for n in range(1, 1001)], 99.9) == 999.0


def test_nothing_measured_has_no_percentile() -> None:
    assert percentile([], 50) is None
    assert spread_ms([])["p50"] is None


def test_spread_is_in_milliseconds() -> None:
    assert spread_ms([0.003, 0.001])["max"] == 3.0
    assert spread_ms([0.003, 0.001])["mean"] == 2.0
