"""Plans and pairs of Revisions, and the measurements of batches that the autoscaler class joins from its gateways' pages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.interfaces import BatchChannel
from gnomon_core.pairs import Pair, pair_to_json
from gnomon_core.scaling import SetBufferPlan
from gnomon_core.settings import Settings
from gnomon_core.wire import Frame, Kind, Member, decode, encode
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.queueing.queue import Request
from gnomon_gateway.scheduling.policies import Immediate
from gnomon_platforms.common import open_session
from gnomon_platforms.knative.autoscaler import metrics as gateways
from gnomon_platforms.knative.autoscaler.metrics import (
    FEWER_AFTER_S,
    FIGURE,
    SECONDS,
    Gateways,
    ObservedLatency,
    latency_from_text,
    latency_to_text,
)
from gnomon_platforms.knative.autoscaler.objects import RevisionPod
from gnomon_platforms.knative.batching.channel import PodChannel, PodSlot
from gnomon_platforms.knative.batching.revisions import RevisionFacts
from gnomon_platforms.knative.buffer_status import ANNOTATION, BufferStatus, with_buffer_plan
from gnomon_platforms.knative.resources import ACTIVATOR_METRICS_PORT
from gnomon_platforms.provider.channel import ChannelContext, Route
from gnomon_server.knative_gateway import KnativeGateway, KnativeGatewayOptions
from tests.integration.kubernetes_platform.scripted import CLOSE, Answer, Asked, Script, event, serving
from tests.platform_testing import Recorder
from tests.waiting import until

ADDRESS = "127.0.86.1"
"""Nobody else listens there at the port of the page."""
KEY = FunctionKey("f-00001", "users")
BATCHES = {
    "autoscaling.knative.dev/class": "gnomon",
    "gnomon/autoscaler": "batch",
    "gnomon/max-batch": "8",
    "gnomon/max-wait-ms": "300",
    "gnomon/deadline-ms": "2000",
}
ENV = [{"name": "GNOMON_BATCH_TOKEN", "valueFrom": {"secretKeyRef": {"name": "gnomon-batch-token", "key": "gnomon-batch-token"}}}]
PLAN, OTHER = SetBufferPlan(4, 0.05), SetBufferPlan(6, 0.1)


class Played(Script):
    """Objects by kind, and news of each change of them."""

    def __init__(self) -> None:
        super().__init__([])
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self._news: dict[str, queue.SimpleQueue[bytes]] = {}
        self._version = 0

    def next(self, request: Asked) -> Any:
        kind = request.path.rsplit("/", 1)[-1]
        changes = self._news.setdefault(kind, queue.SimpleQueue())
        if "watch" in request.query:
            return iter(changes.get, b"over")
        items = [document for (of, _), document in list(self._objects.items()) if of == kind]
        return Answer({"kind": "List", "metadata": {"resourceVersion": str(self._version)}, "items": items})

    def put(self, kind: str, name: str, **document: Any) -> None:
        """Put an object into the cluster as this document describes it."""
        self._version += 1
        before = self._objects.get((kind, name))
        metadata = {"name": name, "namespace": KEY.namespace, "uid": name, "resourceVersion": str(self._version)}
        metadata |= document.pop("metadata", {})
        made = self._objects[kind, name] = {"metadata": metadata, **document}
        self._tell(kind, event("MODIFIED" if before else "ADDED", made))

    def remove(self, kind: str, name: str) -> None:
        self._version += 1
        gone = self._objects.pop((kind, name))
        gone["metadata"] |= {"resourceVersion": str(self._version)}
        self._tell(kind, event("DELETED", gone))

    def revision(self, **annotations: str) -> None:
        """A Revision that batches, with more annotations of ours."""
        said = BATCHES | {f"gnomon/{name.replace('_', '-')}": text for name, text in annotations.items()}
        spec = {"containers": [{"image": "example/body:1", "env": ENV}]}
        self.put("revisions", KEY.name, metadata={"annotations": said}, spec=spec)

    def plan(self, plan: SetBufferPlan | None, policy: str = "batch") -> None:
        """The status that the autoscaler class writes."""
        buffer = None if plan is None else BufferStatus(policy, plan)
        self.put("podautoscalers", KEY.name, status=with_buffer_plan({"desiredScale": 1}, buffer))

    def end(self) -> None:
        """End every watch."""
        for changes in self._news.values():
            changes.put(CLOSE)

    def _tell(self, kind: str, change: bytes) -> None:
        if kind in self._news:
            self._news[kind].put(change)


@pytest.fixture
def played() -> Iterator[Played]:
    made = Played()
    yield made
    made.end()


@contextlib.asynccontextmanager
async def gateway(played: Played) -> AsyncIterator[KnativeGateway]:
    with serving(played) as api:
        made = KnativeGateway(KnativeGatewayOptions(host=ADDRESS), Random(3), api=api)
        await made.start()
        try:
            yield made
        finally:
            await made.stop()


def in_force(of: KnativeGateway) -> SetBufferPlan | None:
    """The plan that the Revision's batches are made by; None while they are made as it says itself."""
    assert of.manager.directory.lookup(str(KEY)) is not None
    return of.manager.instances.plans().get(str(KEY))


