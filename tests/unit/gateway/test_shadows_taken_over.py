"""A new leader adopts the Shadows of the one before it, whose events come in any order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.scaling import ChangeShadow, CreateBody, DestroyBody, DestroyShadow
from tests.unit.gateway.shadow_stage import NAME, OTHER, PAIR, PersistentPlatform, Silent, Stage

LEFT = Instance("s-old", NAME, 1, "n", 2, 0, InstanceState.READY, 0.0, kind=InstanceKind.SHADOW, partner="b1", pair=PAIR)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage(PersistentPlatform())
    await made.begin()
    yield made
    made.deployed.runtime.close()


def find(stage: Stage, shadow: Instance = LEFT) -> None:
    """The events of the platform."""
    stage.platform.there[shadow.id] = shadow
    stage.instances.shadow_found(shadow)


async def test_adopted_shadow_works_like_a_new_one(stage: Stage) -> None:
    pokes = stage.scaling.pokes
    find(stage)
    assert stage.scaling.pokes == pokes + 1, "the policy is to know"
    stage.paired(PAIR, "s-old")
    assert stage.known == PAIR
    assert stage.instances.shadows.table() == {"b1": [PAIR]}
    load = stage.instances.load(NAME)
    assert load is not None
    assert [instance.id for instance in load.instances] == ["b1", "s-old"]
    assert [instance.id for instance in stage.instances.seen(NAME)] == ["b1", "s-old"]

    await stage.instances.apply(NAME, [ChangeShadow("s-old", OTHER), DestroyShadow("s-old")])
    await stage.settle()
    assert (stage.platform.changed, stage.platform.destroyed) == ([("s-old", OTHER)], ["s-old"])
    stage.paired(None)
    stage.gone("s-old")
    assert (stage.known, stage.instances.shadows.bodies(), stage.log) == (None, {}, [])


async def test_adopted_shadow_follows_its_body_and_its_death_is_seen(stage: Stage) -> None:
    find(stage)
    await stage.instances.apply(NAME, [DestroyBody("b1")])
    await stage.settle()
    assert stage.platform.destroyed == ["s-old", "b1"]
    again = Stage(PersistentPlatform())
    await again.begin()
    find(again)
    again.paired(PAIR, "s-old")
    again.gone("s-old")
    assert again.known is None
    assert again.log == ["gnomon: Shadow s-old of b1 has ended: it was killed"]
    again.deployed.runtime.close()


async def test_shadow_without_a_body_is_ended(stage: Stage) -> None:
    find(stage, replace(LEFT, partner="b9"))
    stage.deployed.draining.add("b1")
    find(stage)
    await stage.settle()
    assert stage.platform.destroyed == ["s-old", "s-old"]
    assert stage.instances.shadows.bodies() == {}


async def test_pair_known_before_the_body_is_ready_holds_from_the_first_batch(stage: Stage) -> None:
    await stage.instances.apply(NAME, [CreateBody(1)])
    body = replace(stage.platform.there["b2"], pair=PAIR, partner="s-old")
    find(stage, replace(LEFT, partner="b2"))
    stage.instances.pair_changed(body)
    assert "b2" not in stage.deployed.runtime.dispatcher.workers.by_id
    stage.instances.instance_ready(replace(body, state=InstanceState.READY), Silent())
    assert stage.deployed.runtime.dispatcher.workers.by_id["b2"].pair == PAIR


async def test_state_of_the_previous_leader_holds_until_the_platform_is_known(stage: Stage) -> None:
    stage.deployed.runtime.pair_changed("b1", OTHER)  # as a replica follows what its leader says
    stage.paired(PAIR, "s-old")
    stage.deployed.runtime.pair_changed("b1", OTHER)
    await stage.instances.take_over(stage.deployed)
    assert stage.known == PAIR
    stage.platform.there["b1"] = replace(stage.platform.there["b1"], pair=None, partner=None)
    await stage.instances.take_over(stage.deployed)
    assert stage.known is None, "its Shadow has gone while nobody led"


async def test_shadows_of_an_earlier_version_are_not_replaced_by_bodies(stage: Stage) -> None:
    find(stage)
    stage.deployed.version = 2
    await stage.instances.take_over(stage.deployed)
    new = [instance for instance in stage.platform.there.values() if instance.version == 2]
    assert [instance.kind for instance in new] == [InstanceKind.BODY]
