"""A quota with room for two pods, or two cores, on a real control plane: what there is goes on, and everybody is told why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.testing import answers, request_frame, send
from tests.cluster.client import Cluster
from tests.cluster.client import until as found
from tests.contracts.test_platform import deployment, instance_of
from tests.kubernetes.openfaas.conftest import NAMESPACE
from tests.kubernetes.openfaas.kubelet import Kubelet
from tests.kubernetes.openfaas.test_platform_on_kubernetes import begun
from tests.waiting import until


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
