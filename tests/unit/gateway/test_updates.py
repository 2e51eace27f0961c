"""Updates: requests run on instances of the model that they were checked against, and the next leader serves an update."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.interfaces import InstanceRequest, LogQuery, StoredFunction
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import CreateBody
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.functions.deployments import OtherReplicas
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.functions.logs import LogBook
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.profiles import LatencyModels
from gnomon_gateway.queueing.queue import Request
from gnomon_gateway.store import SqliteStore
from tests.unit.gateway.stage import NAME, Client, PersistentPlatform, Scaling, Scripted, Silent
from tests.unit.gateway.test_models_measured_anew import MODEL, OTHER, profile
from tests.waiting import until

KEY = FunctionKey("fn")
OUT = (TensorSpec("y", "FP32", (2,)),)
SIGNATURES = {
    "narrow": ModelSignature("narrow", "1", (TensorSpec("x", "FP32", (2,)),), OUT),
    "newer": ModelSignature("newer", "2", (TensorSpec("x", "FP32", (2,)),), OUT, details={"labels": ["a", "b"]}),
    "wide": ModelSignature("wide", "1", (TensorSpec("x", "FP32", (3,)),), OUT),
    "talkative": ModelSignature("talkative", "1", (TensorSpec("x", "FP32", (2,)),), (TensorSpec("y", "FP32", (3,)),)),
}


def deployment(model: str) -> FunctionSpec:
    return read_deployment({"service": "fn", "image": "i", "annotations": {"gnomon/model": model} if model else {}})


class Models(Scripted):
    """Has a model's signature for each function that names a model, and says that instances are gone when they are destroyed."""

    def signature(self, spec: FunctionSpec) -> ModelSignature | None:
        return SIGNATURES.get(spec.settings.model or "")

    def revision(self, spec: FunctionSpec) -> str:
        return spec.settings.model or "handler"

    async def create(self, request: InstanceRequest) -> Instance:
        if self.refuses is not None:
            raise self.refuses
        return await super().create(request)


class Channel(Silent):
    """A `BatchChannel` of an instance that executes a batch when the test says so, and only requests of its own model."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.taken: list[tuple[Frame, Callable[[Frame | None], None]]] = []

    def run(self, frame: Frame, done: Callable[[Frame | None], None], stream: object = None) -> None:  # type: ignore[override]
        del stream
        self.taken.append((frame, done))

    def execute(self) -> None:
        taken, self.taken = self.taken, []
        for frame, done in taken:
            signature = SIGNATURES.get(self.model)
            inputs = [spec.to_json() for spec in signature.inputs] if signature is not None else None
            valid = (json.loads(frame.head)["inputs"] if frame.head else None) == inputs
            answer = (200, self.model.encode()) if valid else (400, b"other tensors")
            members = [Member(answer[0], member.size, b"", answer[1]) for member in frame.members]
            done(Frame(Kind.RESULT, epoch=frame.epoch, members=members))


class Stage:
    def __init__(self, folder: Path, platform: Models) -> None:
        self.platform, self.store = platform, SqliteStore(folder / "functions.db")
        self.manager = Manager(self.store, self.platform, Scaling())

    @property
    def runtime(self) -> FunctionRuntime:
        runtime = self.manager.directory.lookup("fn")
        assert runtime is not None
        return runtime

    async def serve(self, model: str) -> Channel:
        """Deploy a model with one ready instance."""
        await self.manager.deploy(deployment(model))
        await self.manager.instances.apply(NAME, [CreateBody(1)])
        return self.ready("b1", model)

    def ready(self, instance_id: str, model: str) -> Channel:
        channel = Channel(model)
        body = self.platform.there[instance_id] = replace(self.platform.there[instance_id], state=InstanceState.READY)
        self.manager.instances.instance_ready(body, channel)
        return channel

    def gone(self, instance_id: str) -> None:
        del self.platform.there[instance_id]
        self.manager.instances.instance_gone(instance_id, "ended")

    async def call(self, runtime: FunctionRuntime | None = None) -> Client:
        """Call the function with tensors of its model, or as a handler. `runtime` is what the call's headers have found."""
        runtime, client, now_s = runtime or self.runtime, Client(), time.monotonic()
        lane = runtime.event_lane if runtime.signature is None else runtime.tensor_lane
        runtime.submit(Request(lane, now_s, now_s + 60.0, responder=client))
        await asyncio.sleep(0)
        return client


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path, Models())
    yield made
    await made.manager.stop()
    made.store.close()


@pytest.mark.parametrize(("before", "after"), [("narrow", "wide"), ("narrow", "talkative"), ("narrow", ""), ("", "wide")])
async def test_requests_are_executed_by_instances_of_the_model_that_they_were_checked_against(
    stage: Stage, before: str, after: str
) -> None:
    old = await stage.serve(before)
    executing, waiting = await stage.call(), await stage.call()
    await stage.manager.update(deployment(after))
    later = await stage.call()
    new = stage.ready("b2", after)
    old.execute()
    old.execute()
    new.execute()
    assert [client.outcomes for client in (executing, waiting, later)] == [[before.encode()], [before.encode()], [after.encode()]]
    await until(lambda: stage.platform.destroyed == ["b1"])


