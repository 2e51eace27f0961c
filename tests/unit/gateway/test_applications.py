"""Applications on a platform that starts an instance for each member that a request waits for, and does as the test says."""
# ruff: noqa: ARG002 - who stands in for a seam takes what the seam gives

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gnomon_core.applications import endpoint_of
from gnomon_core.background import Background
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.interfaces import InstanceRequest
from gnomon_core.scaling import CreateBody, DestroyBody
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.applications import service
from gnomon_gateway.applications.service import Applications, Endpoint
from gnomon_gateway.functions import manager
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.store import SqliteStore
from tests.refusals import refused
from tests.unit.gateway.stage import Scaling, Scripted, Silent
from tests.waiting import until

KEY, MODEL = FunctionKey("faces"), "m@1"
SIGNATURE = ModelSignature("m", "1", (TensorSpec("x", "FP32", (2,)),), (TensorSpec("y", "FP32", (2,)),))


class Answering(Silent):
    """The channel of all instances, which answers each batch with this status; while it is `held`, once it is released."""

    def __init__(self) -> None:
        self.status, self.held = 200, False
        self.kept: list[Callable[[], None]] = []

    def run(self, frame: Frame, done: Callable[[Frame | None], None], stream: object = None) -> None:  # type: ignore[override]
        answers = [Member(self.status, member.size, b"", bytes(8 * member.size)) for member in frame.members]
        self.kept.append(partial(done, Frame(Kind.RESULT, members=answers)))
        if not self.held:
            asyncio.get_running_loop().call_soon(self.release)

    def release(self) -> None:
        kept, self.kept = self.kept, []
        for answer in kept:
            answer()