async def served(of: KnativeGateway) -> None:
    await until(lambda: of.manager.directory.lookup(str(KEY)) is not None)


async def test_batches_are_made_by_the_plan_as_it_is_written_changed_and_taken_back(played: Played) -> None:
    played.revision()
    played.plan(PLAN)
    async with gateway(played) as served:
        assert in_force(served) == PLAN, "it was there before the gateway"
        played.plan(OTHER)
        await until(lambda: in_force(served) == OTHER)
        played.plan(None)
        await until(lambda: in_force(served) is None)
        played.plan(SetBufferPlan(2, 0.0))
        await until(lambda: in_force(served) == SetBufferPlan(2, 0.0))
        played.remove("podautoscalers", KEY.name)
        await until(lambda: in_force(served) is None)


async def test_a_plan_that_is_known_before_its_revision_waits_for_it(played: Played) -> None:
    async with gateway(played) as gateway_:
        played.plan(PLAN)
        await until(lambda: gateway_.plans.of(KEY) is not None)
        assert gateway_.manager.directory.lookup(str(KEY)) is None
        played.revision()
        await served(gateway_)
        await until(lambda: in_force(gateway_) == PLAN)
        played.remove("revisions", KEY.name)
        await until(lambda: gateway_.manager.directory.lookup(str(KEY)) is None)
        played.revision()
        await served(gateway_)
        await until(lambda: in_force(gateway_) == PLAN, "one of the same name")


async def test_a_plan_outlives_other_settings_and_is_cut_to_what_they_say(played: Played) -> None:
    played.revision()
    async with gateway(played) as served:
        played.plan(OTHER)
        await until(lambda: in_force(served) == OTHER)
        played.revision(queue_max_requests="50")
        await until(lambda: served.manager.directory.lookup(str(KEY)).settings.queue_max_requests == 50)  # type: ignore[union-attr]
        await until(lambda: in_force(served) == OTHER)
        played.revision(max_batch="4", deadline_ms="50")
        await until(lambda: in_force(served) == PLAN)
        played.revision(max_batch="16")
        await until(lambda: in_force(served) == OTHER)


async def test_another_policys_plan_and_what_is_none_are_left_alone(played: Played) -> None:
    played.revision()
    played.plan(PLAN, "batch+")
    async with gateway(played) as served:
        assert in_force(served) is None
        played.plan(PLAN)
        await until(lambda: in_force(served) == PLAN)
        played.revision(autoscaler="kpa", scheduler="fixed")
        await until(lambda: in_force(served) is None)
        played.revision()
        await until(lambda: in_force(served) == PLAN, "its own policy again")
        played.put("podautoscalers", KEY.name, status={"annotations": {ANNOTATION: "[" * 1000}})
        await until(lambda: in_force(served) is None)


