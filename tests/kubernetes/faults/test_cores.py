"""Other cores in place under load: no batch or request is lost, nothing restarts, and threads follow cores."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from gnomon_core.interfaces import BatchChannel
from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from tests.cluster.client import Cluster, until
from tests.contracts.test_platform import deployment, instance_of
from tests.kubernetes.faults.conftest import NAMESPACE, Breakable
from tests.platform_testing import Recorder, answers, request_frame, send

LIMIT_S = 30.0


async def threads(channel: BatchChannel) -> int:
    """The number of cores that the process was last set to use."""
    [(status, said)] = answers(await send(channel, request_frame(b"", meta=b"POST\n/cores\n\n")))
    assert status == 200
    return int(said)


async def test_threads_follow_cores_and_no_batch_is_lost(breakable: Breakable) -> None:
    api = await asyncio.to_thread(connect, breakable.plane.kubeconfig)
    platform, listener = OpenFaasPlatform(api, OpenFaasOptions(adopting_s=0.0)), Recorder()
    await platform.start(listener)
    try:
        instance = await platform.create(instance_of(deployment(annotations={"gnomon/cores": "1"})))
        channel = await listener.channel(instance.id)
        seen = [await threads(channel)]
        for cores in (2, 4, 1):
            await platform.resize(instance.id, cores)
            async with asyncio.timeout(LIMIT_S):
                while seen[-1] != cores:
                    seen.append(await threads(channel))
            async with asyncio.timeout(LIMIT_S):
                while platform.instances(instance.function)[0].cores != cores:
                    seen.append(await threads(channel))
        # Each change is seen once, and fewer threads come before fewer cores.
        assert [now for before, now in zip([0, *seen], seen, strict=False) if now != before] == [1, 2, 4, 1]
        assert listener.gone == {}
        [pod] = (await asyncio.to_thread(breakable.cluster.core.list_namespaced_pod, NAMESPACE)).items
        assert pod.status.container_statuses[0].restart_count == 0
        assert pod.spec.containers[0].resources.limits["cpu"] == "1"
    finally:
        await platform.stop()
        api.close()


async def test_pod_uses_the_cores_it_starts_with(breakable: Breakable) -> None:
    api = await asyncio.to_thread(connect, breakable.plane.kubeconfig)
    platform, listener = OpenFaasPlatform(api, OpenFaasOptions(adopting_s=0.0)), Recorder()
    await platform.start(listener)
    try:
        spec = deployment(annotations={"gnomon/cores": "1"})
        wide = instance_of(spec)
        instance = await platform.create(type(wide)(wide.spec, wide.version, 3, wide.node, wide.secrets))
        assert await threads(await listener.channel(instance.id)) == 3
    finally:
        await platform.stop()
        api.close()


KUBELET_LIMIT_S = 120.0
PAUSE_S = 0.01

_LOG = logging.getLogger("gnomon.tests")


class Requests(threading.Thread):
    """Sends one request after the other to an address until it is stopped."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.answered = 0
        self.failed: list[str] = []
        self._address, self._ended = address, threading.Event()

    def run(self) -> None:
        while not self._ended.wait(PAUSE_S):
            try:
                with urllib.request.urlopen(self._address, timeout=30):
                    self.answered += 1
            except OSError as error:
                self.failed.append(str(error))

    def end(self) -> None:
        self._ended.set()
        self.join()


def test_cores_are_doubled_under_load(cluster: Cluster, namespace: str, deploy: Callable[..., str]) -> None:
    before = {"requests": {"cpu": "250m", "memory": "16Mi"}, "limits": {"cpu": "250m", "memory": "32Mi"}}
    deploy("doubled", resources=before)

    def ready() -> Any:
        pods = cluster.core.list_namespaced_pod(namespace).items
        return next(
            (
                pod
                for pod in pods
                if any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions or ())
            ),
            None,
        )

    pod = until(ready, "the pod", KUBELET_LIMIT_S)
    address = f"http://{pod.status.pod_ip}:8080/"
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except OSError:
        pytest.skip("pods of this cluster cannot be reached from here")
    load = Requests(address)
    load.start()
    until(lambda: load.answered > 20, "requests to flow", KUBELET_LIMIT_S)
    begun_s = time.monotonic()
    wanted = {"requests": {"cpu": "500m"}, "limits": {"cpu": "500m"}}
    changes = {"spec": {"containers": [{"name": "answer", "resources": wanted}]}}
    cluster.core.patch_namespaced_pod_resize(pod.metadata.name, namespace, changes)

    def effective() -> bool:
        status = cluster.core.read_namespaced_pod(pod.metadata.name, namespace).status.container_statuses[0]
        return bool(status.resources and status.resources.limits.get("cpu") == "500m")

    until(effective, "the container's new limit", KUBELET_LIMIT_S)
    _LOG.info("the kubelet's status had the new cores after %.2f s", time.monotonic() - begun_s)
    answered = load.answered
    until(lambda: load.answered > answered + 20, "requests after it", KUBELET_LIMIT_S)
    load.end()
    assert load.failed == []
    assert cluster.core.read_namespaced_pod(pod.metadata.name, namespace).status.container_statuses[0].restart_count == 0
