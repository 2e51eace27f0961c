"""The simulator's second tier: functions on demand beside a function's instances."""

import pytest

from gnomon_autoscaler import BUILT_IN, PolicyPlugin
from gnomon_core.profiles import LatencyTable
from gnomon_core.scaling import CreateBody, Decision, Observation, PolicyState
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.arrivals import constant
from gnomon_simulator.profiles import Profile
from gnomon_simulator.results import OK, ON_DEMAND_INSTANCE, FunctionResult, on_demand
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, OnDemand, simulate

MODEL = Profile("v", LatencyTable({1: {1: 0.1, 2: 0.2, 4: 0.4}}), load_s=30.0)


class Shares:
    """One instance; from second 10 on a quarter overflows."""

    name, period_s, default_scheduler = "shares", 1.0, "immediate"

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        self.seen.append(seen)
        made = () if seen.live else (CreateBody(1),)
        return Decision(made, "by the clock", 1, 0.25 if seen.now_s >= 10.0 else 0.0), state


def run(policy: Shares, *, on_demand_s: float | None, warm: int = 1, crashes_s: tuple[float, ...] = ()) -> FunctionResult:
    policies = {**BUILT_IN, "shares": PolicyPlugin(lambda _: policy, "Shares.")}
    settings = Settings(autoscaler="shares", slo_s=5.0)
    plan = FunctionPlan(
        "f",
        settings,
        MODEL,
        constant(4.0, 30.0),
        "given",
        warm=warm,
        policies=policies,
        on_demand_s=on_demand_s,
        crashes_s=crashes_s,
    )
    return simulate([plan], [NodePlan("node-1", 8)])["f"]


def called(result: FunctionResult) -> list[float]:
    """When those came that functions served."""
    rows = result.requests
    if ON_DEMAND_INSTANCE not in rows.instances:
        return []
    number = rows.instances.index(ON_DEMAND_INSTANCE)
    return [arrived for arrived, instance in zip(rows.arrived_s, rows.instance, strict=True) if instance == number]


def test_every_fourth_request_is_called_alone_and_waits_for_nobody() -> None:
    result = run(Shares(), on_demand_s=0.3)
    # From second 10 on four come a second, of which the policy, asked at 10, leaves one to functions.
    assert called(result) == pytest.approx([10.75 + number for number in range(20)], abs=0.25 + 1e-9)
    assert on_demand(result.requests) == 20
    rows = result.requests
    for row, arrived in enumerate(rows.arrived_s):
        if rows.instance[row] == rows.instances.index(ON_DEMAND_INSTANCE):
            assert (rows.batch[row], rows.status[row]) == (1, OK)
            assert rows.finished_s[row] - arrived == pytest.approx(0.3)


def test_prediction_covers_both_tiers() -> None:
    policy = Shares()
    run(policy, on_demand_s=0.3)
    last = policy.seen[-1]
    assert last.history.rate_rps(last.history.arrivals, 10.0) == pytest.approx(4.0, abs=0.11)


def test_without_functions_all_of_them_wait_for_instances() -> None:
    result = run(Shares(), on_demand_s=None)
    assert called(result) == []
    assert on_demand(result.requests) == 0
    assert all(status == OK for status in result.requests.status)


def test_a_replaced_instance_changes_nothing_of_the_share() -> None:
    result = run(Shares(), on_demand_s=0.3, crashes_s=(15.5,))
    assert len(called(result)) == 20


def test_a_share_is_spread_evenly_and_none_forgets() -> None:
    tier = OnDemand(1.0)
    assert [tier.takes(0.4) for _ in range(10)] == [False, False, True, False, True] * 2
    assert tier.takes(0.0) is False
    assert [tier.takes(1.0) for _ in range(3)] == [True] * 3
    assert not any(tier.takes(0.0) for _ in range(5))


def test_mark_calls_for_a_burst_what_its_machine_does_not_carry() -> None:
    """8 a second keep one of two instances busy; 60 a second for ten seconds are three times what both carry."""
    calm, burst = constant(8.0, 300.0), [300.0 + number / 60.0 for number in range(600)]
    after = [310.0 + time_s for time_s in constant(8.0, 60.0)]
    settings = Settings(autoscaler="mark", slo_s=1.0, max_batch=4, scale=ScaleSettings(min=1, max=20))

    def served(on_demand_s: float | None) -> FunctionResult:
        plan = FunctionPlan("f", settings, MODEL, calm + burst + after, "given", warm=2, on_demand_s=on_demand_s)
        return simulate([plan], [NodePlan("node-1", 64)])["f"]

    alone, both = served(None), served(0.2)
    # It is seen at 305, when 300 have come and 200 of them wait: of what comes then most is called.
    assert not [time_s for time_s in called(both) if time_s < 305.0]
    assert 300 <= len(called(both)) <= 600
    assert both.violations < 0.6 * alone.violations
    assert "overflow to functions" in " ".join(decision.reason for decision in alone.decisions)
