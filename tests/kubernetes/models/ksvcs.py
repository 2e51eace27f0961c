"""Services of Knative's whose pods are Bodies, as docs/howto/run-on-knative.md describes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kubernetes import client

from gnomon_platforms.knative.resources import QUEUE_CONTAINER, REVISION_LABEL
from tests.cluster import models
from tests.cluster.client import until
from tests.cluster.knative import SERVING, condition
from tests.kubernetes.knative_batching.conftest import ENV
from tests.kubernetes.models.on_knative import Installed

PA = ("autoscaling.internal.knative.dev", "v1alpha1")
K = "autoscaling.knative.dev/"
NOT_FOUND, BAD_REQUEST = 404, 400
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass
class Ksvc:
    """A service of Knative's whose pods are Bodies, by the class `gnomon`."""

    on: Installed
    name: str
    annotations: dict[str, str]
    cores: str = "1"
    mounted: bool = False
    """Whether its template has the volume of the node's coordinator."""

    def document(self, model: str, ingress_class: str) -> dict[str, Any]:
        """The ksvc of docs/howto/run-on-knative.md, with the models by a claim."""
        given = {K + "class": "gnomon", K + "min-scale": "1", K + "max-scale": "1", "gnomon/model": model, **self.annotations}
        mounts = [{"name": "models", "mountPath": "/models", "readOnly": True}]
        volumes: list[dict[str, Any]] = [
            {"name": "models", "persistentVolumeClaim": {"claimName": models.CLAIM, "readOnly": True}}
        ]
        if self.mounted:
            mounts.append({"name": "coordinator", "mountPath": "/run/gnomon", "readOnly": True})
            volumes.append({"name": "coordinator", "csi": {"driver": "node.gnomon", "readOnly": True}})
        container = {
            "image": self.on.body_image,
            "env": [{"name": "GNOMON_MODEL", "value": model}, *ENV],
            "readinessProbe": {"httpGet": {"path": "/_/ready"}, "periodSeconds": 1},
            # Two cores are all that there are, and a Shadow has one of them: it is given what nobody asks for.
            "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"cpu": self.cores, "memory": "3Gi"}},
            "securityContext": RESTRICTED,
            "volumeMounts": mounts,
        }
        return {
            "apiVersion": "/".join(SERVING),
            "kind": "Service",
            "metadata": {"name": self.name, "annotations": {"networking.knative.dev/ingress-class": ingress_class}},
            "spec": {"template": {"metadata": {"annotations": given}, "spec": {"containers": [container], "volumes": volumes}}},
        }

    def create(self, document: dict[str, Any]) -> None:
        """Make it, once Knative's webhook knows what Revisions may have."""

        def taken() -> bool:
            try:
                self.on.cluster.custom.create_namespaced_custom_object(*SERVING, self.on.namespace, "services", document)
            except client.ApiException as error:
                if error.status != BAD_REQUEST or "is disabled" not in str(error.body):
                    raise
                return False
            return True

        until(taken, f"{self.name} to be taken")

    @property
    def ready(self) -> bool:
        return condition(self._read(SERVING, "services", self.name)) == "True"

    @property
    def revision(self) -> str:
        return f"{self.name}-00001"

    def said(self, kind: str) -> dict[str, str]:
        """A condition of its PodAutoscaler, which nobody may have written yet."""
        found = self._read(PA, "podautoscalers", self.revision).get("status", {}).get("conditions", [])
        return next((dict(row) for row in found if row["type"] == kind), {})

    def events(self, reason: str) -> list[str]:
        """The events of its Deployment."""
        found = self.on.cluster.core.list_namespaced_event(self.on.namespace).items
        mine = [event for event in found if event.involved_object.name == f"{self.revision}-deployment"]
        return [event.message for event in mine if event.reason == reason]

    @property
    def pod(self) -> Any:
        """The only pod of the service."""
        pods = self.on.cluster.core.list_namespaced_pod
        [found] = pods(self.on.namespace, label_selector=f"{REVISION_LABEL}={self.revision}").items
        return found

    @property
    def body(self) -> Any:
        """The status of the container of its pod that is no queue-proxy."""
        [found] = [container for container in self.pod.status.container_statuses if container.name != QUEUE_CONTAINER]
        return found

    def log(self) -> str:
        return str(
            self.on.cluster.core.read_namespaced_pod_log(self.pod.metadata.name, self.on.namespace, container=self.body.name)
        )

    def _read(self, kind: tuple[str, str], plural: str, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self.on.cluster.custom.get_namespaced_custom_object(*kind, self.on.namespace, plural, name)
        except client.ApiException as error:
            if error.status != NOT_FOUND:
                raise
            return {}
        return found
