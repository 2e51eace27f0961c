"""A pod's Body says with its answers whom it works with, and batches are made for all of them from the next one on.

The answers come over HTTP, as through queue-proxy, from a Body that is played.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.interfaces import BatchChannel
from gnomon_core.pairs import Pair, pair_to_json
from gnomon_core.settings import Settings
from gnomon_core.wire import Frame, Kind, Member, decode, encode
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.queueing.request import Request
from gnomon_gateway.scheduling.basic import Immediate
from gnomon_platforms.common import open_session
from gnomon_platforms.knative.autoscaler.objects import RevisionPod
from gnomon_platforms.knative.batching.channel import PodChannel, PodSlot
from gnomon_platforms.knative.batching.revisions import RevisionFacts
from gnomon_platforms.provider.channel import Around, Route
from gnomon_platforms.testing import Recorder

KEY = FunctionKey("f-00001", "users")
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
        around = Around(lambda: True, lambda _: None, 30.0, who="pod")
        slot.ready(PodChannel(Route(session, address, _there, random.Random(1)), around, "token", slot.end, slot.works_with))
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
    """It was sent to a Body alone, and nobody knows with what it was computed."""
    latency, variant = stage.runtime.latency, stage.runtime.variant
    stage.body.shadows = {"s-1": ONE}
    await stage.ask()
    assert latency.seconds(variant, 1, 1) is None
    assert latency.seconds(variant, 1, 1, ONE) is None
    await stage.ask()
    assert latency.seconds(variant, 1, 1) is None
    assert latency.seconds(variant, 1, 1, ONE) is not None


async def test_what_is_no_answer_of_the_body_says_nothing_of_its_shadows(stage: Stage) -> None:
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
