"""Deployments: the checks before a function is served, updates and removals that fail, and actions that are refused."""

# ruff: noqa: ARG002 - who stands in for a seam takes what the seam gives

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gnomon_autoscaler.registry import BUILT_IN
from gnomon_core.errors import GnomonError, not_found
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.interfaces import Capabilities, InstanceRequest, LogQuery, SchedulingPolicy
from gnomon_core.pairs import Pair
from gnomon_core.policy_registry import PolicyPlugin
from gnomon_core.scaling import ChangeShadow, CreateBody, CreateShadow, DestroyBody, PromoteShadow, Resize
from gnomon_core.settings import Settings, read_settings
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_core.wire import Frame, decode, encode, error_result
from gnomon_gateway.asynchronous.calls import FunctionAnswer, Invocation
from gnomon_gateway.asynchronous.invoker import Invoker
from gnomon_gateway.asynchronous.queue import DEFAULT_RULE
from gnomon_gateway.dispatch.latency import KEPT_BATCHES, Curve, LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionDirectory, FunctionRuntime
from gnomon_gateway.functions.logs import LogBook
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.profiles import LatencyModels
from gnomon_gateway.functions.validation import Checks, FunctionInputs
from gnomon_gateway.scheduling.policies import Fixed, Immediate
from gnomon_gateway.scheduling.registry import SCHEDULING
from gnomon_gateway.store import SqliteStore
from gnomon_server.scaling import ScalingAdapter
from tests.unit.gateway.stage import NAME, OTHER, PAIR, Scaling, Scripted, Silent
from tests.unit.gateway.stage import Stage as FunctionStage
from tests.unit.gateway.test_dispatching_pairs import arrive, largest, make, sizes
from tests.waiting import until

KEY = FunctionKey("fn")


def deployment(process: str) -> FunctionSpec:
    return read_deployment({"service": "fn", "image": "i", "envProcess": process})


class Moody(Scripted):
    """Makes a function ready, or does not."""

    fails = False
    takes: asyncio.Event | None = None

    async def prepare(self, spec: FunctionSpec) -> None:
        if self.takes is not None:
            await self.takes.wait()
        if self.fails:
            raise GnomonError(503, "not_published", f"{spec.key} cannot be published.")


class Stage:
    def __init__(self, folder: Path) -> None:
        self.platform, self.store, self.logs = Moody(), SqliteStore(folder / "functions.db"), LogBook(lambda: 0.0)
        self.manager = self.another()

    def another(self) -> Manager:
        """A gateway that starts with what is stored."""
        return Manager(
            self.store,
            self.platform,
            Scaling(),
            LatencyModels(),
            self.logs,
            now=lambda: 0.0,
        )

    def stored(self) -> list[str | None]:
        return [function.spec.env_process for function in self.store.functions()]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path)
    yield made
    await made.manager.stop()
    made.store.close()


async def test_failed_deployment_leaves_nothing_and_can_be_repeated(stage: Stage) -> None:
    stage.platform.fails = True
    with pytest.raises(GnomonError, match="cannot be published"):
        await stage.manager.deploy(deployment("first"))
    assert (stage.stored(), stage.manager.status(KEY)) == ([], None)
    stage.platform.fails = False
    await stage.manager.deploy(deployment("first"))
    assert stage.stored() == ["first"]


async def test_failed_update_changes_nothing_and_can_be_repeated(
    stage: Stage,
) -> None:
    await stage.manager.deploy(deployment("first"))
    await stage.manager.instances.apply(NAME, [CreateBody(1)])
    body = stage.platform.there["b1"] = replace(stage.platform.there["b1"], state=InstanceState.READY)
    stage.manager.instances.instance_ready(body, Silent())
    stage.platform.fails = True
    with pytest.raises(GnomonError, match="cannot be published"):
        await stage.manager.update(deployment("second"))
    status = stage.manager.status(KEY)
    assert status is not None
    assert (stage.stored(), status.spec.env_process) == (["first"], "first")
    stage.platform.fails = False
    await stage.manager.update(deployment("second"))
    assert stage.stored() == ["second"]
    assert stage.platform.there["b2"].version > body.version


