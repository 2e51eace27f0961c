"""An instance that one of several gateways has lost: the leader replaces it, and what others execute there is answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import StoredFunction
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.functions.deployments import LostInstance, OtherReplicas
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.queueing.queue import Request
from gnomon_gateway.store import SqliteStore
from tests.unit.gateway.shadow_stage import NAME, PersistentPlatform, Scaling, Silent, Stage
from tests.unit.gateway.test_removed_functions import Client, Held

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
    runtime, channel, clients = stage.deployed.runtime, Held(), (Client(), Client())
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
    channel.done[0](Frame(Kind.RESULT, members=[Member(200, 1, b"", b"")]))
    await stage.settle()
    assert (clients[0].errors, len(clients[0].outcomes)) == ([], 1)
    assert stage.platform.destroyed == ["b1"]
    assert (len(channel.done), clients[1].outcomes) == (1, []), "the next request waits for the instance in its place"
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
