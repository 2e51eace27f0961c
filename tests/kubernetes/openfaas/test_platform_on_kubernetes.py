"""The platform contract on a real control plane, and tests of this platform alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.interfaces import StoredFunction
from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from tests.cluster.client import Cluster
from tests.contracts.test_platform import PlatformContract, Started, deployment, instance_of
from tests.kubernetes.openfaas.conftest import gone, opened
from tests.kubernetes.openfaas.kubelet import Kubelet
from tests.platform_testing import Recorder, answers, request_frame, send
from tests.waiting import eventually, until

NAMESPACE = "openfaas-fn"
AT_ONCE = OpenFaasOptions(adopting_s=0.0, start_timeout_s=60.0)


async def begun(cluster: Cluster, options: OpenFaasOptions = AT_ONCE) -> tuple[OpenFaasPlatform, Recorder]:
    platform, listener = OpenFaasPlatform(await asyncio.to_thread(connect, cluster.kubeconfig), options), Recorder()
    await platform.start(listener)
    return platform, listener


class TestOpenFaasPlatform(PlatformContract):
    @pytest.fixture
    async def started(self, controlled: Cluster, kubelet: Kubelet) -> AsyncIterator[Started]:
        assert kubelet.name == "node-a"
        platform, listener = await begun(controlled)
        yield platform, listener
        await platform.stop()

    async def test_a_function_that_can_never_run_is_refused_with_what_is_allowed(self, started: Started) -> None:
        """Any image may be there to be pulled; what Kubernetes would refuse for ever is told at once."""
        platform, _ = started
        for fields in ({"constraints": ["zone"]}, {"labels": {"team": "a b"}}, {"labels": {"gnomon/version": "7"}}):
            with pytest.raises(GnomonError) as refused:
                platform.check(deployment(**fields))
            assert refused.value.status == 400
        platform.check(deployment())
        await platform.prepare(deployment())
        assert platform.signature(deployment()) is None

    @pytest.mark.skip(reason="logs are read from a kubelet's containers, and kept by them")
    async def test_output_of_a_function_is_logged_line_by_line(self, started: Started) -> None: ...

    @pytest.mark.skip(reason="what an instance has used is measured by a kubelet")
    async def test_usage_counts_instances_that_have_ended(self, started: Started) -> None: ...

    async def test_users_find_what_they_know(self, started: Started, core: Any, controlled: Cluster) -> None:
        platform, listener = started
        spec = deployment(labels={"team": "vision"}, annotations={"topic": "pictures"}, limits={"memory": "64Mi"})
        await listener.channel((await platform.create(instance_of(spec))).id)
        found = await asyncio.to_thread(controlled.apps.read_namespaced_deployment, "echo", NAMESPACE)
        assert found.metadata.labels["faas_function"] == "echo"
        assert found.metadata.labels["team"] == "vision"
        assert found.metadata.annotations["topic"] == "pictures"
        assert found.spec.replicas == 1
        service = await asyncio.to_thread(core.read_namespaced_service, "echo", NAMESPACE)
        assert service.spec.ports[0].port == 8080
        [pod] = (await asyncio.to_thread(core.list_namespaced_pod, NAMESPACE, label_selector="faas_function=echo")).items
        assert pod.spec.automount_service_account_token is False
        assert pod.spec.node_name == "node-a"
        assert pod.spec.containers[0].resources.limits == {"memory": "64Mi"}

    async def test_the_victim_that_was_meant_goes_and_the_others_stay(self, started: Started) -> None:
        platform, listener = started
        made = [await platform.create(instance_of(deployment())) for _ in range(3)]
        channels = {instance.id: await listener.channel(instance.id) for instance in made}
        await platform.destroy(made[1].id)
        assert await listener.reason(made[1].id) == "stopped"
        for instance in (made[0], made[2]):
            assert answers(await send(channels[instance.id], request_frame(b"still"))) == [(200, b"still")]
        assert set(listener.gone) == {made[1].id}

    async def test_another_version_serves_beside_the_old_one_until_that_is_destroyed(self, started: Started) -> None:
        platform, listener = started
        old = await platform.create(instance_of(deployment(), version=1))
        first = await listener.channel(old.id)
        new = await platform.create(instance_of(deployment(envVars={"newer": "1"}), version=2))
        second = await listener.channel(new.id)
        assert answers(await send(first, request_frame(b"old"))) == [(200, b"old")]
        assert answers(await send(second, request_frame(b"new"))) == [(200, b"new")]
        await platform.destroy(old.id)
        assert await listener.reason(old.id) == "stopped"
        assert answers(await send(second, request_frame(b"new"))) == [(200, b"new")]

    async def test_cores_are_changed_in_place(self, started: Started, core: Any) -> None:
        platform, listener = started
        spec = deployment(annotations={"gnomon/cores": "1"})
        instance = await platform.create(instance_of(spec))
        channel = await listener.channel(instance.id)
        await platform.resize(instance.id, 2)
        [there] = platform.instances("echo.openfaas-fn")
        assert (there.cores, there.coming_cores) == (1, 2), "they are on their way"
        for _ in range(600):
            if platform.instances("echo.openfaas-fn")[0].cores == 2:
                break
            await asyncio.sleep(0.05)
        [there] = platform.instances("echo.openfaas-fn")
        assert (there.cores, there.coming_cores) == (2, None)
        await listener.until(lambda: listener.ready[instance.id].cores == 2)
        [pod] = (await asyncio.to_thread(core.list_namespaced_pod, NAMESPACE, label_selector="faas_function=echo")).items
        assert pod.spec.containers[0].resources.limits["cpu"] == "2"
        assert pod.status.container_statuses[0].restart_count == 0
        assert answers(await send(channel, request_frame(b"same"))) == [(200, b"same")]
        with pytest.raises(GnomonError) as refused:
            await platform.resize(instance.id, 99)
        assert refused.value.code == "no_capacity"

    async def test_a_restarted_container_is_a_lost_instance(self, started: Started, core: Any, kubelet: Kubelet) -> None:
        platform, listener = started
        instance = await platform.create(instance_of(deployment()))
        await listener.channel(instance.id)
        [pod] = (await asyncio.to_thread(core.list_namespaced_pod, NAMESPACE, label_selector="faas_function=echo")).items
        kubelet.crash(pod.metadata.name)
        assert await listener.reason(instance.id) == "its container was restarted"

    async def test_a_pod_that_somebody_removes_is_gone_once(self, started: Started, core: Any) -> None:
        platform, listener = started
        instance = await platform.create(instance_of(deployment()))
        await listener.channel(instance.id)
        [pod] = (await asyncio.to_thread(core.list_namespaced_pod, NAMESPACE, label_selector="faas_function=echo")).items
        await asyncio.to_thread(core.delete_namespaced_pod, pod.metadata.name, NAMESPACE)
        await listener.reason(instance.id)
        assert listener.times_gone == {instance.id: 1}


async def test_a_process_that_died_leaves_pods_that_the_next_one_uses(controlled: Cluster, kubelet: Kubelet, core: Any) -> None:
    dead, listener = await begun(controlled)
    instance = await dead.create(instance_of(deployment()))
    await listener.channel(instance.id)
    [before] = (await asyncio.to_thread(core.list_namespaced_pod, NAMESPACE, label_selector="faas_function=echo")).items
    # It stops as a process does that is killed: nothing is ended, nothing is written.
    for workload in dead._workloads.values():
        await workload.close()
    await dead._cluster.stop()

    platform, listener = await begun(controlled, OpenFaasOptions(adopting_s=600.0))
    again = await platform.create(instance_of(deployment()))
    channel = await listener.channel(again.id)
    assert answers(await send(channel, request_frame(b"back"))) == [(200, b"back")]
    [after] = (await asyncio.to_thread(core.list_namespaced_pod, NAMESPACE, label_selector="faas_function=echo")).items
    assert after.metadata.uid == before.metadata.uid
    await platform.stop()


async def test_a_function_that_no_namespace_takes_is_told_why(controlled: Cluster, kubelet: Kubelet) -> None:
    platform, listener = await begun(controlled)
    spec = read_deployment({"service": "lost", "image": "x:1", "namespace": "nowhere"})
    instance = await platform.create(instance_of(spec))
    assert "nowhere" in await listener.reason(instance.id)
    await platform.stop()


async def test_a_gateway_that_stops_leaves_its_pods_serving_and_the_next_adopts_them(
    controlled: Cluster, kubelet: Kubelet, core: Any
) -> None:
    first, listener = await begun(controlled)
    made = [await first.create(instance_of(deployment())) for _ in range(2)]
    for instance in made:
        await listener.channel(instance.id)
    await first.stop()
    assert listener.times_gone == {instance.id: 1 for instance in made}
    before = {pod.metadata.uid for pod in (await pods_of(core)).items}

    second, listener = await begun(controlled)
    writes = await written(core)
    adopted = second.adopt(deployment(), 1)
    assert {instance.id for instance in adopted} == {instance.id for instance in made}
    for instance in adopted:
        assert answers(await send(await listener.channel(instance.id), request_frame(b"still"))) == [(200, b"still")]
    assert second.adopt(deployment(), 1) == (), "they are looked after already"
    assert await written(core) == writes, "adopting changes nothing in the cluster"
    assert {pod.metadata.uid for pod in (await pods_of(core)).items} == before
    # From here on they are like those that it created.
    await second.destroy(adopted[0].id)
    assert await listener.reason(adopted[0].id) == "stopped"
    assert second.nodes()[0].free_cores < second.nodes()[0].cores
    await second.stop()


async def test_pods_of_a_later_version_or_on_their_way_out_are_not_adopted(
    controlled: Cluster, kubelet: Kubelet, core: Any
) -> None:
    first, listener = await begun(controlled)
    instance = await first.create(instance_of(deployment(), version=3))
    await listener.channel(instance.id)
    await first.stop()
    second, _ = await begun(controlled)
    assert second.adopt(deployment(), 2) == ()
    [adopted] = second.adopt(deployment(), 4)
    assert adopted.version == 3
    await second.stop()


async def test_a_removed_function_goes_when_its_last_instance_has_and_takes_everything_along(
    controlled: Cluster, kubelet: Kubelet, core: Any
) -> None:
    store = await asyncio.to_thread(opened, controlled.kubeconfig)
    platform, listener = await begun(controlled, OpenFaasOptions(adopting_s=0.0, stored=True))
    await asyncio.to_thread(store.put_function, StoredFunction(deployment(), 1, 1.5))
    instance = await platform.create(instance_of(deployment()))
    channel = await listener.channel(instance.id)
    assert await asyncio.to_thread(store.delete_function, FunctionKey("echo"))
    # It is removed, and answers what was let in before that.
    assert answers(await send(channel, request_frame(b"last"))) == [(200, b"last")]
    await platform.destroy(instance.id)
    assert await listener.reason(instance.id) == "stopped"

    def left() -> list[str]:
        lists = controlled.apps.list_namespaced_deployment, core.list_namespaced_service, core.list_namespaced_secret
        return [resource.metadata.name for listed in lists for resource in listed(NAMESPACE).items]

    await until(lambda: not left(), "what belonged to the function was removed")
    # Who asks for an instance of it now is told, and brings nothing back.
    late = await platform.create(instance_of(deployment()))
    assert "was removed" in await listener.reason(late.id)
    assert left() == []
    await platform.stop()
    await asyncio.to_thread(store.close)


async def test_a_function_whose_pod_was_evicted_is_removed_like_any_other(
    controlled: Cluster, kubelet: Kubelet, core: Any
) -> None:
    """No ReplicaSet removes a pod that has failed, and it stood in the way of everything that was to go after it."""
    store = await asyncio.to_thread(opened, controlled.kubeconfig)
    platform, listener = await begun(controlled, OpenFaasOptions(adopting_s=0.0, stored=True))
    await asyncio.to_thread(store.put_function, StoredFunction(deployment(), 1, 1.5))
    evicted, other = [await platform.create(instance_of(deployment())) for _ in range(2)]
    for instance in (evicted, other):
        await listener.channel(instance.id)
    [pod] = [
        resource for resource in (await pods_of(core)).items if resource.metadata.annotations["gnomon/instance"] == evicted.id
    ]
    kubelet.evict(pod.metadata.name)
    assert (await listener.reason(evicted.id)).startswith("Evicted: The node was low on resource")

    def there() -> set[str]:
        listed = core.list_namespaced_pod(NAMESPACE, label_selector="faas_function=echo").items
        return {(resource.metadata.annotations or {}).get("gnomon/instance", "") for resource in listed}

    await until(lambda: there() == {other.id}, "the pod that has failed was removed")
    assert await asyncio.to_thread(store.delete_function, FunctionKey("echo"))
    await platform.destroy(other.id)
    await until(lambda: not controlled.apps.list_namespaced_deployment(NAMESPACE).items, "the Deployment was removed")
    await platform.stop()
    await asyncio.to_thread(store.close)


@pytest.fixture
def device(controlled: Cluster, kubelet: Kubelet, core: Any, echo_handler: Path) -> Iterator[Kubelet]:
    """A second node: it has fewer cores than the first, and a device."""
    node = Kubelet(controlled.api, "node-gpu", echo_handler, cores=2, second_octet=2, more={"nvidia.com/gpu": "1"})
    node.start()

    def usable() -> bool:
        found = core.read_node(node.name)
        return not found.spec.taints and "nvidia.com/gpu" in (found.status.allocatable or {})

    eventually(usable, "the node with a device")
    yield node
    node.stop()


async def test_a_pod_goes_where_its_device_is_although_another_node_has_more_cores(
    controlled: Cluster, device: Kubelet, core: Any
) -> None:
    platform, listener = await begun(controlled)
    spec = deployment(limits={"nvidia.com/gpu": "1"})
    # A policy names the node with most cores, which it knows alone.
    instance = await platform.create(instance_of(spec, node="node-a"))
    await listener.channel(instance.id)
    assert [instance.node for instance in platform.instances("echo.openfaas-fn")] == [device.name]
    await platform.create(instance_of(spec))
    await until(lambda: "Insufficient nvidia.com/gpu" in platform.trouble("echo.openfaas-fn"), "nobody says what is lacking")
    for seen in platform.instances("echo.openfaas-fn"):
        await platform.destroy(seen.id)
    await until(lambda: not core.list_namespaced_pod(NAMESPACE).items, "the pods ended")
    await platform.stop()


async def test_next_leader_completes_a_removal(controlled: Cluster, kubelet: Kubelet) -> None:
    store = await asyncio.to_thread(opened, controlled.kubeconfig)
    await asyncio.to_thread(store.put_function, StoredFunction(deployment(), 1, 1.5))
    await asyncio.to_thread(store.delete_function, FunctionKey("echo"))
    await asyncio.to_thread(store.close)
    platform, _ = await begun(controlled)
    await until(lambda: not controlled.apps.list_namespaced_deployment(NAMESPACE).items, "the Deployment was removed")
    await platform.stop()


async def test_a_token_or_service_that_somebody_removed_is_made_again(controlled: Cluster, kubelet: Kubelet, core: Any) -> None:
    store = await asyncio.to_thread(opened, controlled.kubeconfig)
    await asyncio.to_thread(store.put_function, StoredFunction(deployment(), 1, 1.5))
    await asyncio.to_thread(store.close)
    await asyncio.to_thread(gone, controlled)
    platform, listener = await begun(controlled, OpenFaasOptions(adopting_s=0.0, stored=True))
    instance = await platform.create(instance_of(deployment()))
    assert answers(await send(await listener.channel(instance.id), request_frame(b"there"))) == [(200, b"there")]
    assert [resource.metadata.name for resource in (await asyncio.to_thread(core.list_namespaced_service, NAMESPACE)).items] == [
        "echo"
    ]
    await platform.stop()


async def test_an_instance_of_an_earlier_deployment_does_not_write_over_a_later_one(
    controlled: Cluster, kubelet: Kubelet, core: Any
) -> None:
    store = await asyncio.to_thread(opened, controlled.kubeconfig)
    await asyncio.to_thread(store.put_function, StoredFunction(deployment(), 1, 1.5))
    platform, listener = await begun(controlled, OpenFaasOptions(adopting_s=0.0, stored=True))
    newer = deployment(annotations={"gnomon/autoscaler": "kpa"}, envVars={"newer": "1"})
    await asyncio.to_thread(store.put_function, StoredFunction(newer, 2, 1.5))
    # The first changes the template; what it says of the function is older than what is stored by now.
    latest = deployment(annotations={"gnomon/autoscaler": "fixed"}, envVars={"newer": "1"})
    await asyncio.to_thread(store.put_function, StoredFunction(latest, 2, 1.5))
    await listener.channel((await platform.create(instance_of(newer, version=2))).id)
    [found] = await asyncio.to_thread(store.functions)
    assert found.spec.annotations == {"gnomon/autoscaler": "fixed"}
    await platform.stop()
    await asyncio.to_thread(store.close)


async def pods_of(core: Any) -> Any:
    return await asyncio.to_thread(core.list_namespaced_pod, NAMESPACE, label_selector="faas_function=echo")


async def written(core: Any) -> set[str]:
    """The writers of each pod besides the kubelet, and when they wrote it."""
    entries = [entry for pod in (await pods_of(core)).items for entry in pod.metadata.managed_fields or ()]
    return {f"{entry.manager} {entry.subresource} {entry.time}" for entry in entries if entry.subresource != "status"}
