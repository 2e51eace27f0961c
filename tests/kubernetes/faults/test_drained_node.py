"""A node is drained: its pods are evicted as their budgets allow, others take their place, and no batch is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kubernetes import client

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.interfaces import BatchChannel
from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from tests.cluster.client import Cluster, until
from tests.contracts.test_platform import deployment, instance_of
from tests.kubernetes.faults.conftest import NAMESPACE, Breakable
from tests.kubernetes.faults.serving import Load, load
from tests.platform_testing import Recorder
from tests.waiting import until as soon

LIMIT_S = 120.0
INSTANCES = 4
NOT_FOUND, TOO_MANY_REQUESTS = 404, 429


class Replacing(Recorder):
    """Replace an instance that has ended by itself, as the autoscaler does."""

    def __init__(self, sent: Load) -> None:
        super().__init__()
        self.platform: OpenFaasPlatform | None = None
        self.ending = False
        self._sent = sent
        self._tasks: set[asyncio.Task[None]] = set()

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None:
        super().instance_ready(instance, channel)
        self._sent.add(instance.id, channel)

    def instance_gone(self, instance_id: str, reason: str) -> None:
        super().instance_gone(instance_id, reason)
        self._sent.left.add(instance_id)
        if not self.ending:
            task = asyncio.get_running_loop().create_task(self.begin())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def begin(self) -> None:
        """Ask for an instance, and again where there is no room at the moment."""
        assert self.platform is not None
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    await self.platform.create(instance_of(deployment()))
                except GnomonError:
                    await asyncio.sleep(0.2)
                else:
                    return


@asynccontextmanager
async def serving(breakable: Breakable, sent: Load) -> AsyncIterator[Replacing]:
    """Four instances under load, on two nodes."""
    api = await asyncio.to_thread(connect, breakable.plane.kubeconfig)
    listener = Replacing(sent)
    listener.platform = OpenFaasPlatform(api, OpenFaasOptions(adopting_s=0.0))
    await listener.platform.start(listener)
    try:
        for _ in range(INSTANCES):
            await listener.begin()
        await listener.until(lambda: len(listener.ready) == INSTANCES, LIMIT_S)
        yield listener
    finally:
        listener.ending = True
        await listener.platform.stop()
        api.close()


async def evicted(cluster: Cluster, node: str) -> int:
    """Evict every pod of a node, all at once and again where a budget refuses, as `kubectl drain` does; how often one refused."""
    refusals = 0

    def pods() -> list[Any]:
        found = cluster.core.list_namespaced_pod(NAMESPACE, field_selector=f"spec.nodeName={node}").items
        return [pod for pod in found if pod.metadata.deletion_timestamp is None]

    def refused(pod: Any) -> bool:
        body = client.V1Eviction(metadata=client.V1ObjectMeta(name=pod.metadata.name, namespace=NAMESPACE))
        try:
            cluster.core.create_namespaced_pod_eviction(pod.metadata.name, NAMESPACE, body)
        except client.ApiException as error:
            if error.status not in (NOT_FOUND, TOO_MANY_REQUESTS):
                raise
            return bool(error.status == TOO_MANY_REQUESTS)
        return False

    async with asyncio.timeout(LIMIT_S):
        while left := await asyncio.to_thread(pods):
            refusals += sum([await asyncio.to_thread(refused, pod) for pod in left])
            await asyncio.sleep(0.2)
    return refusals


async def test_a_drained_node_costs_no_batch(breakable: Breakable) -> None:
    cluster, [drained, other] = breakable.cluster, breakable.kubelets
    async with load() as sent, serving(breakable, sent) as listener:
        assert {instance.node for instance in listener.ready.values()} == {drained.name, other.name}
        await sent.more(50, LIMIT_S)
        policy = client.PolicyV1Api(cluster.api)

        def allowed() -> bool:
            status = policy.read_namespaced_pod_disruption_budget("echo", NAMESPACE).status
            return status is not None and status.disruptions_allowed == 1

        await asyncio.to_thread(until, allowed, "the budget to be counted", LIMIT_S)
        await asyncio.to_thread(cluster.core.patch_node, drained.name, {"spec": {"unschedulable": True}})
        # A successor that is sent there all the same, because the news are on their way, would be evicted as well.
        platform = listener.platform
        assert platform is not None
        await soon(lambda: drained.name not in {node.name for node in platform.nodes()}, "the platform does not know", LIMIT_S)
        # Two are there, and one at a time may go: the second has to wait until the first has a successor that serves.
        assert await evicted(cluster, drained.name) > 0
        await listener.until(lambda: len(listener.ready.keys() - listener.gone.keys()) == INSTANCES, LIMIT_S)
        serving_now = {instance.id: instance.node for instance in platform.instances("echo.openfaas-fn")}
        assert set(serving_now.values()) == {other.name}
        assert len(serving_now) == INSTANCES
        await sent.more(50, LIMIT_S)
        assert len(listener.gone) == INSTANCES // 2
        # What is in flight when the platform stops is lost.
        await sent.end()
    assert sent.lost == 0, listener.gone
