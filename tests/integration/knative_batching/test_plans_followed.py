"""A gateway makes batches by the plan that a Revision's PodAutoscaler has. The API server is played, and says what it is told to.

What is played is what Knative and the autoscaler class write; the whole gateway is real.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any

import aiohttp
import pytest

from gnomon_core.functions import FunctionKey
from gnomon_core.scaling import SetBufferPlan
from gnomon_platforms.knative.autoscaler.metrics import FIGURE, SECONDS, learned
from gnomon_platforms.knative.buffer_status import ANNOTATION, BufferStatus, told_with
from gnomon_platforms.knative.resources import ACTIVATOR_METRICS_PORT
from gnomon_server.knative_gateway import KnativeGateway, KnativeGatewayOptions
from tests.integration.kubernetes_platform.scripted import CLOSE, Answer, Asked, Script, event, serving
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

    def next(self, asked: Asked) -> Any:
        kind = asked.path.rsplit("/", 1)[-1]
        news = self._news.setdefault(kind, queue.SimpleQueue())
        if "watch" in asked.query:
            return iter(news.get, b"over")
        items = [one for (of, _), one in list(self._objects.items()) if of == kind]
        return Answer({"kind": "List", "metadata": {"resourceVersion": str(self._version)}, "items": items})

    def put(self, kind: str, name: str, **document: Any) -> None:
        """It is there as this says."""
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
        """One that batches, with more annotations of ours."""
        said = BATCHES | {f"gnomon/{name.replace('_', '-')}": text for name, text in annotations.items()}
        spec = {"containers": [{"image": "example/body:1", "env": ENV}]}
        self.put("revisions", KEY.name, metadata={"annotations": said}, spec=spec)

    def plan(self, plan: SetBufferPlan | None, policy: str = "batch") -> None:
        """What the autoscaler class writes."""
        buffer = None if plan is None else BufferStatus(policy, plan)
        self.put("podautoscalers", KEY.name, status=told_with({"desiredScale": 1}, buffer))

    def end(self) -> None:
        """End every watch."""
        for news in self._news.values():
            news.put(CLOSE)

    def _tell(self, kind: str, news: bytes) -> None:
        if kind in self._news:
            self._news[kind].put(news)


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
    assert of.manager.lookup(str(KEY)) is not None
    return of.manager.instances.plans().get(str(KEY))


async def served(of: KnativeGateway) -> None:
    await until(lambda: of.manager.lookup(str(KEY)) is not None)


async def test_batches_are_made_by_the_plan_as_it_is_written_changed_and_taken_back(played: Played) -> None:
    played.revision()
    played.plan(PLAN)
    async with gateway(played) as one:
        assert in_force(one) == PLAN, "it was there before the gateway"
        played.plan(OTHER)
        await until(lambda: in_force(one) == OTHER)
        played.plan(None)
        await until(lambda: in_force(one) is None)
        played.plan(SetBufferPlan(2, 0.0))
        await until(lambda: in_force(one) == SetBufferPlan(2, 0.0))
        played.remove("podautoscalers", KEY.name)
        await until(lambda: in_force(one) is None)


async def test_a_plan_that_is_known_before_its_revision_waits_for_it(played: Played) -> None:
    async with gateway(played) as one:
        played.plan(PLAN)
        await until(lambda: one.plans.of(KEY) is not None)
        assert one.manager.lookup(str(KEY)) is None
        played.revision()
        await served(one)
        await until(lambda: in_force(one) == PLAN)
        played.remove("revisions", KEY.name)
        await until(lambda: one.manager.lookup(str(KEY)) is None)
        played.revision()
        await served(one)
        await until(lambda: in_force(one) == PLAN, "one of the same name")


async def test_a_plan_outlives_other_settings_and_is_cut_to_what_they_say(played: Played) -> None:
    played.revision()
    async with gateway(played) as one:
        played.plan(OTHER)
        await until(lambda: in_force(one) == OTHER)
        played.revision(queue_max_requests="50")
        await until(lambda: one.manager.lookup(str(KEY)).settings.queue_max_requests == 50)  # type: ignore[union-attr]
        await until(lambda: in_force(one) == OTHER)
        played.revision(max_batch="4", deadline_ms="50")
        await until(lambda: in_force(one) == PLAN)
        played.revision(max_batch="16")
        await until(lambda: in_force(one) == OTHER)


async def test_another_policys_plan_and_what_is_none_are_left_alone(played: Played) -> None:
    played.revision()
    played.plan(PLAN, "batch+")
    async with gateway(played) as one:
        assert in_force(one) is None
        played.plan(PLAN)
        await until(lambda: in_force(one) == PLAN)
        played.revision(autoscaler="kpa", scheduler="fixed")
        await until(lambda: in_force(one) is None)
        played.revision()
        await until(lambda: in_force(one) == PLAN, "its own policy again")
        played.put("podautoscalers", KEY.name, status={"annotations": {ANNOTATION: "[" * 1000}})
        await until(lambda: in_force(one) is None)


async def test_a_gateway_that_hears_nothing_of_plans_is_not_to_be_led_to(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(played) as one:
        assert one.trouble == ""
        monkeypatch.setattr(type(one.plans), "silent_s", 100.0)
        assert one.trouble == "the API server has been silent for 100 s"


async def test_its_page_tells_what_batches_take_with_everything_else_or_alone(played: Played) -> None:
    played.revision()
    played.put("revisions", "g-00001", metadata={"annotations": BATCHES}, spec={"containers": [{"image": "plain"}]})
    async with gateway(played) as one, aiohttp.ClientSession(f"http://{ADDRESS}:{ACTIVATOR_METRICS_PORT}") as user:
        for name in (KEY.name, "g-00001"):
            runtime = one.manager.lookup(f"{name}.{KEY.namespace}")
            assert runtime is not None
            for size in range(1, 9):
                runtime.latency.observe(runtime.variant, 1, size, 0.01 * size)

        async def told(*names: str) -> str:
            async with user.get("/metrics", params=[("name[]", name) for name in names]) as answer:
                assert answer.status == 200
                return await answer.text()

        alone, both, everything = await told(SECONDS), await told(FIGURE, SECONDS), await told()
        for page in (alone, both, everything):
            found = learned(page)
            assert found.keys() == {KEY}, "pods of the other one take no batches"
            assert found[KEY].latency_s == pytest.approx([0.01 * size for size in range(1, 9)], rel=0.05)
        assert (FIGURE in alone, FIGURE in both, FIGURE in everything) == (False, True, True)
        assert ("process_cpu" in both, "process_cpu" in everything) == (False, True)
        assert SECONDS not in await told(FIGURE)
