"""Kubernetes places the pods, also within a quota: the real scheduler and controllers decide, on nodes that tests play."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.kubernetes.objects.names import DELETION_COST
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from tests.cluster.client import Cluster
from tests.cluster.client import until as found
from tests.contracts.test_platform import deployment, instance_of
from tests.kubernetes.openfaas.conftest import NAMESPACE
from tests.kubernetes.openfaas.kubelet import Kubelet
from tests.kubernetes.openfaas.test_platform_on_kubernetes import begun
from tests.platform_testing import answers, request_frame, send
from tests.waiting import until

FUNCTION = "echo.openfaas-fn"
THREE_CORES = {"requests": {"cpu": "3"}}
"""The node of these tests has eight: two such pods have room."""


@pytest.fixture
def late(controlled: Cluster, echo_handler: Path) -> Iterator[Kubelet]:
    """A second node, which a test adds as a cluster autoscaler does."""
    node = Kubelet(controlled.api, "node-late", echo_handler, second_octet=3)
    yield node
    if node.started:
        node.stop()


def pods(core: Any) -> list[Any]:
    found = core.list_namespaced_pod(NAMESPACE, label_selector="faas_function=echo").items
    return [pod for pod in found if pod.metadata.deletion_timestamp is None]


async def test_pods_without_room_are_pending_with_the_reason_until_a_node_is_added(
    controlled: Cluster, kubelet: Kubelet, late: Kubelet, core: Any
) -> None:
    platform, listener = await begun(controlled)
    spec = deployment(**THREE_CORES)
    made = [await platform.create(instance_of(spec)) for _ in range(4)]
    await until(lambda: len(listener.ready) == 2, "two do not serve")

    def pending() -> list[Any]:
        return [pod for pod in pods(core) if pod.status.phase == "Pending" and pod.spec.node_name is None]

    await until(lambda: len(pending()) == 2, "no pod waits for room")
    # This is what a cluster autoscaler acts on, and what describe, the readiness message and the Event say.
    await until(lambda: "Insufficient cpu" in platform.trouble(FUNCTION), "the platform does not say why")

    def events() -> set[tuple[str, str]]:
        return {(event.involved_object.kind, event.reason) for event in core.list_namespaced_event(NAMESPACE).items}

    await until(lambda: {("Pod", "FailedScheduling"), ("Deployment", "NoCapacity")} <= events(), "no Event says why")
    await asyncio.to_thread(late.start)
    await until(lambda: len(listener.ready) == 4, "the new node is not used", 120.0)
    assert platform.trouble(FUNCTION) == ""
    assert sorted(instance.node for instance in platform.instances(FUNCTION)) == ["node-a", "node-a", "node-late", "node-late"]
    for instance in made:
        await platform.destroy(instance.id)
        assert await listener.reason(instance.id) == "stopped"
    await platform.stop()


async def test_the_pod_with_the_lowest_deletion_cost_goes(controlled: Cluster, kubelet: Kubelet, core: Any) -> None:
    platform, listener = await begun(controlled)
    made = [await platform.create(instance_of(deployment())) for _ in range(4)]
    for instance in made:
        await listener.channel(instance.id)
    owners = {pod.metadata.annotations["gnomon/instance"]: pod.metadata.name for pod in pods(core)}
    assert set(owners) == {instance.id for instance in made}
    victims, left = made[1:3], [made[0], made[3]]
    for instance in victims:
        await platform.destroy(instance.id)
        assert await listener.reason(instance.id) == "stopped"
    await until(
        lambda: {pod.metadata.name for pod in pods(core)} == {owners[instance.id] for instance in left}, "another pod went"
    )
    assert all(int(pod.metadata.annotations[DELETION_COST]) > 0 for pod in pods(core))
    for instance in left:
        assert answers(await send(listener.channels[instance.id], request_frame(b"still"))) == [(200, b"still")]
    assert set(listener.gone) == {victim.id for victim in victims}
    await platform.stop()


async def test_an_update_without_room_replaces_one_pod_after_the_other(controlled: Cluster, kubelet: Kubelet, core: Any) -> None:
    """Two pods fill the node. The gateway keeps the old ones until the new serve, so an old pod has to make room first."""
    platform, listener = await begun(controlled, OpenFaasOptions(adopting_s=0.0, room_timeout_s=1.0))
    old = [await platform.create(instance_of(deployment(**THREE_CORES))) for _ in range(2)]
    for instance in old:
        await listener.channel(instance.id)
    newer = deployment(**THREE_CORES, envVars={"newer": "1"})
    new = [await platform.create(instance_of(newer, version=2)) for _ in range(2)]
    for instance in new:
        assert answers(await send(await listener.channel(instance.id), request_frame(b"new"))) == [(200, b"new")]
    assert set(listener.gone) == {instance.id for instance in old}

    def unavailable() -> Any:
        return controlled.apps.read_namespaced_deployment("echo", NAMESPACE).spec.strategy.rolling_update.max_unavailable

    await until(lambda: unavailable() == 0, "later updates would not keep old pods either")
    await platform.stop()


@contextmanager
def bounded(cluster: Cluster, **hard: str) -> Iterator[Cluster]:
    """With a quota of so much."""
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {name.replace("_", "."): most for name, most in hard.items()}}}
    cluster.core.create_namespaced_resource_quota(NAMESPACE, quota)
    yield cluster
    cluster.core.delete_namespaced_resource_quota("small", NAMESPACE)


@pytest.fixture
def two_pods(controlled: Cluster, kubelet: Kubelet) -> Iterator[Cluster]:
    del kubelet
    with bounded(controlled, pods="2") as cluster:
        yield cluster


@pytest.fixture
def two_cores(controlled: Cluster, kubelet: Kubelet) -> Iterator[Cluster]:
    del kubelet
    with bounded(controlled, limits_cpu="2") as cluster:
        yield cluster


async def test_a_victim_goes_and_another_version_comes_where_no_more_pods_can_be_made(two_pods: Cluster) -> None:
    platform, listener = await begun(two_pods)
    first, second, third = [await platform.create(instance_of(deployment())) for _ in range(3)]
    await until(lambda: len(listener.ready) == 2, "two do not serve")
    [waiting] = {first.id, second.id, third.id} - set(listener.ready)

    def told_of() -> bool:
        events = two_pods.core.list_namespaced_event(NAMESPACE).items
        return any((event.involved_object.kind, event.reason) == ("Deployment", "FailedCreate") for event in events)

    await asyncio.to_thread(found, told_of, "the Event")
    # The load falls.
    kept, victim = sorted(listener.ready)
    for instance in (waiting, victim):
        await platform.destroy(instance)
    assert await listener.reason(victim) == "stopped"
    assert answers(await send(listener.channels[kept], request_frame(b"on"))) == [(200, b"on")]
    # Its pod has made room for one of the next version, which replaces the pod that serves.
    new = await platform.create(instance_of(deployment(envVars={"newer": "1"}), version=2))
    await listener.channel(new.id)
    assert await listener.reason(kept) == "its pod is terminating"
    await platform.stop()


async def test_cores_beyond_the_quota_are_not_on_their_way_and_those_within_it_are(two_cores: Cluster) -> None:
    platform, listener = await begun(two_cores)
    instance = await platform.create(instance_of(deployment(annotations={"gnomon/cores": "1"})))
    await listener.channel(instance.id)

    def cores() -> tuple[int, int | None]:
        [seen] = platform.instances("echo.openfaas-fn")
        return seen.cores, seen.coming_cores

    await platform.resize(instance.id, 3)
    assert cores() == (1, 3)
    await until(lambda: cores() == (1, None), "it is taken to get what it was refused")
    with pytest.raises(GnomonError, match="exceeded quota"):
        await platform.resize(instance.id, 3)
    while cores() != (2, None):
        # As a policy would: a write that met a conflict is counted for some seconds, and the next one refused by that.
        with suppress(GnomonError):
            await platform.resize(instance.id, 2)
        await until(lambda: cores()[1] is None, "it neither gets nor is refused what there is")
    assert answers(await send(listener.channels[instance.id], request_frame(b"on"))) == [(200, b"on")]
    await platform.stop()