@pytest.mark.parametrize("fails", [False, True])
async def test_restarted_gateway_admits_requests_before_functions_are_prepared(stage: Stage, *, fails: bool) -> None:
    """Importing libraries takes seconds: what comes meanwhile waits for an instance, and is not refused."""
    await stage.manager.deploy(deployment("first"))
    stage.platform.takes, stage.platform.fails = asyncio.Event(), fails
    again = stage.another()
    await again.start()
    try:
        assert again.directory.lookup("fn") is not None
        stage.platform.takes.set()
        if fails:
            query = LogQuery(KEY)
            await until(lambda: any("could not be prepared" in line.text for line in stage.logs.lines(query)))
        assert again.directory.lookup("fn") is not None
    finally:
        await again.stop()


FORETOLD = {size: 0.02 * size for size in range(1, 9)}


def test_batches_that_were_slow_in_a_bad_moment_are_made_again() -> None:
    """Each size that was slow once was not made again, down to one: and for ever, as nobody measured it."""
    dispatcher, now_s, number = make(), 0.0, 0

    def serve(waiting: int, slower: float) -> None:
        nonlocal now_s, number
        sent = sizes(arrive(dispatcher, waiting, now_s))
        while sent:
            number, now_s = number + 1, now_s + slower * 0.02 * sent[-1]
            sent = sizes(dispatcher.finished("body", number, [200] * sent[-1], now_s))

    def go_on(batches: int) -> None:
        until = number + batches
        while number < until:
            serve(6, 1.0)

    go_on(50)
    assert largest(dispatcher) == 5
    for _ in range(4):
        serve(6, 4.0)
        go_on(20)
    assert largest(dispatcher) <= 3
    go_on(2 * KEPT_BATCHES)
    assert largest(dispatcher) >= 4, "five take the objective to the last digit"


def test_measured_latency_of_a_size_is_kept() -> None:
    used, unknown = Curve(FORETOLD), Curve({})
    for number in range(3 * KEPT_BATCHES):
        size = 4 if number % (KEPT_BATCHES // 2) == 0 else 1
        used.observe(size, 0.1 if size == 4 else 0.02)
    assert used.at(4) == 0.1
    unknown.observe(4, 0.1)
    for _ in range(3 * KEPT_BATCHES):
        unknown.observe(1, 0.02)
    assert unknown.at(4) == 0.1


def test_slow_batch_counts_for_a_bounded_number_of_others() -> None:
    curve = Curve(FORETOLD)
    curve.observe(4, 0.5)
    for _ in range(KEPT_BATCHES // 2):
        curve.observe(1, 0.02)
    slow_s = curve.at(4)
    assert slow_s is not None
    assert slow_s > 0.1
    for _ in range(KEPT_BATCHES):
        curve.observe(1, 0.02)
    assert abs((curve.at(4) or 0.0) - 0.08) < 1e-6


def test_sizes_that_are_slow_for_good_are_tried_one_at_a_time() -> None:
    """A size whose latency is forgotten is tried, and is late: four sizes at once would be a batch of a hundred."""
    curve, late = Curve(FORETOLD), 0
    for number in range(10 * KEPT_BATCHES):
        size = max(size for size in FORETOLD if (curve.at(size) or 0.0) <= 0.2) if number % 2 else 1
        late += size > 4
        curve.observe(size, 0.02 * size if size <= 4 else 0.3)
    assert late <= 4 + 10
    assert late > 4


MODEL = ModelSignature("m", "1", (TensorSpec("x", "FP32", (2,)),), (TensorSpec("y", "FP32", (2,)),))
TENSORS = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}).encode()
JSON = (("content-type", "application/json"),)
THROTTLED = GnomonError(503, "throttled", "Not begun in its time.", "Ask for more.", retry_after_s=5.0)


class Way:
    """A channel whose batches all end with this error: on the way, or at the instance that they came to."""

    unread = ()

    def __init__(self, error: GnomonError, *, at_the_instance: bool) -> None:
        self._error, self._at_the_instance = error, at_the_instance

    def run(self, frame: Frame, done: Callable[[Frame | None], None], stream: Callable[[Frame], None] | None = None) -> None:
        del stream
        result = error_result(frame, self._error)
        done(decode(encode(result)) if self._at_the_instance else result)

    def cancel(self, batch_id: int) -> None: ...

    async def probe(self, timeout_s: float) -> bool:
        del timeout_s
        return True