class Models(Scripted):
    """All models take the same tensors. Those that are `unreadable` cannot be checked now."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: set[str] = set()

    def check(self, spec: FunctionSpec) -> None:
        if spec.settings.model in self.unreadable:
            raise GnomonError(503, "repository_unreachable", "It does not answer.")

    def signature(self, spec: FunctionSpec) -> ModelSignature | None:
        return SIGNATURE

    def instances(self, function: str) -> tuple[Instance, ...]:
        return tuple(instance for instance in self.there.values() if instance.function == function)

    async def create(self, request: InstanceRequest) -> Instance:
        body = await super().create(request)
        self.there[body.id] = replace(body, function=str(request.spec.key))
        return self.there[body.id]


class OnDemand(Scaling):
    """A request that waits starts an instance, unless `starts` is False; it ends when no instance is requested."""

    def __init__(self, platform: Models) -> None:
        super().__init__()
        self.starts = True
        self.background = Background()
        self.channel = Answering()
        self._platform = platform
        self.manager: Manager | None = None

    def poke(self, function: str) -> None:
        assert self.manager is not None
        runtime = self.manager.directory.lookup(function)
        if self.starts and runtime is not None and runtime.busy and not self._platform.instances(function):
            self.background.begin(self._start(self.manager, function))

    def request(self, function: str, instances: int) -> None:
        assert self.manager is not None
        ending = [DestroyBody(instance.id) for instance in self._platform.instances(function)]
        if not instances and ending:
            self.background.begin(self.manager.instances.apply(function, ending))

    async def _start(self, manager: Manager, function: str) -> None:
        await manager.instances.apply(function, [CreateBody(1)])
        for body in self._platform.instances(function):
            ready = self._platform.there[body.id] = replace(body, state=InstanceState.READY)
            manager.instances.instance_ready(ready, self.channel)


class Stage:
    """A gateway with applications. A model that is `stuck` is not read before `answers` is set."""

    def __init__(self, folder: Path) -> None:
        self.platform = Models()
        self.scaling = OnDemand(self.platform)
        self.stuck: set[str] = set()
        self.answers = asyncio.Event()
        self.store = SqliteStore(folder / "functions.db")
        self.manager = self.scaling.manager = Manager(self.store, self.platform, self.scaling, fetch_model=self._fetch)
        self.applications = Applications(self.manager, self.manager, self.store, self.store)

    async def _fetch(self, model: str) -> None:
        if model in self.stuck:
            await self.answers.wait()

    @property
    def endpoint(self) -> Endpoint:
        (endpoint,) = self.applications.endpoints()
        return endpoint

    @property
    def problems(self) -> dict[str, str]:
        """The models and variants in the output of `gnomon app describe`."""
        status = self.applications.application(KEY)
        return {**status.problems, **{one.candidate.id: one.problem for one in status.variants if one.problem}}


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path)
    await made.manager.start()
    await made.applications.start()
    yield made
    await made.applications.stop()
    made.scaling.channel.release()
    await made.scaling.background.end()
    await made.manager.stop()
    made.store.close()


async def test_models_whose_names_differ_in_punctuation_have_functions_of_their_own(stage: Stage) -> None:
    models = {"net-a@1", "net_a@1", "net.a@1", "net-a-1@1", "net_a-1@1.0"}
    for model in models:
        await stage.applications.register(KEY, model, 0.5)
    await until(lambda: len(stage.endpoint.members) == len(models))
    members = stage.endpoint.members.values()
    assert all(member.runtime.settings.model == member.candidate.model for member in members)
    names = {member.candidate.model: member.spec.key.name for member in members}
    assert names["net-a@1"] == "faces--net-a-1-program-fp32-1"
    assert len(set(names.values())) == len(models)


async def test_update_with_larger_batches_leaves_variants_in_service_while_they_are_measured(stage: Stage) -> None:
    await stage.applications.register(KEY, MODEL, 0.5)
    await until(lambda: stage.endpoint.application.members, "it was never measured")
    (before,) = stage.endpoint.application.members.values()
    stage.scaling.channel.held = True
    await stage.applications.update(endpoint_of(KEY, {"gnomon/max-batch": "16"}))
    await until(lambda: stage.scaling.channel.kept, "it is not measured again")
    (served,) = stage.endpoint.application.members.values()
    assert served.variant == before.variant
    stage.scaling.channel.held = False
    stage.scaling.channel.release()
    await until(lambda: [member.variant.max_batch for member in stage.endpoint.application.members.values()] == [16])
    (after,) = stage.endpoint.application.members.values()
    assert after.variant.load_s == before.variant.load_s, "its instance runs already"


async def test_instance_of_a_variant_that_cannot_be_measured_ends(stage: Stage) -> None:
    stage.scaling.channel.status = 500
    await stage.applications.register(KEY, MODEL, 0.5)
    await until(lambda: stage.problems, "it was measured")
    assert "answered 500 to zeros" in next(iter(stage.problems.values()))
    await until(lambda: stage.platform.destroyed == ["b1"], "it holds its memory for ever")


async def test_problem_of_a_model_ends_with_its_registration(stage: Stage) -> None:
    await stage.applications.register(KEY, MODEL, 0.5)
    stage.platform.unreadable.add(MODEL)
    await until(lambda: MODEL in stage.problems)
    await stage.applications.unregister(KEY, MODEL)
    await until(lambda: not stage.problems, "it is described for ever")


async def test_variant_that_is_removed_while_it_is_measured_leaves_no_problem(stage: Stage) -> None:
    stage.scaling.starts = False
    await stage.applications.register(KEY, MODEL, 0.5)
    await until(lambda: any(member.runtime.busy for member in stage.endpoint.members.values()))
    await stage.applications.unregister(KEY, MODEL)
    await until(lambda: not stage.endpoint.members and stage.endpoint.attempts.at_s > 0.0)
    await until(lambda: not stage.endpoint.measuring.locked())
    assert stage.problems == {}


@pytest.fixture
async def stuck(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """An application with a model whose store hangs, and another model."""
    await stage.applications.register(KEY, MODEL, 0.5)
    await until(lambda: stage.endpoint.application.members)
    monkeypatch.setattr(manager, "ANSWER_S", 0.05)
    stage.stuck.add(MODEL)
    await stage.applications.register(KEY, "n@1", 0.6)
    return stage


async def test_model_whose_store_hangs_is_described_and_delays_no_other(stuck: Stage) -> None:
    await until(lambda: len(stuck.endpoint.application.members) == 2, "not both models are served")
    await until(lambda: stuck.problems == {MODEL: "Model m@1 is being captured or downloaded."})
    assert [variant.candidate.model for variant in stuck.applications.application(KEY).variants if variant.variant] == [
        MODEL,
        "n@1",
    ]
    stuck.answers.set()
    stuck.applications.reconcile(KEY)
    await until(lambda: not stuck.problems)


async def test_application_whose_model_store_hangs_can_be_changed_and_removed(stuck: Stage) -> None:
    await stuck.applications.update(endpoint_of(KEY, {"gnomon/max-batch": "2"}))
    await stuck.applications.unregister(KEY, MODEL)
    await stuck.applications.forget(KEY)
    assert stuck.store.functions() == []


async def test_registration_of_a_model_that_takes_long_to_come_delays_no_other_application(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.stuck.add("n@1")
    waiting = asyncio.create_task(stage.applications.register(KEY, "n@1", 0.6))
    await asyncio.sleep(0)
    await stage.applications.register(FunctionKey("trees"), MODEL, 0.5)
    assert not waiting.done(), "it may be captured, which takes half a minute"
    stage.answers.set()
    assert (await waiting).model == "n@1"
    stage.answers.clear()
    monkeypatch.setattr(service, "REGISTER_S", 0.05)
    with refused(503, "model_not_here"):
        await stage.applications.register(FunctionKey("trees"), "n@1", 0.6)
    assert [model.model for model in stage.applications.application(FunctionKey("trees")).models] == [MODEL]


async def test_application_of_a_function_s_name_is_refused_with_advice_for_it(stage: Stage) -> None:
    await stage.applications.deploy(
        read_deployment({"service": KEY.name, "image": "functions/alpine:latest", "envProcess": "cat"})
    )
    with refused(409, "function_exists", hint="take another name"):
        await stage.applications.register(KEY, MODEL, 0.5)


async def test_endpoint_that_is_removed_twice_at_once_is_not_found_the_second_time(stage: Stage) -> None:
    await stage.applications.deploy(endpoint_of(KEY))
    first, second = await asyncio.gather(stage.applications.remove(KEY), stage.applications.remove(KEY), return_exceptions=True)
    assert first is None
    with refused(404, "function_not_found"):
        raise second if isinstance(second, BaseException) else AssertionError


async def test_endpoint_that_is_updated_while_it_is_removed_does_not_come_back(stage: Stage) -> None:
    await stage.applications.deploy(endpoint_of(KEY))
    changed = endpoint_of(KEY, {"gnomon/max-batch": "2"})
    _, second = await asyncio.gather(stage.applications.remove(KEY), stage.applications.update(changed), return_exceptions=True)
    with refused(404, "function_not_found"):
        raise second if isinstance(second, BaseException) else AssertionError
    assert stage.store.functions() == []