async def test_request_waits_for_an_instance_of_the_new_model_although_an_old_one_is_idle(stage: Stage) -> None:
    old = await stage.serve("narrow")
    await stage.manager.update(deployment("wide"))
    client = await stage.call()
    assert (client.outcomes, old.taken) == ([], [])
    stage.ready("b2", "wide").execute()
    assert client.outcomes == [b"wide"]


async def test_new_instances_that_find_no_room_are_created_once_the_old_ones_have_ended(stage: Stage) -> None:
    await stage.serve("narrow")
    stage.platform.refuses = GnomonError(503, "no_capacity", "No node has a free core.")
    await stage.manager.update(deployment("wide"))
    client = await stage.call()
    await until(lambda: stage.platform.destroyed == ["b1"])
    assert client.outcomes == [], "the old instance frees its core"
    stage.platform.refuses = None
    stage.gone("b1")
    another = await stage.call()
    assert another.outcomes == [], "there is room now"
    await stage.manager.instances.apply(NAME, [CreateBody(1)])
    stage.ready("b1", "wide").execute()
    assert client.outcomes == [b"wide"]


async def test_request_that_waits_for_the_first_instance_is_executed_by_it(stage: Stage) -> None:
    await stage.manager.deploy(deployment("narrow"))
    await stage.manager.instances.apply(NAME, [CreateBody(1)])
    client = await stage.call()
    await stage.manager.update(deployment("wide"))
    await asyncio.sleep(0)
    assert client.outcomes == []
    stage.ready("b1", "narrow").execute()
    assert client.outcomes == [b"narrow"]


@pytest.mark.parametrize("starts", [False, True])
async def test_request_without_an_instance_of_its_model_is_to_be_sent_again(stage: Stage, *, starts: bool) -> None:
    await stage.manager.deploy(deployment("narrow"))
    if starts:
        await stage.manager.instances.apply(NAME, [CreateBody(1)])
    client = await stage.call()
    await stage.manager.update(deployment("wide"))
    if starts:
        stage.gone("b1")
    await until(lambda: client.outcomes)
    assert [(error.status, error.code) for error in client.errors] == [(503, "function_updated")]


async def test_body_that_comes_long_after_the_update_is_to_be_sent_again(stage: Stage) -> None:
    await stage.serve("narrow")
    found = stage.runtime
    await stage.manager.update(deployment("wide"))
    assert found.successor is stage.runtime, "a body that comes now is checked against its model"
    await until(lambda: stage.platform.destroyed == ["b1"])
    stage.gone("b1")
    client = await stage.call(found)
    assert [(error.status, error.code) for error in client.errors] == [(503, "function_updated")]


async def test_request_of_the_old_model_does_not_wait_for_a_new_instance(stage: Stage) -> None:
    await stage.serve("narrow")
    found = stage.runtime
    stage.platform.refuses = GnomonError(503, "no_capacity", "No node has a free core.")
    await stage.manager.update(deployment("wide"))
    await until(lambda: stage.platform.destroyed == ["b1"])
    client = await stage.call(found)
    # A platform lists an instance before `create` returns.
    stage.platform.there["b2"] = replace(stage.platform.there["b1"], id="b2", version=2, state=InstanceState.STARTING)
    stage.gone("b1")
    assert client.outcomes == ["function_updated"]


async def test_function_is_counted_on_and_stays_ready(stage: Stage) -> None:
    old = await stage.serve("narrow")
    await stage.call()
    old.execute()
    await stage.manager.update(deployment("wide"))
    status = stage.manager.status(KEY)
    assert status is not None
    assert status.invocation_count == 1
    assert stage.manager.all_been_ready()


async def test_model_with_the_same_tensors_takes_over_waiting_requests(stage: Stage) -> None:
    old = await stage.serve("narrow")
    before = stage.runtime
    executing, waiting = await stage.call(), await stage.call()
    await stage.manager.update(deployment("newer"))
    assert stage.runtime is before
    new = stage.ready("b2", "newer")
    new.execute()
    old.execute()
    assert (waiting.outcomes, executing.outcomes) == ([b"newer"], [b"narrow"])


async def test_instances_that_outlive_the_gateway_are_replaced_by_their_platform(tmp_path: Path) -> None:
    class Pods(Models, PersistentPlatform):
        pass

    stage = Stage(tmp_path, Pods())
    await stage.serve("narrow")
    before = stage.runtime
    await stage.manager.update(deployment("wide"))
    assert stage.runtime is before
    await stage.manager.stop()
    stage.store.close()


def deployed_with(**environment: str) -> FunctionSpec:
    return read_deployment({"service": "fn", "image": "i", "envVars": environment})


