"""Plans of buffers on Knative, on a real API server: the class plans, two gateways batch by it and tell what batches take."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from gnomon_core.functions import FunctionKey
from gnomon_core.scaling import SetBufferPlan
from gnomon_platforms.knative.autoscaler import metrics as signals
from gnomon_platforms.knative.buffer_status import buffer_of
from gnomon_server.knative_gateway import KnativeGateway
from tests.cluster.client import Cluster
from tests.kubernetes import planned
from tests.kubernetes.knative_autoscaler.played_knative import SERVING, PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import QUICK, running, until
from tests.kubernetes.knative_batching.conftest import ENV, Pods
from tests.kubernetes.knative_batching.test_serving_revisions import all_of, ingress, serving

pytestmark = pytest.mark.timeout(240)
REVISION = "f-00001"
BATCHES = {
    **QUICK,
    "autoscaling.knative.dev/min-scale": "1",
    "gnomon/autoscaler": planned.NAME,
    "gnomon/max-batch": "8",
    "gnomon/scheduler": "fixed",
    "gnomon/max-wait-ms": "200",
}
EIGHT = [b"%d" % number for number in range(8)]
PLAN = SetBufferPlan(planned.MOST, 0.05)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(planned.install(tmp_path / "site")))
    monkeypatch.setattr(signals, "PERIOD_S", 0.5)


def plan_of(knative: PlayedKnative) -> SetBufferPlan | None:
    """The plan that the class has written."""
    found = buffer_of(knative.pa(REVISION).get("status") or {})
    return None if found is None else found.plan


def in_force(gateways: list[KnativeGateway], knative: PlayedKnative) -> set[SetBufferPlan | None]:
    """By which plans the gateways batch."""
    deployed = [gateway.manager._functions.get(FunctionKey(REVISION, knative.namespace)) for gateway in gateways]
    return {None if function is None else function.plan for function in deployed}


async def test_both_gateways_batch_by_the_plan_until_the_policy_is_another_one(
    knative_kinds: Cluster, knative: PlayedKnative, pods: Pods
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(contextlib.AsyncExitStack())
        leader = await first.enter_async_context(running(knative_kinds, knative, policies=(planned.NAME,)))
        gateways = [
            await stack.enter_async_context(serving(knative_kinds, knative, pod=name, policies=(planned.NAME,)))
            for name in ("gateway-a", "gateway-b")
        ]
        await asyncio.to_thread(knative.revision, REVISION, BATCHES, env=ENV)
        users = [await stack.enter_async_context(ingress(gateway, knative, REVISION)) for gateway in gateways]
        for user in users:
            # Whatever comes before there is a plan is answered as well.
            assert await all_of(user, EIGHT) == [(200, body) for body in EIGHT]
        await until(lambda: plan_of(knative) == PLAN, "a plan")
        await until(lambda: in_force(gateways, knative) == {PLAN}, "both to know it")
        for user in users:
            pods.seen.clear()
            assert await all_of(user, EIGHT) == [(200, body) for body in EIGHT]
            assert max(pods.batches) == planned.MOST
            assert sum(pods.batches) == len(EIGHT)

        # What batches take is known where it is planned, and that there are two queues.
        name = f"{REVISION}.{knative.namespace}"
        await until(lambda: (load := leader.platform.load(name)) is not None and len(load.latency_s) == 8, "a curve")
        load = leader.platform.load(name)
        assert load is not None
        assert (load.queues, load.plan) == (2, PLAN)

        # The class ends: gateways go on by the plan, and the next leader finds it.
        await first.aclose()
        pods.seen.clear()
        assert await all_of(users[0], EIGHT) == [(200, body) for body in EIGHT]
        assert max(pods.batches) == planned.MOST
        second = await stack.enter_async_context(running(knative_kinds, knative, policies=(planned.NAME,)))
        await until(lambda: (load := second.platform.load(name)) is not None and load.plan == PLAN, "the next one to know it")

        # Another policy has none: batches are made as the Revision says.
        patch = {"metadata": {"annotations": {"gnomon/autoscaler": "kpa"}}}
        custom = knative_kinds.custom
        await asyncio.to_thread(custom.patch_namespaced_custom_object, *SERVING, knative.namespace, "revisions", REVISION, patch)  # type: ignore[call-arg]
        await until(lambda: plan_of(knative) is None, "the plan to go")
        await until(lambda: in_force(gateways, knative) == {None}, "both to know that")
        pods.seen.clear()
        assert await all_of(users[1], EIGHT) == [(200, body) for body in EIGHT]
        assert pods.batches == [8]
