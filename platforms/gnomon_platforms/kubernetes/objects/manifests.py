"""A function's Deployment, Service and Secrets.

The Deployment has the function's name, as in OpenFaaS on Kubernetes, with the user's labels and annotations on it and on its
pods. An update of the pod template is a rolling update of Kubernetes (docs/decisions/0061-the-scheduler-places-pods.md).
"""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

from gnomon_core.errors import bad_request
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_platforms.kubernetes.objects.names import (
    CREATED_ANNOTATION,
    DEPLOYMENT_ANNOTATION,
    FUNCTION_LABEL,
    MANAGED,
    MANAGED_LABEL,
    PORT,
    PORT_NAME,
    REMOVED_ANNOTATION,
    SECRET_LABEL,
    SECRET_OWNER,
    TOKEN_KEY,
    VERSION_LABEL,
    check_annotations,
    check_labels,
    check_name,
    selector,
    token_secret,
)
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions, pod_template

MAX_ANNOTATION_BYTES = 256 * 1024
"""The API server's limit for all annotations of an object together."""
MAX_SECRET_BYTES = 1024 * 1024

Manifest = dict[str, Any]

MIN_READY_S = 3
"""Seconds that a rolling update waits after a new pod is ready before it removes an old one. Meanwhile the gateway drains an old
instance and marks its pod, so that the ReplicaSet removes just that one."""


def rolling_update(max_unavailable: int = 0) -> Manifest:
    """The Deployment's strategy. With 0 an old pod serves until its successor is ready, whichever client changes the template."""
    # A quarter, as by default: pods for all at once would double the nodes that an update needs.
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": max_unavailable}}


def deployment(spec: FunctionSpec, version: int, options: PodOptions, *, replicas: int = 0) -> Manifest:
    """The Deployment of a function. It has no pods until instances are requested.

    Raises:
        GnomonError: 400 for anything that the API server would refuse: name, labels, annotations, constraints, resources.

    """
    check_name(spec.key)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": deployment_metadata(spec, version),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 1,
            "minReadySeconds": MIN_READY_S,
            "selector": {"matchLabels": selector(spec.key)},
            "strategy": rolling_update(),
            "template": pod_template(spec, version, options),
        },
    }


def deployment_metadata(spec: FunctionSpec, version: int) -> Manifest:
    """The metadata of a function's Deployment. An update that needs no new instances changes only this.

    Raises:
        GnomonError: 400 `invalid_label`, `invalid_annotation`.

    """
    check_labels(spec.labels)
    check_annotations(spec.annotations)
    annotations = {**spec.annotations, DEPLOYMENT_ANNOTATION: json.dumps(spec.raw, sort_keys=True, separators=(",", ":"))}
    size_bytes = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size_bytes > MAX_ANNOTATION_BYTES:
        raise bad_request(
            "deployment_too_large",
            f"The function's annotations have {size_bytes} bytes; Kubernetes allows {MAX_ANNOTATION_BYTES}.",
            "Put long values into a secret.",
        )
    labels = {**spec.labels, FUNCTION_LABEL: spec.key.name, MANAGED_LABEL: MANAGED, VERSION_LABEL: str(version)}
    return {"name": spec.key.name, "namespace": spec.key.namespace, "labels": labels, "annotations": annotations}


def changed_metadata(current: Manifest, desired: Manifest) -> Manifest:
    """Merge `desired` into the metadata of an existing Deployment.

    Keys of the last deployment that this one lacks are removed; keys that others have set stay. A removed function is restored.
    """
    last_deployed: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        last_deployed = json.loads((current.get("annotations") or {}).get(DEPLOYMENT_ANNOTATION, "{}"))
    former = last_deployed if isinstance(last_deployed, dict) else {}
    changed = dict(current)
    for field in ("labels", "annotations"):
        before = former.get(field) or {}
        kept = {
            key: value for key, value in (current.get(field) or {}).items() if key not in before and key != REMOVED_ANNOTATION
        }
        changed[field] = {**kept, **desired[field]}
    return changed


def with_creation(metadata: Manifest, created_at: float) -> Manifest:
    """Return a copy of the metadata with the time of the function's first deployment, in seconds since 1970."""
    return {**metadata, "annotations": {**metadata["annotations"], CREATED_ANNOTATION: repr(created_at)}}


def service(spec: FunctionSpec) -> Manifest:
    """The Service by which others in the cluster reach the function's pods without the gateway."""
    labels = {FUNCTION_LABEL: spec.key.name, MANAGED_LABEL: MANAGED}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": spec.key.name,
            "namespace": spec.key.namespace,
            "labels": labels,
            "annotations": {"prometheus.io.scrape": "false"},
        },
        "spec": {
            "type": "ClusterIP",
            "selector": selector(spec.key),
            "ports": [{"name": PORT_NAME, "port": PORT, "targetPort": PORT_NAME, "protocol": "TCP"}],
        },
    }


def disruption_budget(spec: FunctionSpec) -> Manifest:
    """The PodDisruptionBudget: evictions, as by `kubectl drain`, take one serving pod at a time; then its successor serves first.

    `minAvailable` would block the eviction of a function's only pod for ever. Pods that are not ready may always be evicted.
    """
    labels = {FUNCTION_LABEL: spec.key.name, MANAGED_LABEL: MANAGED}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": spec.key.name, "namespace": spec.key.namespace, "labels": labels},
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": selector(spec.key)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def secret(key: FunctionKey, value: bytes) -> Manifest:
    """A user's Secret. Its one entry has the secret's name, and so has the file that functions read.

    Raises:
        GnomonError: 400 `secret_too_large`.

    """
    if len(value) > MAX_SECRET_BYTES:
        raise bad_request("secret_too_large", f"Secret {key.name} has {len(value)} bytes.", f"At most {MAX_SECRET_BYTES}.")
    return _secret(key.name, key.namespace, {key.name: value}, {SECRET_LABEL: SECRET_OWNER})


def batch_token(key: FunctionKey, token: str) -> Manifest:
    """The Secret with the token that a function's batch route requires. Each function has its own token."""
    labels = {FUNCTION_LABEL: key.name, MANAGED_LABEL: MANAGED}
    return _secret(token_secret(key), key.namespace, {TOKEN_KEY: token.encode()}, labels)


def owned_by(manifest: Manifest, owner: Manifest) -> Manifest:
    """Return a copy of the manifest with an owner reference, for garbage collection only: the owner is not its controller."""
    metadata = owner["metadata"]
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": False,
        "blockOwnerDeletion": False,
    }
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


def _secret(name: str, namespace: str, data: dict[str, bytes], labels: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "data": {entry: base64.b64encode(value).decode() for entry, value in data.items()},
    }
