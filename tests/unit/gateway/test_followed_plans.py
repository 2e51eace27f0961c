"""A replica makes batches by the plans that the leader tells, and has them when it leads itself."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.scaling import SetBufferPlan
from gnomon_gateway.functions.deployments import OtherReplicas
from gnomon_gateway.replicas.state_sync import follow, plans_to_json
from tests.unit.gateway.planned import OTHER_PLAN, PLAN, Planned, deployment
from tests.unit.gateway.shadow_stage import NAME

OTHER = "other.openfaas-fn"


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Planned]:
    made = Planned(tmp_path, other_replicas=OtherReplicas(leads=False))
    await made.manager.deploy(deployment())
    await made.manager.deploy(deployment(name="other"))
    yield made
    await made.stop()


def hear(replica: Planned, plans: Mapping[str, SetBufferPlan]) -> None:
    """The leader tells this table."""
    follow(replica.instances, json.loads(json.dumps(plans_to_json(plans))))


async def test_functions_have_the_plans_of_the_last_table(replica: Planned) -> None:
    first, second = {NAME: PLAN, "unknown.openfaas-fn": PLAN}, {NAME: OTHER_PLAN, OTHER: PLAN}
    for table in (first, second, {OTHER: PLAN}, {}):
        hear(replica, table)
        for function in (NAME, OTHER):
            plan = table.get(function)
            assert replica.bounds(function) == ((8, 0.3) if plan is None else (plan.max_batch, plan.max_wait_s))


async def test_repeated_table_changes_nothing(replica: Planned) -> None:
    hear(replica, {NAME: PLAN})
    policies = replica.policy(), replica.policy(OTHER)
    hear(replica, {NAME: PLAN})
    assert (replica.policy(), replica.policy(OTHER)) == policies


async def test_followed_plan_applies_to_a_function_deployed_later(replica: Planned) -> None:
    late = deployment(name="late")
    hear(replica, {str(late.key): PLAN})
    await replica.manager.deploy(late)
    hear(replica, {str(late.key): PLAN})
    assert replica.bounds("late") == (4, 0.05)


async def test_update_resets_a_followed_plan_until_the_next_table(replica: Planned) -> None:
    hear(replica, {NAME: PLAN})
    await replica.manager.update(deployment(most=6))
    assert replica.bounds() == (6, 0.3)
    hear(replica, {NAME: PLAN})
    assert replica.bounds() == (4, 0.05)


async def test_next_leader_passes_followed_state_on(replica: Planned) -> None:
    hear(replica, {NAME: PLAN})
    replica.other_replicas.leads = True
    await replica.manager.lead()
    assert replica.bounds() == (4, 0.05)
    assert plans_to_json(replica.instances.plans()) == plans_to_json({NAME: PLAN})


@pytest.mark.parametrize(
    "broken", [[], {NAME: {}}, {NAME: 1}, {OTHER: None}, {NAME: {"max_batch": 0, "max_wait_s": 0.1}}], ids=str
)
async def test_invalid_table_changes_nothing(replica: Planned, broken: Any) -> None:
    hear(replica, {NAME: PLAN})
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        follow(replica.instances, {OTHER: {"max_batch": 2, "max_wait_s": 0.1}, **broken} if isinstance(broken, dict) else broken)
    assert replica.instances.plans() == {NAME: PLAN}
