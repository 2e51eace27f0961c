"""Knative Serving from the manifests that its own Go modules contain, with our images in them.

Ingress is left out: Knative has no ingress of its own; tests that need one run `envoy`. Requests reach a service through the
activator or the private Service; a Route becomes Ready when somebody answers for its Ingress.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deploy.test_cluster.client import Kubectl, documents
from deploy.test_cluster.phases import Trouble
from deploy.test_cluster.settings import REGISTRY, TAG

NAMESPACE = "knative-serving"
DEPLOYMENTS = ("activator", "autoscaler", "controller", "webhook")
READY_LIMIT_S = 180.0
WEBHOOK_LIMIT_S = 60.0
KINDS_LIMIT_S = 60.0

# A Body that grows to both of two cores asks for all that the node has. There are no metrics to scale Knative itself by.
CPU_REQUEST = "0"
LEFT_OUT = ("HorizontalPodAutoscaler", "PodDisruptionBudget")

# A service that is only shown to the webhook.
PROBE = {
    "apiVersion": "serving.knative.dev/v1",
    "kind": "Service",
    "metadata": {"name": "probe", "namespace": "default"},
    "spec": {"template": {"spec": {"containers": [{"image": f"{REGISTRY}/answer:{TAG}"}]}}},
}


def install(kubectl: Kubectl, manifests: Path) -> None:
    """Apply everything in the order that it needs; returns when Knative accepts services."""
    core = manifests / "serving"
    schemas = [*sorted((core / "300-resources").glob("*.yaml")), manifests / "caching" / "image.yaml"]
    schemas += [
        manifests / "networking" / f"{name}.yaml" for name in ("certificate", "domain-claim", "ingress", "serverlessservice")
    ]
    kubectl.apply(documents(core / "100-namespace.yaml", *schemas))
    # At once after they were applied, kinds may have no status yet, which `kubectl wait` takes for a fault.
    until_done(lambda: kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"), KINDS_LIMIT_S)
    # ConfigMaps before the webhook that checks them, which fails until its server runs.
    first = [*sorted((core / "200-roles").glob("*.yaml")), core / "200-serviceaccount.yaml"]
    first += [*sorted((core / "configmaps").glob("*.yaml")), manifests / "networking" / "config-network.yaml"]
    then = [*sorted((core / "deployments").glob("*.yaml")), *sorted((core / "webhooks").glob("*.yaml"))]
    last = [core / "300-knativecertificate.yaml", core / "999-cache.yaml"]
    kubectl.apply([adapted(item) for item in documents(*first, *then) if item["kind"] not in LEFT_OUT])
    kubectl.available(NAMESPACE, DEPLOYMENTS, READY_LIMIT_S)
    wait_for_webhook(kubectl)
    kubectl.apply([adapted(item) for item in documents(*last)])


def adapted(item: dict[str, Any]) -> dict[str, Any]:
    """One object for this cluster: our images, small requests, and pods that are spoken to directly."""
    item = with_images(item)
    name = item["metadata"]["name"]
    if item["kind"] == "Deployment":
        for container in item["spec"]["template"]["spec"]["containers"]:
            container["resources"]["requests"]["cpu"] = CPU_REQUEST
            container["readinessProbe"]["periodSeconds"] = 1
    if item["kind"] == "ConfigMap" and name == "config-network":
        # There is no mesh between them, so pods are probed and reached by their own addresses.
        item.setdefault("data", {})["mesh-compatibility-mode"] = "disabled"
    if item["kind"] == "ConfigMap" and name == "config-observability":
        # By its count of waiting requests the activator tells other autoscalers than Knative's to scale from zero. Read at start.
        item.setdefault("data", {})["metrics-protocol"] = "prometheus"
    return item


def with_images(value: Any) -> Any:
    """Names that `ko` would replace, replaced by those of our images: ko://…/cmd/queue is dev.local/queue:v1."""
    if isinstance(value, dict):
        return {key: with_images(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_images(inner) for inner in value]
    if isinstance(value, str) and value.startswith("ko://"):
        return f"{REGISTRY}/{value.rpartition('/')[2]}:{TAG}"
    return value


def wait_for_webhook(kubectl: Kubectl) -> None:
    """Its certificate reaches the apiserver a moment after it is ready; until then every service is refused."""
    until_done(lambda: kubectl("create", "--dry-run=server", "-f", "-", given=json.dumps(PROBE)), WEBHOOK_LIMIT_S)


def until_done(command: Callable[[], object], limit_s: float) -> None:
    """Again and again until it meets no Trouble; after the limit, that Trouble."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            command()
        except Trouble:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)
        else:
            return
