"""Buffer plans in force in a gateway: a policy's, those of another process, and those that a replica hears from its leader."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.scaling import SetBufferPlan
from gnomon_gateway.functions.deployments import OtherReplicas
from gnomon_gateway.replicas.state_sync import follow, plans_to_json
from tests.unit.gateway.stage import NAME, OTHER_PLAN, PLAN, Planned, deployment

AS_DEPLOYED = (8, 0.3)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Planned]:
    made = Planned(tmp_path)
    await made.manager.deploy(deployment())
    yield made
    await made.stop()


async def test_batches_are_made_by_the_plan_that_was_told_last(gateway: Planned) -> None:
    assert (gateway.bounds(), gateway.instances.plans()) == (AS_DEPLOYED, {})
    await gateway.instances.apply(NAME, [PLAN])
    assert (gateway.bounds(), gateway.instances.plans()) == ((4, 0.05), {NAME: PLAN})
    gateway.instances.plan_buffer(NAME, OTHER_PLAN)
    assert (gateway.bounds(), gateway.instances.plans()) == ((2, 0.01), {NAME: OTHER_PLAN})
    gateway.instances.plan_buffer(NAME, None)
    assert (gateway.bounds(), gateway.instances.plans()) == (AS_DEPLOYED, {})


async def test_a_plan_that_is_told_again_changes_nothing(gateway: Planned) -> None:
    for plan in (PLAN, None):
        gateway.instances.plan_buffer(NAME, plan)
        policy = gateway.policy()
        gateway.instances.plan_buffer(NAME, plan if plan is None else replace(plan))
        assert gateway.policy() is policy


async def test_a_plan_for_a_function_that_is_not_there_is_nobodys(gateway: Planned) -> None:
    gateway.instances.plan_buffer("gone.openfaas-fn", PLAN)
    assert gateway.instances.plans() == {}


async def test_other_settings_are_without_a_plan(gateway: Planned) -> None:
    gateway.instances.plan_buffer(NAME, PLAN)
    await gateway.manager.update(deployment(most=6))
    assert (gateway.bounds(), gateway.instances.plans()) == ((6, 0.3), {})
    gateway.instances.plan_buffer(NAME, PLAN)
    assert gateway.bounds() == (4, 0.05), "the plan before them may be that of the new ones as well"


@pytest.mark.parametrize("environment", [{}, {"NEW": "1"}], ids=["nothing", "its instances"])
async def test_a_plan_stays_where_an_update_changes_no_settings(gateway: Planned, environment: dict[str, str]) -> None:
    """The policy sees the same settings, and need not plan again."""
    gateway.instances.plan_buffer(NAME, PLAN)
    await gateway.manager.update(deployment(**environment))
    assert (gateway.bounds(), gateway.instances.plans()) == ((4, 0.05), {NAME: PLAN})


async def test_function_reusing_a_name_has_no_plan(gateway: Planned) -> None:
    gateway.instances.plan_buffer(NAME, PLAN)
    await gateway.manager.remove(deployment().key)
    await gateway.manager.deploy(deployment())
    assert (gateway.bounds(), gateway.instances.plans()) == (AS_DEPLOYED, {})


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
