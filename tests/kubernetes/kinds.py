"""Kinds of objects that a cluster does not have by itself."""

from __future__ import annotations

from typing import Any

from kubernetes import client

from tests.cluster import build
from tests.cluster.client import Cluster, documents, until

NOT_YET = 404, 429


def install_kinds(cluster: Cluster, compiled: build.Programs, *files: str) -> None:
    """Let the API server know the kinds that these files of Knative's describe."""
    manifests = documents(*(compiled.manifests / file for file in files))
    define(cluster, *(manifest for manifest in manifests if manifest["kind"] == "CustomResourceDefinition"))


def define(cluster: Cluster, *definitions: dict[str, Any]) -> None:
    """Let the API server know these kinds; returns once it serves them."""
    extensions: Any = client.ApiextensionsV1Api(cluster.api)
    for definition in definitions:
        try:
            extensions.create_custom_resource_definition(definition)
        except client.ApiException as error:
            if error.status != 409:
                raise
    for definition in definitions:
        name = definition["metadata"]["name"]
        until(lambda: established(extensions.read_custom_resource_definition(name)), name)  # noqa: B023 - it is called here
        until(lambda: listed(cluster, definition["spec"]), name)  # noqa: B023 - as above


def established(kind: Any) -> bool:
    return any(condition.type == "Established" and condition.status == "True" for condition in kind.status.conditions or ())


def listed(cluster: Cluster, spec: dict[str, Any]) -> bool:
    """True if objects of a kind can be listed: for a moment after it is established its storage is still made."""
    version = next(version["name"] for version in spec["versions"] if version["served"])
    try:
        cluster.custom.list_cluster_custom_object(spec["group"], version, spec["names"]["plural"], limit=1)
    except client.ApiException as error:
        if error.status not in NOT_YET:
            raise
        return False
    return True


SCALED_OBJECTS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "scaledobjects.keda.sh"},
    "spec": {
        "group": "keda.sh",
        "scope": "Namespaced",
        "names": {"plural": "scaledobjects", "singular": "scaledobject", "kind": "ScaledObject"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
"""Of KEDA only what it is recognised by."""


def conflicting_autoscaler(deployment: str) -> dict[str, Any]:
    """A HorizontalPodAutoscaler that counts the pods of a Deployment."""
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment}
    return {"metadata": {"name": "theirs"}, "spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 9}}
