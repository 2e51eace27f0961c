"""What an ingress says of a Route, said by hand: Knative brings no ingress, and a ksvc is Ready only when one has answered."""

from __future__ import annotations

import datetime as dt
from typing import Any

from deploy.test_cluster.clusters import Cluster, until

SERVING = ("serving.knative.dev", "v1")
NETWORKING = ("networking.internal.knative.dev", "v1alpha1")


def condition(item: dict[str, Any], kind: str = "Ready") -> str:
    """The status of one of an object's conditions; empty where it has none of that kind."""
    return next((each["status"] for each in item.get("status", {}).get("conditions", []) if each["type"] == kind), "")


def answer_for_ingress(cluster: Cluster, namespace: str, name: str) -> None:
    """Say what an ingress would say: that requests come in by the activator."""

    def ingress() -> dict[str, Any] | None:
        items = cluster.custom.list_namespaced_custom_object(*NETWORKING, namespace, "ingresses")["items"]
        return next((item for item in items if item["metadata"]["name"] == name), None)

    made = until(ingress, "the service's Ingress")
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kinds = ("LoadBalancerReady", "NetworkConfigured", "Ready")
    load_balancer = {"ingress": [{"domainInternal": "activator-service.knative-serving.svc.cluster.local"}]}
    status = {
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds],
        "observedGeneration": made["metadata"]["generation"],
        "publicLoadBalancer": load_balancer,
        "privateLoadBalancer": load_balancer,
    }
    cluster.custom.patch_namespaced_custom_object_status(*NETWORKING, namespace, "ingresses", name, {"status": status})