async def called(error: GnomonError, *, at_the_instance: bool, tensors: bool) -> FunctionAnswer:
    """The answer to a stored call that failed with this error."""
    settings, signature = Settings(model="m" if tensors else None), MODEL if tensors else None
    runtime = FunctionRuntime(FunctionKey("fn"), settings, Immediate(), LearnedLatency(), signature=signature)
    body = Instance("i1", "fn", 1, "node", 1, 1, InstanceState.READY, 0.0)
    runtime.instance_ready(body, Way(error, at_the_instance=at_the_instance))
    content, headers = (TENSORS, JSON) if tensors else (b"x", ())
    directory = FunctionDirectory()
    directory.add(runtime)
    return await Invoker(directory)(Invocation(runtime.key, "POST", "/", "", headers, content))


@pytest.mark.parametrize("tensors", [False, True], ids=["events", "tensors"])
async def test_transport_failure_is_retried_like_a_refusal(*, tensors: bool) -> None:
    answer = await called(THROTTLED, at_the_instance=False, tensors=tensors)
    assert (answer.status, answer.header("X-OpenFaaS-Internal"), answer.header("Retry-After")) == (503, "gnomon", "5")
    assert "Not begun in its time." in answer.body.decode()
    assert DEFAULT_RULE.wait_s(answer, 1, Random(1)) == 5.0
    assert DEFAULT_RULE.wait_s(answer, DEFAULT_RULE.attempts + 1, Random(1)) is None, "as often as ours, and not more"


@pytest.mark.parametrize("tensors", [False, True], ids=["events", "tensors"])
async def test_answer_of_an_instance_is_never_taken_for_a_refusal(*, tensors: bool) -> None:
    answer = await called(THROTTLED, at_the_instance=True, tensors=tensors)
    assert (answer.status, answer.is_ours) == (503, False)
    assert DEFAULT_RULE.wait_s(answer, 1, Random(1)) is None


SPEC = read_deployment({"service": "f", "image": "i", "secrets": ["gone", "there"]})


class Anything:
    """A platform that could run everything."""

    def check(self, spec: FunctionSpec) -> None:
        pass


class Cluster(Anything):
    """A platform whose instances outlive a gateway."""

    def adopt(self, spec: FunctionSpec, version: int) -> tuple[()]:
        raise NotImplementedError

    def scaling_conflict(self, function: str) -> None:
        raise NotImplementedError

    def revision(self, spec: FunctionSpec) -> str:
        return spec.image

    def signature(self, spec: FunctionSpec) -> None:
        pass

    def profile(self, spec: FunctionSpec) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "functions.db")
    opened.put_secret(FunctionKey("there"), b"value")
    yield opened
    opened.close()


async def no_model(_: str) -> None:
    pass


def checks(store: SqliteStore, platform: Any, **schedulers: PolicyPlugin[SchedulingPolicy]) -> Checks:
    capabilities = Capabilities(place=True, size=True, victim=True, resize=True, pair=True)
    scaling = ScalingAdapter(BUILT_IN, lambda: capabilities)
    return Checks(store, platform, scaling, no_model, SCHEDULING.built_in | schedulers)


def test_added_scheduling_policy_is_used_by_functions_that_name_it(store: SqliteStore) -> None:
    mine = checks(
        store, Anything(), mine=PolicyPlugin(lambda settings: Fixed(settings.max_batch, 1.0), "Fixed, always a second.")
    )
    assert isinstance(mine.policy(Settings(scheduler="mine")), Fixed)
    with pytest.raises(GnomonError, match="which is no scheduling policy"):
        checks(store, Anything()).policy(Settings(scheduler="mine"))


def test_a_setting_of_a_policy_that_nobody_knows_is_refused(store: SqliteStore) -> None:
    with pytest.raises(GnomonError, match="is a setting of a policy 'backlgo', which is not known") as refused:
        checks(store, Anything()).policy(read_settings({}, {"gnomon/backlgo.per-instance": "20"}))
    assert refused.value.code == "unknown_setting"


async def test_adopted_pods_serve_although_a_secret_is_missing(store: SqliteStore) -> None:
    means = await checks(store, Cluster()).spec(SPEC, again=True)
    assert means == FunctionInputs({"there": b"value"}, SPEC.image, None, None)


@pytest.mark.parametrize(("platform", "again"), [(Cluster(), False), (Anything(), True), (Anything(), False)])
async def test_new_instances_need_all_of_them(store: SqliteStore, platform: Anything, *, again: bool) -> None:
    with pytest.raises(GnomonError) as caught:
        await checks(store, platform).spec(SPEC, again=again)
    assert caught.value.code == "secret_not_found"


