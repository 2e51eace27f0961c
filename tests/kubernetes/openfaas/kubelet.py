"""A kubelet for tests: pods of its node become threads that serve the real application on loopback addresses of their own.

The control plane cannot tell: it sees a node that is ready, and pods whose status goes through what a kubelet reports. What
needs a container, such as logs and what an instance has used, is not there.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from kubernetes import client
from urllib3.exceptions import HTTPError

from gnomon_platforms.kubernetes.objects.names import FUNCTION_LABEL, TOKEN_KEY
from tests.integration.kubernetes_platform.instance_server import InstanceServer

LOOK_S = 0.05
HEARTBEAT_S = 5.0
FORCE = {"gracePeriodSeconds": 0}
PORT = 8080
SERVER_ERRORS = 500
WORKER, APART = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")), 16
"""Tests that run side by side have pods at addresses of their own: so many second octets are for each process."""


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, *, met: bool) -> dict[str, Any]:
    return {"type": kind, "status": "True" if met else "False"}


def pre_stop_s(pod: Mapping[str, Any]) -> float:
    """The pause before a pod's SIGTERM."""
    hook = (pod["spec"]["containers"][0].get("lifecycle") or {}).get("preStop") or {}
    return float((hook.get("sleep") or {}).get("seconds", 0))


class Ending(Protocol):
    """The program of a pod."""

    def end(self) -> None: ...