async def test_a_gateway_that_hears_nothing_of_plans_is_not_to_be_led_to(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(played) as served:
        assert served.trouble == ""
        monkeypatch.setattr(type(served.plans), "silent_s", 100.0)
        assert served.trouble == "the API server has been silent for 100 s"


async def test_page_reports_batch_latencies(played: Played) -> None:
    played.revision()
    played.put("revisions", "g-00001", metadata={"annotations": BATCHES}, spec={"containers": [{"image": "plain"}]})
    async with gateway(played) as served, aiohttp.ClientSession(f"http://{ADDRESS}:{ACTIVATOR_METRICS_PORT}") as user:
        for name in (KEY.name, "g-00001"):
            runtime = served.manager.directory.lookup(f"{name}.{KEY.namespace}")
            assert runtime is not None
            for size in range(1, 9):
                runtime.latency.observe(runtime.variant, 1, size, 0.01 * size)

        async def metrics(*names: str) -> str:
            async with user.get("/metrics", params=[("name[]", name) for name in names]) as answer:
                assert answer.status == 200
                return await answer.text()

        alone, both, everything = await metrics(SECONDS), await metrics(FIGURE, SECONDS), await metrics()
        for page in (alone, both, everything):
            found = latency_from_text(page)
            assert found.keys() == {KEY}, "pods of the other one take no batches"
            assert found[KEY].latency_s == pytest.approx([0.01 * size for size in range(1, 9)], rel=0.05)
        assert (FIGURE in alone, FIGURE in both, FIGURE in everything) == (False, True, True)
        assert ("process_cpu" in both, "process_cpu" in everything) == (False, True)
        assert SECONDS not in await metrics(FIGURE)


POD = RevisionPod("users", "pod", KEY.name, "127.0.0.1", running=True, ready=True, ending=False, cores=1.0, effective_cores=1.0)
ONE, TWO = Pair(2, (1, 2), (0, 1, 1, 2)), Pair(1, (1, 2), (0, 0, 1, 1))


@dataclass
class PlayedBody:
    """Answers batches, and names the Shadows that it is said to have."""

    shadows: dict[str, Pair] = field(default_factory=dict)
    status: int = 200
    head: bytes | None = None

    async def answer(self, request: web.Request) -> web.Response:
        batch = decode(await request.read())
        said = [{"shadow": name, **pair_to_json(pair)} for name, pair in self.shadows.items()]
        head = json.dumps({"shadows": said} if said else {}).encode() if self.head is None else self.head
        members = [Member(200, 1, b"", member.body) for member in batch.members]
        body = encode(Frame(Kind.RESULT, batch.batch_id, batch.epoch, head=head, members=members))
        return web.Response(status=self.status, body=body)


class Listening(Recorder):
    """Hands on to the function's runtime what the gateway's listener does."""

    def __init__(self, runtime: FunctionRuntime) -> None:
        super().__init__()
        self._runtime = runtime

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None:
        super().instance_ready(instance, channel)
        self._runtime.instance_ready(instance, channel)

    def pair_changed(self, body: Instance) -> None:
        super().pair_changed(body)
        self._runtime.pair_changed(body.id, body.pair)


class Client:
    """Waits for the answer to its request."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(self, member: Member, head: bytes) -> None:
        del head
        self.answered.set_result(member.code)

    def refuse(self, error: GnomonError) -> None:
        self.answered.set_result(error.code)

    def stream(self, frame: Frame) -> None:
        raise AssertionError(frame)

    def broken(self) -> None:
        raise AssertionError("nothing streams")


@dataclass
class Stage:
    """A slot of a pod in which the played Body runs, and the gateway's runtime that makes its batches."""

    body: PlayedBody
    runtime: FunctionRuntime
    listener: Recorder
    slot: PodSlot

    async def ask(self) -> object:
        """A batch of one."""
        client, now_s = Client(), asyncio.get_running_loop().time()
        self.runtime.submit(Request(self.runtime.event_lane, now_s, now_s + 30.0, responder=client))
        async with asyncio.timeout(30):
            return await client.answered

    @property
    def pair(self) -> Pair | None:
        """For what the next batch is made."""
        return self.runtime.dispatcher.workers.by_id["slot"].pair


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    body, application = PlayedBody(), web.Application()
    application.router.add_post("/gnomon/batch", body.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    runtime = FunctionRuntime(KEY, Settings(), Immediate(), LearnedLatency())
    listener = Listening(runtime)
    spec = read_deployment({"service": KEY.name, "namespace": KEY.namespace, "image": "x"})
    facts = RevisionFacts(spec, 0.0, buffered=True, token_key="gnomon-batch-token", places=1)
    instance = Instance("slot", str(KEY), 1, "node", 1, 0, InstanceState.STARTING, 0.0)
    slot = PodSlot(instance, facts, POD, listener, lambda _: None)
    async with open_session() as session:
        context = ChannelContext(lambda: True, lambda _: None, 30.0, peer="pod")
        slot.ready(PodChannel(Route(session, address, _there, random.Random(1)), context, "token", slot.end, slot.works_with))
        yield Stage(body, runtime, listener, slot)
        slot.end("the test ends")
    runtime.close()
    await runner.cleanup()


async def _there() -> None: ...


async def test_batches_are_made_for_a_body_and_the_shadows_that_it_names(stage: Stage) -> None:
    assert (await stage.ask(), stage.pair) == (200, None)
    for shadows, pair in (
        ({"s-1": ONE}, ONE),
        ({"s-1": ONE, "s-2": TWO}, replace(ONE, others=(TWO,))),
        ({"s-2": TWO, "s-1": ONE}, replace(TWO, others=(ONE,))),
        ({"s-2": TWO}, TWO),
        ({}, None),
    ):
        stage.body.shadows = shadows
        assert (await stage.ask(), stage.pair) == (200, pair)
        batches = stage.runtime.metrics.pairs.batches
        assert (await stage.ask(), stage.pair) == (200, pair), "said again, it is no news"
        assert stage.runtime.metrics.pairs.batches - batches == (pair is not None), "counted as one of the pair"
    assert [list(body.shadows) for body in stage.listener.pairs] == [["s-1"], ["s-1", "s-2"], ["s-2", "s-1"], ["s-2"], []]


async def test_a_batch_that_brings_news_teaches_nothing_and_the_next_one_does(stage: Stage) -> None:
    """The batch was sent to a Body alone; whether its Shadow computed a part is unknown."""
    latency, variant = stage.runtime.latency, stage.runtime.variant
    stage.body.shadows = {"s-1": ONE}
    await stage.ask()
    assert latency.seconds(variant, 1, 1) is None
    assert latency.seconds(variant, 1, 1, ONE) is None
    await stage.ask()
    assert latency.seconds(variant, 1, 1) is None
    assert latency.seconds(variant, 1, 1, ONE) is not None


async def test_gateway_error_changes_no_shadow(stage: Stage) -> None:
    stage.body.shadows = {"s-1": ONE}
    await stage.ask()
    stage.body.status = 503
    assert (await stage.ask(), stage.pair) == (503, ONE), "queue-proxy has refused it"
    stage.body.status, stage.body.head = 200, b'{"shadows": [{"shadow": "s-1", "cores": -1}]}'
    assert (await stage.ask(), stage.pair) == (200, None), "it says nonsense"


async def test_a_slot_that_is_opened_again_is_told_anew(stage: Stage) -> None:
    stage.body.shadows = {"s-1": ONE}
    await stage.ask()
    stage.slot.end("lost")
    stage.slot.works_with({})
    assert len(stage.listener.pairs) == 1, "of one that has gone nothing is told"


F, G = FunctionKey("f-00001", "users"), FunctionKey("g-00001", "users")
FIRST, SECOND, ENDING = "127.0.83.1", "127.0.83.2", "127.0.83.3"


def pod(ip: str, *, ready: bool = True, ending: bool = False) -> RevisionPod:
    return RevisionPod("knative-serving", ip, "", ip, running=True, ready=ready, ending=ending)


@contextlib.asynccontextmanager
async def page(ip: str, text: str) -> AsyncIterator[None]:
    """A gateway that says this where it is asked for what it has learned."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=text if request.query.getall("name[]") == [SECONDS] else "")

    application = web.Application()
    application.router.add_get("/metrics", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, ip, ACTIVATOR_METRICS_PORT).start()
    try:
        yield
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def asking(pods: list[RevisionPod]) -> AsyncIterator[Gateways]:
    made = Gateways(lambda: pods, WallClock())
    async with aiohttp.ClientSession() as session:
        made.start(session)
        try:
            yield made
        finally:
            await made.stop()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "PERIOD_S", 0.02)


@pytest.mark.usefixtures("often")
async def test_a_curve_is_the_mean_of_those_that_know_it() -> None:
    pods = [pod(FIRST), pod(SECOND)]
    first = latency_to_text({F: ObservedLatency((0.1, 0.2, 0.3), 0.02), G: ObservedLatency((1.0,))})
    second = latency_to_text({F: ObservedLatency((0.2, 0.2), 0.06)})
    async with page(FIRST, first), page(SECOND, second), asking(pods) as made:
        await until(lambda: made.observed_latency(F) == ObservedLatency((pytest.approx(0.15), 0.2), 0.06))
        assert made.observed_latency(G) == ObservedLatency((1.0,))
        assert made.observed_latency(FunctionKey("h-00001", "users")) is None
        assert made.queues == 2

        # One goes, and what it knew with it. One that ends takes no requests any more.
        pods[:] = [pod(SECOND), pod(ENDING, ending=True)]
        await until(lambda: made.observed_latency(F) == ObservedLatency((0.2, 0.2), 0.06))
        await until(lambda: made.observed_latency(G) is None)


@pytest.mark.usefixtures("often")
async def test_silent_gateway_keeps_its_last_report() -> None:
    pods = [pod(FIRST)]
    async with asking(pods) as made:
        async with page(FIRST, latency_to_text({F: ObservedLatency((0.1,))})):
            await until(lambda: made.observed_latency(F) is not None)
        await asyncio.sleep(0.1)  # several questions that nobody answers
        assert made.observed_latency(F) == ObservedLatency((0.1,))


@pytest.mark.usefixtures("often")
async def test_a_page_of_something_else_teaches_nothing_and_hinders_nothing() -> None:
    pods = [pod(FIRST), pod(SECOND)]
    hostile = f'{SECONDS}{{kn_revision_name="f-00001"}} 1\n{SECONDS}{{batch_size="x"}} nan\n' + "\x00" * 99
    async with page(FIRST, hostile), page(SECOND, latency_to_text({F: ObservedLatency((0.1,))})), asking(pods) as made:
        await until(lambda: made.observed_latency(F) == ObservedLatency((0.1,)))


class Clock(WallClock):
    """Stands still until it is moved."""

    time_s = 100.0

    def now_s(self) -> float:
        return self.time_s


@pytest.mark.usefixtures("often")
def test_new_gateway_counts_at_once_and_a_missing_one_later() -> None:
    """Plans for all of them would be made anew at each step of a rollout, and pods made and ended by them."""
    pods, clock = [pod(FIRST), pod(SECOND)], Clock()
    made = Gateways(lambda: pods, clock)
    seen = []
    for count in (2, 3, 2, 3, 2):
        pods[:] = [pod(f"127.0.83.{number}") for number in range(count)]
        clock.time_s += 5.0
        seen.append(made.queues)
    assert seen == [2, 3, 3, 3, 3]
    clock.time_s += FEWER_AFTER_S - 6.0
    assert made.queues == 3
    clock.time_s += 1.0
    assert made.queues == 2
    pods.append(pod(ENDING, ending=True))
    assert made.queues == 2, "one that ends takes no requests any more"


@pytest.mark.usefixtures("often")
async def test_without_a_gateway_there_is_one_queue() -> None:
    async with asking([]) as made:
        assert made.queues == 1
