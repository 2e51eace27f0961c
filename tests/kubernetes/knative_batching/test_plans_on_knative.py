"""`batch` on Knative, on a real API server: two gateways tell what batches take, the class plans, both batch by its plan."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import aiohttp
import pytest

from deploy.test_cluster.clusters import Cluster
from gnomon_autoscaler.policies.batch import policy as batch_policy
from gnomon_cli.knative_gateway import KnativeGateway
from gnomon_core.functions import FunctionKey
from gnomon_core.scaling import SetBufferPlan
from gnomon_platforms.knative.buffer_status import buffer_of
from gnomon_platforms.knative.scaling.signals import gateways as signals
from tests.kubernetes.knative_autoscaler.played_knative import SERVING, PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import QUICK, running, until
from tests.kubernetes.knative_batching.conftest import ENV, Pods
from tests.kubernetes.knative_batching.test_serving_revisions import call, ingress, serving

pytestmark = pytest.mark.timeout(240)
REVISION = "f-00001"
HANDLER = """
import time


def handle(event, context):
    return handle_batch([event], context)[0]


def handle_batch(events, context):
    time.sleep(0.03)
    return [event.body for event in events]
"""
"""A batch takes as long as one request: full batches are the cheapest."""
RATE_RPS = 80.0
BATCHES = {
    **QUICK,
    "autoscaling.knative.dev/min-scale": "1",
    "gnomon/autoscaler": "batch",
    "gnomon/max-batch": "8",
    "gnomon/slo-ms": "500",
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first plan after three seconds instead of thirty."""
    monkeypatch.setattr(batch_policy, "FIRST_S", 3.0)
    monkeypatch.setattr(signals, "PERIOD_S", 0.5)


class Arrivals:
    """Requests at random moments, each sent to a gateway at random. `told` is what did not come back as it was sent."""

    def __init__(self, users: Sequence[aiohttp.ClientSession]) -> None:
        self._users, self._chance = users, Random(11)
        self.answered = 0
        self.told: list[tuple[int, bytes]] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._chance.expovariate(RATE_RPS))
                group.create_task(self._ask(self._chance.choice(self._users)))

    async def _ask(self, user: aiohttp.ClientSession) -> None:
        answer = await call(user, b"x")
        self.answered += 1
        if answer != (200, b"x"):
            self.told.append(answer)


@contextlib.asynccontextmanager
async def arriving(gateways: Sequence[KnativeGateway], knative: PlayedKnative) -> AsyncIterator[Arrivals]:
    async with contextlib.AsyncExitStack() as stack:
        users = [await stack.enter_async_context(ingress(one, knative, REVISION)) for one in gateways]
        arrivals = Arrivals(users)
        coming = asyncio.create_task(arrivals.run())
        yield arrivals
        coming.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await coming


def plan_of(knative: PlayedKnative) -> SetBufferPlan | None:
    """What the class has written."""
    found = buffer_of(knative.pa(REVISION).get("status") or {})
    assert found is None or found.policy == "batch"
    return None if found is None else found.plan


def in_force(gateway: KnativeGateway, knative: PlayedKnative) -> SetBufferPlan | None:
    deployed = gateway.manager._functions.get(FunctionKey(REVISION, knative.namespace))
    return None if deployed is None else deployed.plan


async def test_both_gateways_batch_by_the_plan_for_two_until_the_policy_is_another_one(
    knative_kinds: Cluster, knative: PlayedKnative, pods: Pods, tmp_path: Path
) -> None:
    (tmp_path / "handler.py").write_text(HANDLER)
    async with contextlib.AsyncExitStack() as stack:
        leader = await stack.enter_async_context(contextlib.AsyncExitStack())
        await leader.enter_async_context(running(knative_kinds, knative))
        names = ("gateway-a", "gateway-b")
        gateways = [await stack.enter_async_context(serving(knative_kinds, knative, pod=name)) for name in names]
        await asyncio.to_thread(knative.revision, REVISION, BATCHES, env=ENV)
        await until(lambda: knative.condition(REVISION, "Ready")["status"] == "True", "Ready")
        async with arriving(gateways, knative) as arrivals:
            # Two queues of forty requests a second each. Where the machine stutters the rate seems to change, and it plans anew.
            await until(lambda: "2 queues" in knative.condition(REVISION, "ScalingPolicy")["message"], "a plan for two")
            await until(lambda: {in_force(one, knative) for one in gateways} == {plan_of(knative)}, "both to know it")
            pods.seen.clear()
            await until(lambda: len(pods.batches) >= 40, "batches by it")
            assert sum(pods.batches) / len(pods.batches) > 1.5, "requests have waited for each other"

            # The class ends: gateways go on by the plan, and the next leader leaves it as it is until it has one of its own.
            await leader.aclose()
            left = plan_of(knative)
            assert left is not None
            await until(lambda: {in_force(one, knative) for one in gateways} == {left}, "both to know the last one")
            await leader.enter_async_context(running(knative_kinds, knative))
            before = arrivals.answered
            await until(lambda: arrivals.answered > before + 50, "answers under the next leader")
            assert plan_of(knative) is not None
            assert None not in [in_force(one, knative) for one in gateways]

            # Another policy has no plan.
            patch = {"metadata": {"annotations": {"gnomon/autoscaler": "kpa"}}}
            custom = knative_kinds.custom
            await asyncio.to_thread(
                custom.patch_namespaced_custom_object, *SERVING, knative.namespace, "revisions", REVISION, patch
            )
            await until(lambda: plan_of(knative) is None, "the plan to go")
            await until(lambda: [in_force(one, knative) for one in gateways] == [None, None], "both to know that")
        assert arrivals.told == []
