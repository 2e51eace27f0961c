"""Knative beside an autoscaler, played on a control plane that has no controllers.

Deployments get pods, each with a queue-proxy on a loopback address that tells its share of a load; ServerlessServices get their
status; an activator tells what waits. The API server cannot tell: objects are what Knative's reconcilers write.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from kubernetes import client
from urllib3.exceptions import HTTPError

from tests.cluster.client import Cluster

LOOK_S = 0.05
SERVER_ERRORS = 500
SKS = ("networking.internal.knative.dev", "v1alpha1")
PA = ("autoscaling.internal.knative.dev", "v1alpha1")
SERVING = ("serving.knative.dev", "v1")
REVISION = "serving.knative.dev/revision"


class Application(Protocol):
    """The application in a pod: it reports its last second's metrics, and ends."""

    def stat(self) -> tuple[float, float]: ...

    def end(self) -> None: ...


METRICS_PORT = 9090
QUIET_S = 0.5
"""For so long a pod that ends still takes requests; queue-proxy does for 30 s."""


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stat(concurrency: float, rps: float) -> bytes:
    return bytes([2 << 3 | 1]) + struct.pack("<d", concurrency) + bytes([4 << 3 | 1]) + struct.pack("<d", rps)


def serve(address: str, page: Callable[[], bytes]) -> ThreadingHTTPServer:
    """A page at port 9090 of an address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer((address, METRICS_PORT), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class PlayedKnative:
    """Knative in a namespace, with its system in another. `load` is requests in a Revision's pods, `queued` what waits for it."""

    def __init__(self, cluster: Cluster, namespace: str, system: str, octet: int) -> None:
        self.namespace, self.system = namespace, system
        self.load: dict[str, float] = {}
        self.queued: dict[str, int] = {}
        self.node = "played"
        self.starts_s = 0.2
        self.resizable = True
        """Whether its nodes give pods the cores that they are to have."""
        self.begins: Callable[[str, str], Application] | None = None
        """Begins what runs in a pod, of this Revision at this address; without it, pods tell of `load`."""
        self._applications: dict[str, Application] = {}
        self._replaced: set[str] = set()
        self._cluster = cluster
        self._octet, self._numbers = octet, 0
        self._servers: dict[str, ThreadingHTTPServer] = {}
        self._born: dict[str, float] = {}
        self.cores_at_first: dict[str, str] = {}
        """By pod, the cores that it had when it became ready."""
        self._ready: dict[str, set[str]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        for name in (self.namespace, self.system):
            self._cluster.core.create_namespace({"metadata": {"name": name}})
            self._cluster.core.create_namespaced_service_account(name, {"metadata": {"name": "default"}})
        address = self._address()
        self._servers["activator"] = serve(address, self._page)
        self._pod(self.system, "activator", {"app": "activator"})
        self._run_pod(self.system, "activator", address)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        for application in self._applications.values():
            application.end()
        for server in self._servers.values():
            server.shutdown()
            server.server_close()
        for name in (self.namespace, self.system):
            self._cluster.core.delete_namespace(name)

    def revision(
        self,
        name: str,
        annotations: dict[str, str],
        *,
        replicas: int = 1,
        concurrency: int = 0,
        volumes: Sequence[dict[str, Any]] = (),
        **container: Any,
    ) -> None:
        """The objects that Knative's revision reconciler creates for a Revision."""
        annotations = {"autoscaling.knative.dev/class": "gnomon", **annotations}
        labels = {REVISION: name, "serving.knative.dev/revisionUID": f"uid-{name}"}
        container = {"name": "user-container", "image": "dev.local/answer:v1", **container}
        own = {
            "apiVersion": "/".join(SERVING),
            "kind": "Revision",
            "spec": {"containers": [container], "volumes": list(volumes), "containerConcurrency": concurrency},
        }
        metadata = {"name": name, "annotations": {**annotations, "user": "kept"}, "labels": {"of": "users"}}
        self._cluster.custom.create_namespaced_custom_object(*SERVING, self.namespace, "revisions", {**own, "metadata": metadata})
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": list(volumes)}}
        spec = {"replicas": replicas, "selector": {"matchLabels": {REVISION: name}}, "template": template}
        self._cluster.apps.create_namespaced_deployment(
            self.namespace, {"metadata": {"name": f"{name}-deployment", "labels": labels}, "spec": spec}
        )
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"{name}-deployment"}
        pa = {
            "apiVersion": "/".join(PA),
            "kind": "PodAutoscaler",
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
            "spec": {
                "scaleTargetRef": target,
                "protocolType": "http1",
                "reachability": "Reachable",
                "containerConcurrency": concurrency,
            },
        }
        self._cluster.custom.create_namespaced_custom_object(*PA, self.namespace, "podautoscalers", pa)

    def pa(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._cluster.custom.get_namespaced_custom_object(*PA, self.namespace, "podautoscalers", name)
        return found

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        listed = self.pa(name).get("status", {}).get("conditions", [])
        return next((row for row in listed if row["type"] == kind), {"status": ""})

    def sks(self, name: str) -> dict[str, Any] | None:
        items = self._cluster.custom.list_namespaced_custom_object(*SKS, self.namespace, "serverlessservices")["items"]
        return next((item for item in items if item["metadata"]["name"] == name), None)

    def replicas(self, name: str) -> int:
        return int(self._cluster.apps.read_namespaced_deployment(f"{name}-deployment", self.namespace).spec.replicas)

    def pod(self, name: str, labels: dict[str, str]) -> str:
        """A ready pod of the system's, which the caller runs: its address."""
        address = self._address()
        self._pod(self.system, name, labels)
        self._run_pod(self.system, name, address)
        return address

    def replace_pods(self, revision: str) -> None:
        """Each of a Revision's pods ends soon, and the Deployment makes another."""
        self._replaced.add(revision)

    # The controllers

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                for deployment in self._cluster.apps.list_namespaced_deployment(self.namespace).items:
                    self._pods_of(deployment)
                for sks in self._cluster.custom.list_namespaced_custom_object(*SKS, self.namespace, "serverlessservices")[
                    "items"
                ]:
                    self._look_at_service(sks)
            except client.ApiException as error:
                if error.status not in (404, 409) and error.status < SERVER_ERRORS:
                    raise
            except HTTPError:
                # The API server is away: what runs goes on.
                continue

    def _pods_of(self, deployment: Any) -> None:
        revision, wanted = deployment.metadata.labels[REVISION], int(deployment.spec.replicas)
        pods = self._cluster.core.list_namespaced_pod(self.namespace, label_selector=f"{REVISION}={revision}").items
        if revision in self._replaced:
            self._replaced.discard(revision)
            wanted = 0
        for pod in pods[wanted:]:
            self._end(pod.metadata.name)
        for number in range(wanted - len(pods)):
            name = f"{revision}-{time.monotonic_ns()}-{number}"
            self._pod(self.namespace, name, {REVISION: revision}, deployment.spec.template.spec)
            self._born[name] = time.monotonic()
        for pod in pods[:wanted]:
            self._resources_of(pod)
        listed = [pod.metadata.name for pod in pods[:wanted]]
        has = {pod.metadata.name: pod.status.container_statuses or () for pod in pods[:wanted]}
        for name in listed:
            if name not in self._servers and time.monotonic() - self._born.get(name, 0.0) > self.starts_s:
                address = self._address()
                application = self.begin(revision, name, address)
                if application is not None:
                    self._applications[name] = application
                self._servers[name] = serve(address, partial(self._stat, revision, name))
                self.cores_at_first[name] = next((container.resources.requests["cpu"] for container in has[name]), "")
                self._run_pod(self.namespace, name, address)
        self._ready[revision] = {name for name in listed if name in self._servers}

    def begin(self, revision: str, pod: str, address: str) -> Application | None:
        """Begin what runs in a pod."""
        del pod
        return None if self.begins is None else self.begins(revision, address)

    def _stat(self, revision: str, name: str) -> bytes:
        application = self._applications.get(name)
        if application is not None:
            return stat(*application.stat())
        share = self.load.get(revision, 0.0) / max(1, len(self._ready.get(revision, ())))
        return stat(share, share * 10.0)

    def _page(self) -> bytes:
        lines = [
            f'kn_revision_request_queued{{k8s_namespace_name="{self.namespace}",kn_revision_name="{name}"}} {count}'
            for name, count in self.queued.items()
        ]
        return "\n".join(lines).encode()

    def _look_at_service(self, sks: dict[str, Any]) -> None:
        name, generation = sks["metadata"]["name"], sks["metadata"]["generation"]
        ready = bool(self._ready.get(name))
        proxied = sks["spec"]["mode"] == "Proxy" or not ready
        before = {condition["type"]: condition for condition in sks.get("status", {}).get("conditions", [])}
        listed = []
        for kind, met in (("Ready", ready), ("ActivatorEndpointsPopulated", proxied)):
            status, old = "True" if met else "False", before.get(kind)
            changed = old is None or old["status"] != status
            listed.append({"type": kind, "status": status, "lastTransitionTime": now()} if changed else old)
        said = {
            "observedGeneration": generation,
            "serviceName": name,
            "privateServiceName": f"{name}-private",
            "conditions": listed,
        }
        if sks.get("status") != said:
            self._cluster.custom.replace_namespaced_custom_object_status(
                *SKS, self.namespace, "serverlessservices", name, {**sks, "status": said}
            )

    # Pods

    def _address(self) -> str:
        self._numbers += 1
        return f"127.{self._octet}.{self._numbers // 250}.{self._numbers % 250 + 1}"

    def _pod(self, namespace: str, name: str, labels: dict[str, str], template: Any = None) -> None:
        spec: dict[str, Any] = {"containers": [{"name": "c", "image": "dev.local/answer:v1"}]}
        if template is not None:
            spec = self._cluster.api.sanitize_for_serialization(template)
            spec["containers"] += [
                {"name": "queue-proxy", "image": "dev.local/queue:v1", "resources": {"requests": {"cpu": "25m"}}}
            ]
        named = {"name": name, "labels": labels}
        self._cluster.core.create_namespaced_pod(namespace, {"metadata": named, "spec": {**spec, "nodeName": self.node}})

    def _resources_of(self, pod: Any) -> None:
        """Resize a container as a kubelet does, and report its resources."""
        found = self._cluster.api.sanitize_for_serialization(pod)
        container = found["spec"]["containers"][0]
        container_statuses = found["status"].get("containerStatuses") or [{}]
        if not container.get("resources") or container_statuses[0].get("resources") == container["resources"]:
            return
        if container_statuses[0] and not self.resizable:
            return
        fields = {"image": container["image"], "imageID": "x", "ready": True, "restartCount": 0}
        statuses = [{"name": container["name"], **fields, "resources": container["resources"]}]
        status = {"phase": "Running", "containerStatuses": statuses}
        self._cluster.core.patch_namespaced_pod_status(pod.metadata.name, self.namespace, {"status": status})

    def _run_pod(self, namespace: str, name: str, address: str) -> None:
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        self._cluster.core.patch_namespaced_pod_status(name, namespace, {"status": status})

    def _end(self, name: str) -> None:
        """Kubernetes says first that it ends; then it answers what it has."""
        application = self._applications.pop(name, None)
        if application is not None:
            not_ready = {"conditions": [{"type": "Ready", "status": "False"}]}
            self._cluster.core.patch_namespaced_pod_status(name, self.namespace, {"status": not_ready})
            time.sleep(QUIET_S)
            application.end()
        server = self._servers.pop(name, None)
        if server is not None:
            server.shutdown()
            server.server_close()
        self._cluster.core.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)
