"""The plan of a function's buffer that is in force: a policy's, what another process says, none after other settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.gateway.planned import OTHER_PLAN, PLAN, Planned, deployment
from tests.unit.gateway.shadow_stage import NAME

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
    """Its policy sees the same settings, and need not tell it again."""
    gateway.instances.plan_buffer(NAME, PLAN)
    await gateway.manager.update(deployment(**environment))
    assert (gateway.bounds(), gateway.instances.plans()) == ((4, 0.05), {NAME: PLAN})


async def test_function_reusing_a_name_has_no_plan(gateway: Planned) -> None:
    gateway.instances.plan_buffer(NAME, PLAN)
    await gateway.manager.remove(deployment().key)
    await gateway.manager.deploy(deployment())
    assert (gateway.bounds(), gateway.instances.plans()) == (AS_DEPLOYED, {})
