"""`kubectl apply -k deploy/knative-models` on a whole cluster, as an operator does it, and a namespace of users.

    caller ─▶ Envoy ─▶ gateway's pods ─▶ queue-proxy ▶ Body ── its volume ── coordinator ── pool ─▶ Shadow
                              └── what waits ─▶ autoscaler's pods: how many Bodies, how large, with which Shadows

The ingress runs beside the tests, with an Envoy of this machine's. All else are pods with the
rights, arguments and probes of the manifests, and Knative's as it comes. Users' namespace is held to `restricted`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client

from gnomon_platforms.knative.autoscaler.rules import CSI_FEATURE
from tests.cluster import models
from tests.cluster.client import Cluster, Kubectl, until
from tests.cluster.phases import CannotBeHad
from tests.kubernetes.coordinator_node.test_driver_on_the_cluster import inside
from tests.kubernetes.installation.forms import overlaid
from tests.kubernetes.knative_batching.conftest import SECRET
from tests.kubernetes.knative_batching.gateways import SYSTEM, Gateways

NODES = models.NODES
CLAIMS_FEATURE = "kubernetes.podspec-persistent-volume-claim"
BATCH_TOKEN = "batches-please"
START_LIMIT_S, GONE_LIMIT_S = 240.0, 240.0


@dataclass
class Installed:
    """The installation, and a namespace for its users."""

    cluster: Cluster
    namespace: str
    body_image: str
    token: str

    @property
    def gateways(self) -> Gateways:
        return Gateways(self.cluster)

    def allow_volumes(self, value: str) -> None:
        """Say whether Revisions may have the volume of their node's coordinator: `enabled` or `disabled`."""
        self.cluster.core.patch_namespaced_config_map("config-features", SYSTEM, {"data": {CSI_FEATURE: value}})

    def shadows(self) -> set[str]:
        """The Shadows of the nodes' coordinators that work for a Body; none of one that is not there."""
        with contextlib.suppress(OSError):
            rows = [row for state in map(self._state, self._coordinators()) for row in state["shadows"]]
            return {row["id"] for row in rows if row["paired"] and row["state"] == "ready"}
        return set()

    def kill_coordinator(self) -> None:
        """The process of the only node's coordinator: its container is started again, and the pool's is not."""
        [pod] = self.cluster.core.list_namespaced_pod(NODES).items
        os.kill(int(inside(pod, "coordinator").parent.name), signal.SIGKILL)

    def pool_cpu(self) -> str:
        """The resource requests of the only node's pool, as its kubelet has them."""
        [pod] = self.cluster.core.list_namespaced_pod(NODES).items
        [pool] = [container for container in pod.status.container_statuses if container.name == "pool"]
        return str(pool.resources.requests["cpu"])

    def _coordinators(self) -> list[str]:
        pods = self.cluster.core.list_namespaced_pod(NODES).items
        return [pod.status.pod_ip for pod in pods if pod.status.pod_ip]

    def _state(self, address: str) -> dict[str, Any]:
        with closing(http.client.HTTPConnection(address, 7468, timeout=30)) as connection:
            connection.request("GET", "/v1/state", headers={"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            data = answer.read()
        assert answer.status == 200, data
        return dict(json.loads(data))


@contextlib.contextmanager
def installed(cluster: Cluster, kubectl: Kubectl, repository: Path, folder: Path) -> Iterator[Installed]:
    """The installation, with this folder of models on the node; gone afterwards. `folder` is for the user's kustomization.

    Raises:
        CannotBeHad: the cluster has no Knative, no image of ours, or an installation already.

    """
    if SYSTEM not in models.namespaces(cluster):
        raise CannotBeHad("this cluster has no Knative")
    if NODES in models.namespaces(cluster) or deployed(cluster):
        raise CannotBeHad("something of ours is installed on this cluster already")
    given = models.images(cluster)
    gateway = models.small(cluster, "gnomon-gateway", "GNOMON_GATEWAY_IMAGE")
    names = {"gnomon-body": given.body, "gnomon-coordinator": given.coordinator, "gnomon-gateway": gateway}
    overlay = overlaid(folder, "knative-models", names, patches=models_at(repository))
    token, namespace = secrets.token_hex(16), f"models-{secrets.token_hex(3)}"
    features = cluster.core.read_namespaced_config_map("config-features", SYSTEM).data or {}
    made = Installed(cluster, namespace, given.body, token)
    secret = {"metadata": {"name": "coordinator-token"}, "stringData": {"token": token}}
    try:
        kubectl("apply", "-k", str(overlay))
        for where in (SYSTEM, NODES):
            cluster.core.create_namespaced_secret(where, secret)
        cluster.core.patch_namespaced_config_map("config-features", SYSTEM, {"data": {CLAIMS_FEATURE: "enabled"}})
        made.allow_volumes("disabled")
        with models.volume(cluster, namespace, repository) as claim, users(made):
            cluster.core.create_namespaced_persistent_volume_claim(namespace, claim)
            token_of_batches = {"metadata": {"name": SECRET}, "stringData": {SECRET: BATCH_TOKEN}}
            cluster.core.create_namespaced_secret(namespace, token_of_batches)
            for what in ("deployment/gnomon-autoscaler", "deployment/gnomon-gateway"):
                kubectl("rollout", "status", what, "-n", SYSTEM, f"--timeout={START_LIMIT_S:.0f}s", limit_s=START_LIMIT_S + 10)
            rolled = ("rollout", "status", "daemonset/coordinator", "-n", NODES, f"--timeout={START_LIMIT_S:.0f}s")
            kubectl(*rolled, limit_s=START_LIMIT_S + 10)
            yield made
    finally:
        before = {name: features.get(name) for name in (CSI_FEATURE, CLAIMS_FEATURE)}
        cluster.core.patch_namespaced_config_map("config-features", SYSTEM, {"data": before})
        models.end_coordinators(kubectl)
        kubectl("delete", "-k", str(overlay), "--ignore-not-found", "--timeout=180s", limit_s=200)
        kubectl("delete", "secret/coordinator-token", "-n", SYSTEM, "--ignore-not-found")


def deployed(cluster: Cluster) -> bool:
    """True if a class or a gateway of ours is there."""
    found = cluster.apps.list_namespaced_deployment(SYSTEM).items
    return any(resource.metadata.name.startswith("gnomon-") for resource in found)


def models_at(repository: Path) -> list[dict[str, str]]:
    """Patches by which the installation has its models in this folder of the node."""
    place = {"hostPath": {"path": str(repository), "type": "Directory"}}
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "gnomon-models-knative"}, "spec": place}
    pool = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "coordinator", "namespace": NODES},
        "spec": {"template": {"spec": {"volumes": [{"name": "models", **place}]}}},
    }
    return [{"patch": json.dumps(patch)} for patch in (volume, pool)]


@contextlib.contextmanager
def users(on: Installed) -> Iterator[None]:
    """A namespace of users. It goes with its pods before the coordinators do: without them no kubelet can end such a pod."""
    models.furnish_namespace(on.cluster, on.namespace)
    try:
        yield
    finally:
        pods = on.cluster.core.list_namespaced_pod(on.namespace).items
        on.cluster.core.delete_namespace(on.namespace)
        for pod in pods:
            # Before Kubernetes does it: queue-proxy would take half a minute for itself.
            with contextlib.suppress(client.ApiException):
                on.cluster.core.delete_namespaced_pod(pod.metadata.name, on.namespace, grace_period_seconds=1)
        until(lambda: on.namespace not in models.namespaces(on.cluster), f"{on.namespace} to go", GONE_LIMIT_S)
