"""Our parts of Knative as they are installed: each one's pods, what they say, and what becomes of them."""

from __future__ import annotations

import http.client
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from kubernetes import client
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.client import Cluster

SYSTEM = "knative-serving"
PAGE_PORT = 9090
TOO_MANY_REQUESTS = 429


@dataclass
class Replicas:
    """The pods of one: `knative-autoscaler` or `knative-gateway`."""

    cluster: Cluster
    component: str

    def pods(self) -> list[Any]:
        """The pods that do not terminate, by name."""
        labels = f"app.kubernetes.io/name=gnomon,app.kubernetes.io/component={self.component}"
        found = self.cluster.core.list_namespaced_pod(SYSTEM, label_selector=labels).items
        return sorted(
            (resource for resource in found if resource.metadata.deletion_timestamp is None),
            key=lambda resource: str(resource.metadata.name),
        )

    def both_ready(self) -> bool:
        conditions = [{condition.type: condition.status for condition in pod.status.conditions or ()} for pod in self.pods()]
        return [condition.get("Ready") for condition in conditions] == ["True", "True"]

    def there(self, name: str) -> bool:
        return name in {pod.metadata.name for pod in self.cluster.core.list_namespaced_pod(SYSTEM).items}

    def restarts(self, name: str) -> int:
        [container] = self.cluster.core.read_namespaced_pod(name, SYSTEM).status.container_statuses
        return int(container.restart_count)

    def logs(self) -> str:
        return "".join(self.cluster.core.read_namespaced_pod_log(pod.metadata.name, SYSTEM) for pod in self.pods())


class Gateways(Replicas):
    """The gateway's pods."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "knative-gateway")

    def figures(self) -> dict[str, float]:
        """The metrics of both gateways by name, added up."""
        sums: dict[str, float] = defaultdict(float)
        for pod in self.pods():
            with closing(http.client.HTTPConnection(pod.status.pod_ip, PAGE_PORT, timeout=30)) as connection:
                connection.request("GET", "/metrics")
                page = connection.getresponse().read().decode()
            for sample in (sample for family in text_string_to_metric_families(page) for sample in family.samples):
                sums[sample.name] += sample.value
        return sums


def evict(cluster: Cluster, pod: Any) -> bool:
    """Evict a pod as `kubectl drain` does; returns whether its budget allows it."""
    name, namespace = pod.metadata.name, pod.metadata.namespace
    eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name=name, namespace=namespace))
    try:
        cluster.core.create_namespaced_pod_eviction(name, namespace, eviction)
    except client.ApiException as error:
        if error.status != TOO_MANY_REQUESTS:
            raise
        return False
    return True
