"""The gateway of Revisions as it is installed: its pods, what they say, and what becomes of them."""

from __future__ import annotations

import http.client
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from kubernetes import client
from prometheus_client.parser import text_string_to_metric_families

from deploy.test_cluster.clusters import Cluster
from gnomon_platforms.knative.scaling.resources import GATEWAY_LABELS

SYSTEM = "knative-serving"
PAGE_PORT = 9090
TOO_MANY_REQUESTS = 429


@dataclass
class Gateways:
    """The gateway's pods."""

    cluster: Cluster

    def pods(self) -> list[Any]:
        """Those that are not about to end, by their names."""
        found = self.cluster.core.list_namespaced_pod(SYSTEM, label_selector=GATEWAY_LABELS).items
        return sorted((one for one in found if one.metadata.deletion_timestamp is None), key=lambda one: str(one.metadata.name))

    def both_ready(self) -> bool:
        conditions = [{one.type: one.status for one in pod.status.conditions or ()} for pod in self.pods()]
        return [one.get("Ready") for one in conditions] == ["True", "True"]

    def evict(self, pod: Any) -> bool:
        """What `kubectl drain` does; whether the budget allows it."""
        name = pod.metadata.name
        eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name=name, namespace=SYSTEM))
        try:
            self.cluster.core.create_namespaced_pod_eviction(name, SYSTEM, eviction)
        except client.ApiException as error:
            if error.status != TOO_MANY_REQUESTS:
                raise
            return False
        return True

    def there(self, name: str) -> bool:
        return name in {one.metadata.name for one in self.cluster.core.list_namespaced_pod(SYSTEM).items}

    def restarts(self, name: str) -> int:
        [container] = self.cluster.core.read_namespaced_pod(name, SYSTEM).status.container_statuses
        return int(container.restart_count)

    def logs(self) -> str:
        return "".join(self.cluster.core.read_namespaced_pod_log(one.metadata.name, SYSTEM) for one in self.pods())

    def figures(self) -> dict[str, float]:
        """What Prometheus reads of both, by the name of each figure, added up."""
        sums: dict[str, float] = defaultdict(float)
        for pod in self.pods():
            with closing(http.client.HTTPConnection(pod.status.pod_ip, PAGE_PORT, timeout=30)) as connection:
                connection.request("GET", "/metrics")
                page = connection.getresponse().read().decode()
            for sample in (sample for family in text_string_to_metric_families(page) for sample in family.samples):
                sums[sample.name] += sample.value
        return sums