async def test_missing_model_is_400_and_not_404(store: SqliteStore) -> None:
    """faas-cli creates a function whose update answers 404, and would then be told that it is deployed already."""

    class WithoutModels(Anything):
        def check(self, _: FunctionSpec) -> None:
            raise not_found("model_not_found", "There is no model.", "There are: resnet50.")

    with pytest.raises(GnomonError) as refused:
        await checks(store, WithoutModels()).spec(SPEC)
    assert (refused.value.status, refused.value.code, refused.value.hint) == (400, "model_not_found", "There are: resnet50.")


@pytest.mark.parametrize("variable", ["exec_timeout", "read_timeout", "write_timeout"])
@pytest.mark.parametrize("text", ["soon", "1 minute", "-5s"])
async def test_a_timeout_that_is_no_duration_is_refused_when_a_function_is_deployed(
    store: SqliteStore, variable: str, text: str
) -> None:
    spec = replace(SPEC, secrets=("there",), environment={variable: text})
    with pytest.raises(GnomonError, match=f"{variable}: .*{text}.* is not a duration") as refused:
        await checks(store, Cluster()).spec(spec)
    assert (refused.value.status, refused.value.code) == (400, "invalid_setting")
    assert refused.value.hint == f"Example: {variable}: 30s"
    # A function that an earlier version accepted is served after a restart.
    await checks(store, Cluster()).spec(spec, again=True)
    await checks(store, Cluster()).spec(replace(spec, environment={variable: "1m30s"}))


@pytest.mark.parametrize("name", ["../../etc/passwd", "$(id)", "UPPER", "a b", "", ".hidden"])
async def test_a_hint_never_repeats_a_name_that_no_secret_can_have(store: SqliteStore, name: str) -> None:
    with pytest.raises(GnomonError, match="is not a name for a secret") as refused:
        await checks(store, Cluster()).spec(replace(SPEC, secrets=(name,)))
    assert (refused.value.status, refused.value.code) == (400, "invalid_name")
    assert "lower-case letters" in refused.value.hint
    assert "gnomon secret create" not in refused.value.hint


class Full(Scripted):
    """Refuses Shadows, their changes and other sizes, each with a text of its own; and Bodies where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.asked_on: list[str | None] = []

    async def create(self, request: InstanceRequest) -> Instance:
        if self.full:
            raise no_room("for a Body")
        self.asked_on.append(request.node)
        return await super().create(request)

    async def create_shadow(self, body_id: str, pair: Pair) -> Instance:
        raise no_room(f"for a Shadow of {body_id}")

    async def change_shadow(self, shadow_id: str, pair: Pair) -> None:
        raise no_room("for another pair")

    async def promote_shadow(self, shadow_id: str) -> Instance:
        raise no_room("for a whole model")

    async def resize(self, instance_id: str, cores: int) -> None:
        raise no_room("for a larger Body")


def no_room(text: str) -> GnomonError:
    return GnomonError(503, "no_capacity", f"No room {text}.", "")


@pytest.fixture
async def full() -> Full:
    return Full()


@pytest.fixture
async def full_stage(full: Full) -> FunctionStage:
    made = FunctionStage(full)
    await made.begin()
    made.instances.shadows.add("s", "b1")
    return made


REFUSED = [CreateShadow("b1", PAIR), ChangeShadow("s", OTHER), PromoteShadow("s"), Resize("b1", 2)]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda action: type(action).__name__)
async def test_help_that_is_refused_holds_up_no_body(
    full_stage: FunctionStage, full: Full, refused: CreateShadow | ChangeShadow | PromoteShadow | Resize
) -> None:
    """In a burst it is refused at each tick: what waited for it would never be made."""
    with pytest.raises(GnomonError, match="No room") as refusal:
        await full_stage.instances.apply(NAME, [refused, CreateBody(1, "other")])
    assert refusal.value.code == "no_capacity"
    assert full.asked_on[1:] == ["other"]
    assert "b2" in full.there


async def test_a_body_that_is_refused_ends_the_decision(full_stage: FunctionStage, full: Full) -> None:
    """The next action may be the end of the instance that the refused one was to replace."""
    full.full = True
    with pytest.raises(GnomonError, match="for a Body"):
        await full_stage.instances.apply(NAME, [CreateShadow("b1", PAIR), CreateBody(1), DestroyBody("b1")])
    await full_stage.settle()
    assert full.destroyed == []
