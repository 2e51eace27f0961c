"""Removed functions, and instances that a gateway has lost: what they execute is answered, and a successor is kept apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import InstanceRequest, StoredFunction
from gnomon_core.pairs import Pair
from gnomon_core.scaling import CreateBody, CreateShadow
from gnomon_gateway.dispatch.dispatcher import function_removed
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.deployments import Deployed, LostInstance, OtherReplicas
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.queueing.queue import Request
from gnomon_gateway.scheduling.policies import Immediate
from gnomon_gateway.store import SqliteStore
from tests.unit.gateway.stage import NAME, PAIR, Client, Holding, PersistentPlatform, Scaling, Scripted, Silent, Stage


class Removed:
    """A function that was removed while `b1` executes a request of it, and the one deployed in its place."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.platform, self.channel = stage, stage.platform, Holding()
        self.old = stage.deployed

    async def begin(self) -> None:
        stage = self.stage
        await stage.begin()
        stage.instances.instance_ready(self.platform.there["b1"], self.channel)
        now_s = time.monotonic()
        self.old.runtime.submit(Request(self.old.runtime.event_lane, now_s, now_s + 60.0))
        await asyncio.sleep(0)
        stage.instances.release(self.old)
        runtime = FunctionRuntime(self.old.spec.key, self.old.spec.settings, Immediate(), LearnedLatency())
        self.new = Deployed(self.old.spec, 2, "1", {}, 0.0, runtime)
        stage.instances.adopt(self.new)
        await asyncio.sleep(0)

    async def answer(self) -> None:
        """The request is answered."""
        self.channel.end()
        await self.stage.settle()

    def ready(self, name: str) -> None:
        body = self.platform.there[name] = replace(self.platform.there[name], state=InstanceState.READY)
        self.stage.instances.instance_ready(body, Holding())


@pytest.fixture
async def removed() -> Removed:
    made = Removed(Stage())
    await made.begin()
    return made


async def test_removed_function_keeps_its_answers_from_its_successor(removed: Removed) -> None:
    await removed.stage.instances.apply(NAME, [CreateBody(1)])
    removed.ready("b2")
    await asyncio.sleep(0)
    assert removed.platform.destroyed == []
    assert removed.new.retired == removed.new.draining == set()
    await removed.answer()
    assert removed.platform.destroyed == ["b1"]
    removed.stage.gone("b1")
    assert removed.new.runtime.ready == 1


async def test_an_update_replaces_and_gives_up_what_is_its_own(removed: Removed) -> None:
    removed.platform.there["b1"] = replace(removed.platform.there["b1"], state=InstanceState.STARTING)
    await removed.stage.instances.apply(NAME, [CreateBody(1)])
    removed.new.version = 3
    await removed.stage.instances.rolling_update.update(removed.new)
    assert removed.new.keep_old == 0, "neither of them serves it"
    await asyncio.sleep(0)
    assert removed.platform.destroyed == ["b2"], "the other one is to answer"
    await removed.answer()
    assert removed.platform.destroyed == ["b2", "b1"]


async def test_adoption_leaves_the_instances_of_a_removed_function_alone() -> None:
    removed = Removed(Stage(PersistentPlatform()))
    await removed.begin()
    await removed.stage.instances.take_over(removed.new)
    assert removed.new.keep_old == 0
    assert removed.stage.instances.runtime_of("b1") is removed.old.runtime
    await removed.answer()
    assert removed.platform.destroyed == ["b1"]


async def test_requests_of_a_removed_function_are_answered_when_it_is_gone(removed: Removed) -> None:
    clients = [Client(), Client()]
    now_s = time.monotonic()
    for runtime, client in zip((removed.old.runtime, removed.new.runtime), clients, strict=True):
        runtime.submit(Request(runtime.event_lane, now_s, now_s + 60.0, responder=client))
    await asyncio.sleep(0)
    assert [client.outcomes for client in clients] == [[], []], "its instance may still answer"
    removed.stage.gone("b1")
    assert [client.outcomes for client in clients] == [["function_removed"], []], "the one in its place will have instances"
    await removed.stage.settle()


async def test_without_an_instance_it_hears_so_at_once_in_the_same_words() -> None:
    stage, client, now_s = Stage(), Client(), time.monotonic()
    runtime = stage.deployed.runtime
    runtime.submit(Request(runtime.event_lane, now_s, now_s + 60.0, responder=client))
    stage.instances.release(stage.deployed)
    await stage.settle()
    assert client.errors == [function_removed()]


async def test_late_body_for_a_removed_function_is_refused_at_once(removed: Removed) -> None:
    await removed.answer()
    removed.stage.gone("b1")
    runtime, client, now_s = removed.old.runtime, Client(), time.monotonic()
    runtime.submit(Request(runtime.event_lane, now_s, now_s + 60.0, responder=client))
    await asyncio.sleep(0)
    assert client.outcomes == ["function_removed"]


# A decision that is being carried out when its function is removed.


