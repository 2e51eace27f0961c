"""Deployments, removals and actions that fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.interfaces import LogQuery
from gnomon_core.scaling import CreateBody
from gnomon_core.settings import Settings
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
from gnomon_gateway.scheduling.policies import Immediate
from gnomon_gateway.store import SqliteStore
from tests.unit.gateway.shadow_stage import NAME, Scaling, Scripted, Silent
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
    """Whatever is forgotten is tried, and is late: four sizes at once would be a batch of a hundred."""
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
