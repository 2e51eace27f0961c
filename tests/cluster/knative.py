"""Knative Serving from the manifests that its own Go modules contain, with our images in them; and its configuration in tests.

Ingress is left out: Knative has no ingress of its own; tests that need one run `envoy`, or answer for a Route's Ingress by
`answer_for_ingress`. Requests reach a service through the activator or the private Service.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.cluster.client import Cluster, Kubectl, documents, until
from tests.cluster.phases import Trouble
from tests.cluster.settings import REGISTRY, TAG, Folders

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
    """Adapt an object to this cluster: our images, small requests, and pods that are addressed directly."""
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
    """The webhook's certificate reaches the apiserver a moment after the webhook is ready; until then services are refused."""
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


STOCK, GNOMON = "kpa", "gnomon"
CLASSES = {STOCK: "kpa.autoscaling.knative.dev", GNOMON: "gnomon"}
# As Knative's own runs have them: Routes of a domain that is not the cluster's own are public, and a Revision that does not start
# has failed after two minutes.
CONFORMANCE_CONFIGURATION = {
    "config-network": {"ingress-class": "envoy"},
    "config-domain": {"example.com": ""},
    "config-deployment": {"progress-deadline": "120s"},
}
SERVES = "Gnomon scales Revisions"
START_S = 60.0
PUT_BACK_S = 120.0


@contextlib.contextmanager
def default_class(kubectl: Kubectl, folders: Folders, name: str, namespace: str) -> Iterator[None]:
    """An autoscaler class as the default; `gnomon` runs for this namespace only, as long as the block lasts."""
    with contextlib.ExitStack() as stack:
        if name == GNOMON:
            log = folders.logs / "serving-conformance-gnomon.log"
            stack.enter_context(autoscaler(folders.kubeconfig, namespace, log))
        wanted = {**CONFORMANCE_CONFIGURATION, "config-autoscaler": {"pod-autoscaler-class": CLASSES[name]}}
        stack.enter_context(configured(kubectl, wanted))
        yield


@contextlib.contextmanager
def configured(kubectl: Kubectl, wanted: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """ConfigMaps of Knative with these values; as they were afterwards."""
    before: dict[str, dict[str, str | None]] = {}
    try:
        for name, values in wanted.items():
            data = json.loads(kubectl("get", "configmap", name, "-n", NAMESPACE, "-o", "json")).get("data") or {}
            before[name] = {key: data.get(key) for key in values}
            _patch(kubectl, name, values)
        yield
    finally:
        for name, old in before.items():
            _put_back(kubectl, name, old)


def _put_back(kubectl: Kubectl, name: str, values: Mapping[str, str | None]) -> None:
    """Knative's webhook is asked for each change, and may be away for a while on a machine that has much to do."""
    deadline_s = time.monotonic() + PUT_BACK_S
    while True:
        try:
            return _patch(kubectl, name, values)
        except Trouble:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(1.0)


def _patch(kubectl: Kubectl, name: str, values: Mapping[str, str | None]) -> None:
    kubectl("patch", "configmap", name, "-n", NAMESPACE, "--type=merge", "-p", json.dumps({"data": dict(values)}))


@contextlib.contextmanager
def autoscaler(kubeconfig: Path, namespace: str, log: Path) -> Iterator[None]:
    """`gnomon serve --platform knative` for one namespace."""
    options = ["--platform=knative", f"--namespace={namespace}", f"--kubeconfig={kubeconfig}", "--port=0", "--verbose"]
    with log.open("w") as stream:
        gnomon = Path(sys.executable).with_name("gnomon")
        process = subprocess.Popen([str(gnomon), "serve", *options], stdout=stream, stderr=subprocess.STDOUT)
    try:
        deadline_s = time.monotonic() + START_S
        while SERVES not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise Trouble(f"the autoscaler does not start: {log.read_text()[-1000:]}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)