class Kubelet:
    """The kubelet of one node.

    Its pods are healthy unless it is `unhealthy`; what they are resized to is applied while it is `resizable`. A pod that is
    deleted goes on for the length of its preStop hook, unless the kubelet is `hurried`. The node offers `more` than cores and
    memory.
    """

    def __init__(
        self,
        api: Any,
        name: str,
        handler: Path,
        *,
        cores: int = 8,
        second_octet: int = 1,
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.unhealthy = False
        self.restarts: dict[str, int] = {}
        self.resizable = True
        self.hurried = False
        self._more = more or {}
        self._evicted: set[str] = set()
        self._ending_s: dict[str, float] = {}
        self._core = client.CoreV1Api(api)
        self._handler, self._cores, self._octet = handler, cores, second_octet
        self._servers: dict[str, tuple[str, Ending]] = {}
        self._numbers = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._heard_s = 0.0

    @property
    def started(self) -> bool:
        return self._thread.ident is not None

    def start(self) -> None:
        metadata = {"name": self.name, "labels": {"kubernetes.io/hostname": self.name, "zone": "a"}}
        self._core.create_node({"metadata": metadata})
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        for _, server in self._servers.values():
            server.end()
        self._core.delete_node(self.name)

    def crash(self, pod: str) -> None:
        """A container dies, and is begun again."""
        self.restarts[pod] = self.restarts.get(pod, 0) + 1

    def evict(self, pod: str) -> None:
        """A pod is ended for what it takes of its node. It stays there as one that has failed."""
        self._evicted.add(pod)

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                self._heartbeat()
                for pod in self._pods():
                    self._look_at(pod)
            except client.ApiException as error:
                if error.status not in (404, 409) and error.status < SERVER_ERRORS:
                    raise
            except HTTPError:
                # The API server is away: what runs goes on.
                continue

    def _pods(self) -> list[Mapping[str, Any]]:
        answer: Any = self._core.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={self.name}", _preload_content=False)
        items: list[Mapping[str, Any]] = json.loads(answer.data)["items"]
        # Others, such as a DaemonSet's, are played by who tests them.
        return [pod for pod in items if FUNCTION_LABEL in pod["metadata"].get("labels", {})]

    def _heartbeat(self) -> None:
        if time.monotonic() < self._heard_s + HEARTBEAT_S:
            return
        self._heard_s = time.monotonic()
        amounts = {"cpu": str(self._cores), "memory": "16Gi", "pods": "110", **self._more}
        ready = {**condition("Ready", met=True), "lastHeartbeatTime": now(), "reason": "KubeletReady", "message": "as ever"}
        self._core.patch_node_status(self.name, {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}})

    def _look_at(self, pod: Mapping[str, Any]) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if "deletionTimestamp" in pod["metadata"]:
            pause_s = 0.0 if self.hurried else pre_stop_s(pod)
            if time.monotonic() < self._ending_s.setdefault(name, time.monotonic()) + pause_s:
                return
            self._end(name)
            self._core.delete_namespaced_pod(name, namespace, body=FORCE)
            return
        if name in self._evicted:
            self._fail(pod)
            return
        if name not in self._servers:
            self._begin(pod)
        status = self._status(pod)
        if not self._is_reported(pod, status):
            self._core.patch_namespaced_pod_status(name, namespace, {"status": status})

    def _fail(self, pod: Mapping[str, Any]) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if pod["status"].get("phase") != "Failed":
            self._end(name)
            conditions = [condition("ContainersReady", met=False), condition("Ready", met=False)]
            why = {"reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
            self._core.patch_namespaced_pod_status(
                name, namespace, {"status": {"phase": "Failed", "conditions": conditions, **why}}
            )

    def _begin(self, pod: Mapping[str, Any]) -> None:
        self._numbers += 1
        address = f"127.{self._octet + APART * WORKER}.{self._numbers // 250}.{self._numbers % 250 + 1}"
        self._servers[pod["metadata"]["name"]] = address, self.serve(pod, address, self._token(pod))

    def serve(self, pod: Mapping[str, Any], address: str, token: str) -> Ending:
        """Serve a pod's instance at its address."""
        del pod
        return InstanceServer(address, PORT, self._handler, token)

    def _token(self, pod: Mapping[str, Any]) -> str:
        """The token in the pod's own volume of secrets."""
        [volume] = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "secrets"]
        for source in volume["projected"]["sources"]:
            held = self._core.read_namespaced_secret(source["secret"]["name"], pod["metadata"]["namespace"]).data
            if TOKEN_KEY in held:
                return base64.b64decode(held[TOKEN_KEY]).decode()
        raise AssertionError("the pod has no token")

    def _end(self, name: str) -> None:
        held = self._servers.pop(name, None)
        if held is not None:
            held[1].end()

    def _conditions(self, pod: Mapping[str, Any], *, healthy: bool) -> list[dict[str, Any]]:
        """Both conditions, each with the time of its last change, by which controllers count `minReadySeconds`."""
        before = {condition["type"]: condition for condition in pod["status"].get("conditions") or ()}
        found = []
        for kind in ("ContainersReady", "Ready"):
            made = condition(kind, met=healthy)
            same = before.get(kind, {}).get("status") == made["status"]
            changed = before[kind].get("lastTransitionTime") if same else None
            found.append({**made, "lastTransitionTime": changed or now()})
        return found

    def _status(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        healthy = not self.unhealthy
        resources = container["resources"]
        if not self.resizable and pod["status"].get("containerStatuses"):
            resources = pod["status"]["containerStatuses"][0]["resources"]
        return {
            "phase": "Running",
            "podIP": self._servers[name][0],
            "podIPs": [{"ip": self._servers[name][0]}],
            "conditions": self._conditions(pod, healthy=healthy),
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": container["image"],
                    "ready": healthy,
                    "restartCount": self.restarts.get(name, 0),
                    "state": {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}},
                    "resources": resources,
                }
            ],
        }

    @staticmethod
    def _is_reported(pod: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
        given = pod["status"]
        conditions = {condition["type"]: condition["status"] for condition in given.get("conditions") or ()}
        same = all(conditions.get(condition["type"]) == condition["status"] for condition in status["conditions"])
        containers = given.get("containerStatuses") or []
        return (
            same
            and bool(containers)
            and all(containers[0].get(name) == value for name, value in status["containerStatuses"][0].items())
        )
