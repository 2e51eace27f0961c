"""`batch` chooses the memory of simulated slots: the new ones take over while requests come, and every call is paid for."""

import json
from functools import cache

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.lambda_pricing import LAMBDA_X86
from gnomon_core.scaling import CreateBody, DestroyBody, Resize
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.profiles import on_lambda
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate
from tests.made_up_models import sold_by_memory

MEMORIES_MB = (885, 1769, 3538)
WORK_S = (0.30, 0.50, 0.70, 0.90)
MINUTES = 5
SLOTS = 64
WARM = 4


@cache
def minutes(name: str, plan_cores: str) -> FunctionResult:
    """Eight requests a second, evenly, for a function that begins with 1,769 MB, where one takes 300 ms."""
    settings = Settings(
        autoscaler=name, slo_s=0.25, slo_percentile=95.0, max_batch=4, plan_cores=plan_cores, memory_mb=1769,
        scale=ScaleSettings(min=1, max=20),
    )  # fmt: skip
    arrivals = [number / 8.0 for number in range(8 * 60 * MINUTES)]
    profile = on_lambda(sold_by_memory(WORK_S, MEMORIES_MB, load_s=1.0), 1769)
    region = NodePlan("lambda", 6 * SLOTS, 10_240 * SLOTS * 2**20)
    return simulate([FunctionPlan("f", settings, profile, arrivals, warm=WARM)], [region])["f"]


@pytest.mark.parametrize("name", ["batch", "batch+"])
def test_an_objective_that_only_more_memory_meets_is_met_and_nothing_is_lost(name: str) -> None:
    chosen, fixed = minutes(name, "any"), minutes(name, "fixed")
    created = [action for decision in chosen.decisions for action in decision.actions if isinstance(action, CreateBody)]
    assert {action.memory_mb for action in created if decided_late(chosen, action)} == {3538}
    assert not any(isinstance(action, Resize) for decision in chosen.decisions for action in decision.actions)
    assert set(chosen.requests.status) == {200}
    assert late(chosen) < 0.05 < late(fixed)
    assert "3538 MB" in chosen.decisions[-1].reason


def late(result: FunctionResult) -> float:
    """The share of the requests beyond the SLO, of those that came after the first plan and the start of its slots."""
    rows = [row for row in result.requests.rows() if row["arrived_s"] > 35.0]
    return float(sum(row["finished_s"] - row["arrived_s"] > result.settings.slo_s for row in rows) / len(rows))


def decided_late(result: FunctionResult, created: CreateBody) -> bool:
    """Whether it was not created before there was a plan."""
    return any(created in decision.actions for decision in result.decisions if "MB" in decision.reason)


def test_the_old_slots_end_only_after_new_ones_began() -> None:
    decisions = minutes("batch", "any").decisions
    first = {
        kind: min(record.at for record in decisions if any(isinstance(action, kind) for action in record.actions))
        for kind in (CreateBody, DestroyBody)
    }
    changed = min(record.at for record in decisions if any(getattr(one, "memory_mb", None) == 3538 for one in record.actions))
    ended = [record.at for record in decisions if any(isinstance(action, DestroyBody) for action in record.actions)]
    assert first[CreateBody] <= changed < min(at for at in ended if at >= changed)


@pytest.mark.parametrize("plan_cores", ["any", "fixed"])
def test_each_batch_and_each_start_is_a_call_at_the_price_of_its_memory(plan_cores: str) -> None:
    result = minutes("batch", plan_cores)
    sizes = {
        instance: row["batch"]
        for row in result.requests.rows()
        for instance in [(row["instance"], row["dispatched_s"])]
        if row["dispatched_s"] is not None
    }
    assert result.cost.calls == len(sizes) + len(result.bodies_s)
    document = json.loads(json.dumps(result.summary()))
    assert document["calls_usd"] == pytest.approx(result.cost.calls_usd)
    if plan_cores == "fixed":
        batches = sum(LAMBDA_X86.invoke_usd(WORK_S[size - 1], 1769) for size in sizes.values())
        starts = WARM * LAMBDA_X86.invoke_usd(0.0, 1769) + (len(result.bodies_s) - WARM) * LAMBDA_X86.invoke_usd(1.0, 1769)
        assert result.cost.calls_usd == pytest.approx(batches + starts)


def test_a_size_that_was_not_measured_is_refused() -> None:
    model = sold_by_memory(WORK_S, MEMORIES_MB)
    with pytest.raises(GnomonError, match="was not measured with 512 MB"):
        on_lambda(model, 512)