class Slow(Scripted):
    """A platform that reads the profiles of some models, once asked for, when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.slow, self.asked, self.may_go = "", threading.Event(), threading.Event()
        self.broken: Exception | None = None

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        model = spec.settings.model
        if self.broken is not None:
            raise self.broken
        if model is not None and model == self.slow:
            self.asked.set()
            self.may_go.wait(10)
        return None if model is None else profile(0.04 if model == MODEL else 0.03, model)


class Replica:
    """A gateway of several, which follows another until `other_replicas.leads`; their store says what that one writes."""

    def __init__(self, folder: Path) -> None:
        self.other_replicas = OtherReplicas(leads=False)
        self.store = SqliteStore(folder / "functions.db")
        self.log = LogBook(lambda: 0.0)
        self.platform = Slow()
        self.manager = Manager(
            self.store,
            self.platform,
            Scaling(),
            LatencyModels(),
            self.log,
            now=lambda: 0.0,
            other_replicas=self.other_replicas,
        )

    def write(self, spec: FunctionSpec, version: int) -> None:
        """The other one does."""
        self.store.put_function(StoredFunction(spec, version, 0.0))

    def serves(self, spec: FunctionSpec) -> bool:
        status = self.manager.status(spec.key)
        return status is not None and status.spec.raw == spec.raw


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    made = Replica(tmp_path)
    made.write(deployed_with(a="1"), 1)
    await made.manager.start()
    yield made
    await made.manager.stop()
    made.store.close()


@pytest.mark.parametrize("version", [1, 2], ids=["its settings", "its instances"])
async def test_update_of_the_previous_leader_is_served_by_the_next(replica: Replica, version: int) -> None:
    """The update was received too late, or not at all."""
    replica.write(deployed_with(a="2"), version)
    replica.other_replicas.leads = True
    await replica.manager.follow(deployed_with().key)
    await replica.manager.lead()
    assert replica.serves(deployed_with(a="2"))


async def test_a_later_version_that_is_heard_of_after_that_is_served_too(replica: Replica) -> None:
    replica.other_replicas.leads = True
    await replica.manager.lead()
    replica.write(deployed_with(a="2"), 2)
    await replica.manager.follow(deployed_with().key)
    assert replica.serves(deployed_with(a="2"))


async def test_stale_store_reverts_nothing_that_the_leader_wrote(replica: Replica) -> None:
    replica.other_replicas.leads = True
    await replica.manager.lead()
    await replica.manager.update(deployed_with(a="2"))
    replica.write(deployed_with(a="1"), 1)
    await replica.manager.follow(deployed_with().key)
    assert replica.serves(deployed_with(a="2"))


async def test_unserveable_function_does_not_block_leading(replica: Replica) -> None:
    replica.write(read_deployment({"service": "fn", "image": "i", "secrets": ["gone"]}), 2)
    replica.other_replicas.leads = True
    await replica.manager.lead()
    lines = [line.text for line in replica.log.lines(LogQuery(deployed_with().key))]
    assert any("cannot be served: secret 'gone' is not in" in text for text in lines)
    assert replica.serves(deployed_with(a="1"))


async def test_a_new_leader_goes_by_the_profile_of_what_a_function_serves_by_then(replica: Replica) -> None:
    """The function's model is exchanged while the last one's profile is read."""
    replica.write(read_deployment({"service": "fn", "image": "i", "annotations": {"gnomon/model": MODEL}}), 2)
    await replica.manager.follow(deployed_with().key)
    replica.other_replicas.leads, replica.platform.slow = True, MODEL
    leading = asyncio.create_task(replica.manager.lead())
    await until(replica.platform.asked.is_set)
    await replica.manager.update(read_deployment({"service": "fn", "image": "i", "annotations": {"gnomon/model": OTHER}}))
    replica.platform.may_go.set()
    await leading
    runtime = replica.manager.directory.lookup("fn")
    assert runtime is not None
    assert runtime.profile() == profile(0.03, OTHER)


@pytest.mark.parametrize("broken", [OSError(116, "Stale file handle"), GnomonError(503, "repository_unreachable", "Away.")])
@pytest.mark.parametrize("changed", [False, True])
async def test_a_repository_that_cannot_be_read_keeps_nobody_from_leading(
    replica: Replica, broken: Exception, *, changed: bool
) -> None:
    """The last profile holds. A volume of the network may be away for that moment, and a leader begins only once."""
    measured = read_deployment({"service": "fn", "image": "i", "annotations": {"gnomon/model": MODEL}})
    replica.write(measured, 2)
    await replica.manager.follow(measured.key)
    if changed:
        replica.write(read_deployment({"service": "fn", "image": "i", "annotations": {"gnomon/model": OTHER}}), 3)
    replica.other_replicas.leads, replica.platform.broken = True, broken
    await replica.manager.lead()
    runtime = replica.manager.directory.lookup("fn")
    assert runtime is not None
    assert runtime.profile() == profile(0.04)
