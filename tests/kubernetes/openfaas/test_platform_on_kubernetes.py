"""What every platform promises, on a real control plane, and what only this one can be asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from deploy.test_cluster.clusters import Cluster
from gnomon_core.errors import GnomonError
from gnomon_core.functions import read_deployment
from gnomon_platforms.kubernetes.api import connect
from gnomon_platforms.openfaas.platform import OpenFaasOptions, OpenFaasPlatform
from gnomon_platforms.testing import Recorder, answers, request_frame, send
from tests.contracts.test_platform import PlatformContract, Started, deployment, instance_of
from tests.kubernetes.openfaas.kubelet import Kubelet

NAMESPACE = "openfaas-fn"
AT_ONCE = OpenFaasOptions(adopting_s=0.0, start_timeout_s=60.0, stop_timeout_s=30.0)


async def begun(cluster: Cluster, options: OpenFaasOptions = AT_ONCE) -> tuple[OpenFaasPlatform, Recorder]:
    platform, told = OpenFaasPlatform(await asyncio.to_thread(connect, cluster.kubeconfig), options), Recorder()
    await platform.start(told)
    return platform, told


class TestOpenFaasPlatform(PlatformContract):
    @pytest.fixture
    async def started(self, controlled: Cluster, kubelet: Kubelet) -> AsyncIterator[Started]:
        assert kubelet.name == "node-a"
        platform, told = await begun(controlled)
        yield platform, told
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

    @pytest.mark.skip(reason="logs are read from a kubelet's containers")
    async def test_what_a_function_writes_is_told_line_by_line(self, started: Started) -> None: ...

    @pytest.mark.skip(reason="what an instance has used is measured by a kubelet")
    async def test_usage_counts_instances_that_have_ended(self, started: Started) -> None: ...

    async def test_users_find_what_they_know(self, started: Started, core: Any, controlled: Cluster) -> None:
        platform, told = started
        spec = deployment(labels={"team": "vision"}, annotations={"topic": "pictures"}, limits={"memory": "64Mi"})
        await told.channel((await platform.create(instance_of(spec))).id)
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
        platform, told = started
        made = [await platform.create(instance_of(deployment())) for _ in range(3)]
        channels = {instance.id: await told.channel(instance.id) for instance in made}
        await platform.destroy(made[1].id)
        assert await told.reason(made[1].id) == "stopped"
        for instance in (made[0], made[2]):
            assert answers(await send(channels[instance.id], request_frame(b"still"))) == [(200, b"still")]
        assert set(told.gone) == {made[1].id}

    async def test_another_version_serves_beside_the_old_one_until_that_is_destroyed(self, started: Started) -> None:
        platform, told = started
        old = await platform.create(instance_of(deployment(), version=1))
        first = await told.channel(old.id)
        new = await platform.create(instance_of(deployment(envVars={"newer": "1"}), version=2))
        second = await told.channel(new.id)
        assert answers(await send(first, request_frame(b"old"))) == [(200, b"old")]
        assert answers(await send(second, request_frame(b"new"))) == [(200, b"new")]
        await platform.destroy(old.id)
        assert await told.reason(old.id) == "stopped"
        assert answers(await send(second, request_frame(b"new"))) == [(200, b"new")]

    async def test_cores_are_changed_in_place(self, started: Started, core: Any) -> None:
        platform, told = started
        spec = deployment(annotations={"gnomon/cores": "1"})
        instance = await platform.create(instance_of(spec))
        channel = await told.channel(instance.id)
        await platform.resize(instance.id, 2)
        for _ in range(600):
            if platform.instances("echo.openfaas-fn")[0].cores == 2:
                break
            await asyncio.sleep(0.05)
        assert platform.instances("echo.openfaas-fn")[0].cores == 2
        [pod] = (await asyncio.to_thread(core.list_namespaced_pod, NAMESPACE, label_selector="faas_function=echo")).items
        assert pod.spec.containers[0].resources.limits["cpu"] == "2"
        assert pod.status.container_statuses[0].restart_count == 0
        assert answers(await send(channel, request_frame(b"same"))) == [(200, b"same")]
        with pytest.raises(GnomonError) as refused:
            await platform.resize(instance.id, 99)
        assert refused.value.code == "no_capacity"

    async def test_a_restarted_container_is_a_lost_instance(self, started: Started, core: Any, kubelet: Kubelet) -> None:
        platform, told = started
        instance = await platform.create(instance_of(deployment()))
        await told.channel(instance.id)
        [pod] = (await asyncio.to_thread(core.list_namespaced_pod, NAMESPACE, label_selector="faas_function=echo")).items
        kubelet.crash(pod.metadata.name)
        assert await told.reason(instance.id) == "its container was restarted"

    async def test_a_pod_that_somebody_removes_is_gone_once(self, started: Started, core: Any) -> None:
        platform, told = started
        instance = await platform.create(instance_of(deployment()))
        await told.channel(instance.id)
        [pod] = (await asyncio.to_thread(core.list_namespaced_pod, NAMESPACE, label_selector="faas_function=echo")).items
        await asyncio.to_thread(core.delete_namespaced_pod, pod.metadata.name, NAMESPACE)
        await told.reason(instance.id)
        assert told.times_gone == {instance.id: 1}


async def test_a_process_that_died_leaves_pods_that_the_next_one_uses(controlled: Cluster, kubelet: Kubelet, core: Any) -> None:
    dead, told = await begun(controlled)
    instance = await dead.create(instance_of(deployment()))
    await told.channel(instance.id)
    [before] = (await asyncio.to_thread(core.list_namespaced_pod, NAMESPACE, label_selector="faas_function=echo")).items
    # It stops as a process does that is killed: nothing is ended, nothing is written.
    for workload in dead._workloads.values():
        await workload.close()
    assert dead._around is not None
    await dead._around.session.close()
    await asyncio.gather(*(informer.stop() for informer in dead._informers()))

    platform, told = await begun(controlled, OpenFaasOptions(adopting_s=600.0))
    again = await platform.create(instance_of(deployment()))
    channel = await told.channel(again.id)
    assert answers(await send(channel, request_frame(b"back"))) == [(200, b"back")]
    [after] = (await asyncio.to_thread(core.list_namespaced_pod, NAMESPACE, label_selector="faas_function=echo")).items
    assert after.metadata.uid == before.metadata.uid
    await platform.stop()


async def test_a_function_that_no_namespace_takes_is_told_why(controlled: Cluster, kubelet: Kubelet) -> None:
    platform, told = await begun(controlled)
    spec = read_deployment({"service": "lost", "image": "x:1", "namespace": "nowhere"})
    instance = await platform.create(instance_of(spec))
    assert "nowhere" in await told.reason(instance.id)
    await platform.stop()