class Slow(Scripted):
    """Begins Bodies and Shadows when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def create(self, request: InstanceRequest) -> Instance:
        await self.go_on.wait()
        return await super().create(request)

    async def create_shadow(self, body_id: str, pair: Pair) -> Instance:
        await self.go_on.wait()
        return await super().create_shadow(body_id, pair)


@pytest.mark.parametrize("actions", [[CreateBody(1)], [CreateShadow("b1", PAIR), CreateBody(1)]], ids=["body", "both"])
async def test_starting_instance_of_a_removed_function_is_ended(actions: list[CreateBody | CreateShadow]) -> None:
    platform = Slow()
    stage = Stage(platform)
    await stage.begin()
    platform.go_on.clear()
    late = asyncio.create_task(stage.instances.apply(NAME, actions))
    await asyncio.sleep(0)
    stage.instances.release(stage.deployed)
    await stage.settle()
    assert platform.destroyed == ["b1"]
    platform.go_on.set()
    await late
    await stage.settle()
    assert platform.destroyed == list(platform.there)
    assert len(platform.there) == 2, "nothing more is begun for it"
    for name in list(platform.there):
        stage.gone(name)
    assert stage.log == [], "what was asked for is no news"


READY = Instance("b1", NAME, 1, "n", 1, 0, InstanceState.READY, 0.0)
LOST = LostInstance("the connection timed out", served=True)


def stage_of(*, leads: bool) -> tuple[Stage, OtherReplicas]:
    """A function with a ready instance, at a gateway that shares it with others."""
    other_replicas = OtherReplicas(leads=leads)
    stage = Stage(PersistentPlatform(), other_replicas)
    stage.platform.there["b1"] = READY
    return stage, other_replicas


async def test_instance_lost_by_another_gateway_answers_what_it_executes_here_before_it_ends() -> None:
    """The other gateway was frozen, say, while it connected: the instance is well."""
    stage = Stage(PersistentPlatform())
    await stage.begin()
    runtime, channel, clients = stage.deployed.runtime, Holding(), (Client(), Client())
    stage.instances.instance_ready(stage.platform.there["b1"], channel)

    def submit(client: Client) -> None:
        now_s = time.monotonic()
        runtime.submit(Request(runtime.event_lane, now_s, now_s + 60.0, responder=client))

    submit(clients[0])
    await asyncio.sleep(0)
    stage.instances.lost_at_replica("b1", LOST)
    submit(clients[1])
    for _ in range(5):
        await asyncio.sleep(0)
    assert stage.platform.destroyed == []
    channel.end()
    await stage.settle()
    assert (clients[0].errors, len(clients[0].outcomes)) == ([], 1)
    assert stage.platform.destroyed == ["b1"]
    assert (channel.ends, clients[1].outcomes) == ([], []), "the next request waits for the instance in its place"
    assert stage.scaling.forgiven == 1
    assert stage.log == ["gnomon: instance b1 is stopped: the connection timed out"]
    runtime.close()


@pytest.mark.parametrize("stops", [False, True], ids=["lost", "left"])
async def test_gateway_that_stops_has_lost_no_instance(tmp_path: Path, *, stops: bool) -> None:
    """The instances run on; else the leader would replace all of them whenever a gateway is replaced."""
    store, platform, other_replicas = SqliteStore(tmp_path / "functions.db"), PersistentPlatform(), OtherReplicas(leads=False)
    store.put_function(StoredFunction(read_deployment({"service": "fn", "image": "i"}), 1, 0.0))
    manager = Manager(store, platform, Scaling(), other_replicas=other_replicas)
    await manager.start()
    platform.there["b1"] = READY
    manager.instances.instance_ready(READY, Silent())
    if stops:
        await manager.stop()
    platform.there.clear()
    manager.instances.instance_gone("b1", "the gateway stops; its pod serves on")  # as the platform reports when it stops
    await manager.instances.settle()
    assert set(other_replicas.lost) == (set() if stops else {"b1"})
    if not stops:
        await manager.stop()
    store.close()


def frozen_here(stage: Stage) -> None:
    stage.instances.instance_frozen("b1", LOST.reason)


def reported(stage: Stage) -> None:
    stage.instances.lost_at_replica("b1", LOST)


@pytest.mark.parametrize("lose", [frozen_here, reported])
async def test_instance_lost_while_no_gateway_leads_is_ended_by_the_next_leader(lose: Callable[[Stage], None]) -> None:
    stage, other_replicas = stage_of(leads=False)
    stage.instances.instance_ready(READY, Silent())
    lose(stage)
    await stage.settle()
    assert set(other_replicas.lost) == {"b1"}
    stage.platform.destroyed.clear()  # a platform ends nothing while another process leads
    other_replicas.leads = True
    stage.instances.lead()
    await stage.settle()
    assert (stage.platform.destroyed, other_replicas.lost) == (["b1"], {})
    stage.deployed.runtime.close()


async def test_instance_that_is_ready_before_the_new_leader_has_taken_its_function_over_serves() -> None:
    """The previous leader has started it, maybe for requests that wait."""
    stage, _ = stage_of(leads=True)
    stage.instances.instance_ready(READY, Silent())
    await stage.settle()
    assert (stage.platform.destroyed, stage.deployed.runtime.ready) == ([], 1)
    await stage.instances.take_over(stage.deployed)
    assert stage.platform.destroyed == []
    stage.deployed.runtime.close()
