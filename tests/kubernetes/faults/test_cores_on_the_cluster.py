"""A real kubelet gives a pod other cores while requests flow: none fails, nothing restarts."""

from __future__ import annotations

import logging
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.client import Cluster, until

LIMIT_S = 120.0
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

    pod = until(ready, "the pod", LIMIT_S)
    address = f"http://{pod.status.pod_ip}:8080/"
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except OSError:
        pytest.skip("pods of this cluster cannot be reached from here")
    load = Requests(address)
    load.start()
    until(lambda: load.answered > 20, "requests to flow", LIMIT_S)
    begun_s = time.monotonic()
    wanted = {"requests": {"cpu": "500m"}, "limits": {"cpu": "500m"}}
    changes = {"spec": {"containers": [{"name": "answer", "resources": wanted}]}}
    cluster.core.patch_namespaced_pod_resize(pod.metadata.name, namespace, changes)

    def effective() -> bool:
        status = cluster.core.read_namespaced_pod(pod.metadata.name, namespace).status.container_statuses[0]
        return bool(status.resources and status.resources.limits.get("cpu") == "500m")

    until(effective, "the container's new limit", LIMIT_S)
    _LOG.info("the kubelet's status had the new cores after %.2f s", time.monotonic() - begun_s)
    answered = load.answered
    until(lambda: load.answered > answered + 20, "requests after it", LIMIT_S)
    load.end()
    assert load.failed == []
    assert cluster.core.read_namespaced_pod(pod.metadata.name, namespace).status.container_statuses[0].restart_count == 0
