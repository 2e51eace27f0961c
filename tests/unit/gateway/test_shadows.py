"""Shadows of a gateway: decisions are carried out, a platform's events come in any order, and a new leader adopts them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.scaling import (
    ChangeShadow,
    CreateBody,
    DestroyBody,
    DestroyShadow,
    PromoteShadow,
    SetBufferPlan,
)
from gnomon_core.signature import ModelSignature
from gnomon_gateway.replicas.state_sync import document
from gnomon_gateway.scheduling.policies import Immediate
from tests.unit.gateway.stage import NAME, OTHER, PAIR, PersistentPlatform, Silent, Stage


@pytest.fixture
async def stage() -> Stage:
    made = Stage()
    await made.begin()
    return made


async def test_a_shadow_is_used_once_its_body_says_so_and_counts_as_no_replica(stage: Stage) -> None:
    await stage.shadow()
    assert stage.known is None
    pokes = stage.scaling.pokes
    stage.paired(PAIR)
    assert stage.known == PAIR
    assert stage.scaling.pokes == pokes + 1
    runtime = stage.deployed.runtime
    assert runtime.ready == 1
    assert runtime.dispatcher.workers.starting == 0
    load = stage.instances.load(NAME)
    assert load is not None
    assert [instance.kind for instance in load.instances] == [InstanceKind.BODY, InstanceKind.SHADOW]
    assert [instance.id for instance in stage.deployed.live(stage.platform.instances(NAME))] == ["b1"]
    stage.deployed.version = 2
    assert [instance.id for instance in stage.deployed.old(stage.platform.instances(NAME))] == ["b1"]
    runtime.close()


async def test_changing_and_ending_a_pair(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    await stage.instances.apply(NAME, [ChangeShadow("s-of-b1", OTHER)])
    assert stage.platform.changed == [("s-of-b1", OTHER)]
    assert stage.known == PAIR, "the Body says when it has changed"
    stage.paired(OTHER)
    assert stage.known == OTHER
    await stage.instances.apply(NAME, [DestroyShadow("s-of-b1")])
    await stage.settle()
    assert stage.platform.destroyed == ["s-of-b1"]
    [_, leaving] = stage.instances.seen(NAME)
    assert leaving.state is InstanceState.DRAINING
    stage.paired(None)
    stage.gone("s-of-b1")
    assert stage.known is None
    assert stage.instances.shadows.bodies() == {}
    assert stage.deployed.draining == set()
    assert stage.log == [], "what was asked for is no news"


async def test_a_shadow_that_dies_is_no_failed_body(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    stage.gone("s-of-b1")
    assert stage.known is None, "the Body has not even found out"
    assert stage.scaling.forgiven == 0
    assert stage.deployed.runtime.ready == 1
    assert stage.log == ["gnomon: Shadow s-of-b1 of b1 has ended: it was killed"]
    stage.paired(None)
    assert stage.known is None


async def test_the_end_of_an_earlier_shadow_does_not_take_the_present_one_away(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    stage.paired(OTHER, "another")
    stage.gone("s-of-b1")
    assert stage.known == OTHER


async def test_a_body_takes_its_shadow_along_whether_it_is_stopped_or_dies(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    await stage.instances.apply(NAME, [DestroyBody("b1")])
    await stage.settle()
    assert stage.platform.destroyed == ["s-of-b1", "b1"]
    again = Stage()
    await again.begin()
    await again.shadow()
    again.paired(PAIR)
    again.gone("b1")
    await again.settle()
    assert again.platform.destroyed == ["s-of-b1"]
    again.gone("s-of-b1")
    assert len(again.log) == 1, "of the Body only"


async def test_a_body_that_left_meanwhile_is_no_error_and_want_of_room_is(stage: Stage) -> None:
    stage.platform.refuses = GnomonError(409, "no_such_body", "b1 has gone.", "")
    await stage.shadow()
    stage.platform.refuses = GnomonError(503, "no_capacity", "Full.", "")
    with pytest.raises(GnomonError, match="Full"):
        await stage.shadow()
    stage.platform.refuses = None
    stage.deployed.draining.add("b1")
    await stage.shadow()
    assert stage.instances.shadows.bodies() == {}


async def test_a_shadow_that_ended_while_it_was_begun_is_not_waited_for(stage: Stage) -> None:
    stage.platform.dies_at_once = True
    await stage.shadow()
    assert stage.instances.shadows.bodies() == {}


async def test_a_function_that_is_removed_takes_its_shadows_along(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    stage.instances.release(stage.deployed)
    await stage.settle()
    assert sorted(stage.platform.destroyed) == ["b1", "s-of-b1"]
    before = len(stage.platform.destroyed)
    late = asyncio.create_task(stage.instances.create_shadow(stage.deployed, "b1", PAIR))
    stage.deployed.draining.clear()
    await late
    await stage.settle()
    assert stage.platform.destroyed[before:] == ["s-of-b1"], "one that was being made when its function went"


async def test_another_buffer_plan_leaves_pairs_alone(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    await stage.instances.apply(NAME, [SetBufferPlan(4, 0.01)])
    assert stage.known == PAIR
    assert stage.deployed.runtime.largest_batches() == {"b1": 4}


async def test_a_buffer_plan_changes_batches_and_nothing_that_was_deployed(stage: Stage) -> None:
    runtime, settings = stage.deployed.runtime, replace(stage.deployed.spec.settings, max_batch=8)
    runtime.update(settings, Immediate())
    for batch in range(1, 9):
        runtime.latency.observe(runtime.variant, 1, batch, 0.1 * batch)
    latency_s = runtime.latency_s()
    await stage.instances.apply(NAME, [SetBufferPlan(2, 0.01)])
    assert runtime.settings == settings, "a request may be as large as before"
    assert runtime.latency_s() == latency_s
    assert len(latency_s) == 8, "a policy sees how long larger batches than the plan's take"
    assert runtime.largest_batches() == {"b1": 2}
    late = replace(stage.platform.there["b1"], id="b2")
    runtime.instance_ready(late, Silent())
    assert runtime.largest_batches() == {"b1": 2, "b2": 2}, "one that comes later as well"
    runtime.update(settings, Immediate())
    assert runtime.largest_batches() == {"b1": 8, "b2": 8}, "until the next deployment"


async def test_a_model_that_is_only_sent_events_has_a_known_latency(stage: Stage) -> None:
    runtime, settings = stage.deployed.runtime, replace(stage.deployed.spec.settings, max_batch=2)
    runtime.update(settings, Immediate(), ModelSignature("m", "1", (), ()))
    events, tensors = runtime.event_lane.variant, runtime.tensor_lane.variant
    assert events != tensors
    for batch in (1, 2):
        runtime.latency.observe(events, 1, batch, 0.1 * batch)
    assert runtime.latency_s() == pytest.approx((0.1, 0.2))
    for batch in (1, 2):
        runtime.latency.observe(tensors, 1, batch, 0.15)
    assert runtime.latency_s() == pytest.approx((0.15, 0.2)), "the slower of both"


async def test_policies_see_how_far_batches_are_from_what_was_predicted_of_them(stage: Stage) -> None:
    def seen() -> float:
        return stage.deployed.load(tuple(stage.platform.there.values()), ()).latency_spread

    latency = stage.deployed.runtime.latency
    assert seen() == 0.0
    for seconds in (0.1, 0.12, 0.1, 0.12) * 20:
        latency.observe(stage.deployed.runtime.variant, 1, 1, seconds)
    assert seen() == pytest.approx(0.09, abs=0.02)
    latency.observe(stage.deployed.runtime.variant, 2, 1, 1.0)
    latency.observe(stage.deployed.runtime.variant, 2, 1, 9.0)
    assert seen() == pytest.approx(0.09, abs=0.02), "there is no instance of two cores"
    elsewhere = {**document(stage.deployed.runtime), "spread": 0.3}
    stage.deployed.other_replicas.take_report("another", {stage.deployed.name: elsewhere})
    assert seen() == 0.3, "who leads asks those that serve"


async def test_promoted_shadow_starts_as_a_body_and_then_takes_batches(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    await stage.instances.apply(NAME, [PromoteShadow("s-of-b1")])
    runtime = stage.deployed.runtime
    assert (runtime.ready, runtime.dispatcher.workers.starting) == (1, 1)
    assert stage.known == PAIR, "it goes on working for its Body"
    assert len(stage.deployed.live(stage.platform.instances(NAME))) == 2
    stage.paired(None)
    body = stage.platform.there["s-of-b1"] = replace(stage.platform.there["s-of-b1"], state=InstanceState.READY)
    stage.instances.instance_ready(body, Silent())
    assert (runtime.ready, runtime.dispatcher.workers.starting) == (2, 0)
    stage.gone("b1")
    await stage.settle()
    assert stage.platform.destroyed == [], "it is nobody's Shadow any more"
    runtime.close()


async def test_promotion_that_dies_counts_as_a_failed_body(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    await stage.instances.apply(NAME, [PromoteShadow("s-of-b1"), PromoteShadow("s-of-b1"), PromoteShadow("nobody")])
    stage.paired(None)
    stage.gone("s-of-b1")
    assert stage.deployed.runtime.dispatcher.workers.starting == 0
    assert stage.log == ["gnomon: instance s-of-b1 has ended: it was killed"]
    await stage.shadow()
    stage.paired(PAIR)
    for code, reported in (("no_such_shadow", False), ("no_capacity", True)):
        stage.platform.refuses = GnomonError(409 if not reported else 503, code, "No.", "")
        if reported:
            with pytest.raises(GnomonError, match="No"):
                await stage.instances.apply(NAME, [PromoteShadow("s-of-b1")])
        else:
            await stage.instances.apply(NAME, [PromoteShadow("s-of-b1")])
        assert stage.instances.shadows.bodies() == {"s-of-b1": "b1"}, "it stays the Shadow that it is"


async def test_death_of_one_shadow_leaves_the_other_in_the_plan(stage: Stage) -> None:
    await stage.shadow()
    stage.instances.shadows.add("s2", "b1")
    body = stage.platform.there["b1"] = stage.platform.there["b1"].working_with({"s-of-b1": PAIR, "s2": OTHER})
    stage.instances.pair_changed(body)
    assert stage.known == replace(PAIR, others=(OTHER,))
    stage.gone("s-of-b1")
    assert stage.known == OTHER


LEFT = Instance("s-old", NAME, 1, "n", 2, 0, InstanceState.READY, 0.0, kind=InstanceKind.SHADOW, partner="b1", pair=PAIR)


@pytest.fixture
async def adopting() -> AsyncIterator[Stage]:
    made = Stage(PersistentPlatform())
    await made.begin()
    yield made
    made.deployed.runtime.close()


def find(adopting: Stage, shadow: Instance = LEFT) -> None:
    """The events of the platform."""
    adopting.platform.there[shadow.id] = shadow
    adopting.instances.shadow_found(shadow)


async def test_adopted_shadow_works_like_a_new_one(adopting: Stage) -> None:
    pokes = adopting.scaling.pokes
    find(adopting)
    assert adopting.scaling.pokes == pokes + 1, "the policy is to know"
    adopting.paired(PAIR, "s-old")
    assert adopting.known == PAIR
    assert adopting.instances.shadows.table() == {"b1": [PAIR]}
    load = adopting.instances.load(NAME)
    assert load is not None
    assert [instance.id for instance in load.instances] == ["b1", "s-old"]
    assert [instance.id for instance in adopting.instances.seen(NAME)] == ["b1", "s-old"]

    await adopting.instances.apply(NAME, [ChangeShadow("s-old", OTHER), DestroyShadow("s-old")])
    await adopting.settle()
    assert (adopting.platform.changed, adopting.platform.destroyed) == ([("s-old", OTHER)], ["s-old"])
    adopting.paired(None)
    adopting.gone("s-old")
    assert (adopting.known, adopting.instances.shadows.bodies(), adopting.log) == (None, {}, [])


async def test_adopted_shadow_follows_its_body_and_its_death_is_seen(adopting: Stage) -> None:
    find(adopting)
    await adopting.instances.apply(NAME, [DestroyBody("b1")])
    await adopting.settle()
    assert adopting.platform.destroyed == ["s-old", "b1"]
    again = Stage(PersistentPlatform())
    await again.begin()
    find(again)
    again.paired(PAIR, "s-old")
    again.gone("s-old")
    assert again.known is None
    assert again.log == ["gnomon: Shadow s-old of b1 has ended: it was killed"]
    again.deployed.runtime.close()


async def test_shadow_without_a_body_is_ended(adopting: Stage) -> None:
    find(adopting, replace(LEFT, partner="b9"))
    adopting.deployed.draining.add("b1")
    find(adopting)
    await adopting.settle()
    assert adopting.platform.destroyed == ["s-old", "s-old"]
    assert adopting.instances.shadows.bodies() == {}


async def test_pair_known_before_the_body_is_ready_holds_from_the_first_batch(adopting: Stage) -> None:
    await adopting.instances.apply(NAME, [CreateBody(1)])
    body = replace(adopting.platform.there["b2"], pair=PAIR, partner="s-old")
    find(adopting, replace(LEFT, partner="b2"))
    adopting.instances.pair_changed(body)
    assert "b2" not in adopting.deployed.runtime.dispatcher.workers.by_id
    adopting.instances.instance_ready(replace(body, state=InstanceState.READY), Silent())
    assert adopting.deployed.runtime.dispatcher.workers.by_id["b2"].pair == PAIR


async def test_state_of_the_previous_leader_holds_until_the_platform_is_known(adopting: Stage) -> None:
    adopting.deployed.runtime.pair_changed("b1", OTHER)  # as a replica follows what its leader says
    adopting.paired(PAIR, "s-old")
    adopting.deployed.runtime.pair_changed("b1", OTHER)
    await adopting.instances.take_over(adopting.deployed)
    assert adopting.known == PAIR
    adopting.platform.there["b1"] = replace(adopting.platform.there["b1"], pair=None, partner=None)
    await adopting.instances.take_over(adopting.deployed)
    assert adopting.known is None, "its Shadow has gone while nobody led"


async def test_shadows_of_an_earlier_version_are_not_replaced_by_bodies(adopting: Stage) -> None:
    find(adopting)
    adopting.deployed.version = 2
    await adopting.instances.take_over(adopting.deployed)
    new = [instance for instance in adopting.platform.there.values() if instance.version == 2]
    assert [instance.kind for instance in new] == [InstanceKind.BODY]
