"""A function's Deployment, Service and Secrets.

The Deployment has the function's name, as users of OpenFaaS on Kubernetes know it, with their labels and annotations on it and
on its pods. Its pods never begin or end by a rolling update: an update releases the old ones first
(docs/decisions/0029-openfaas-on-kubernetes.md).
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
    RELEASED,
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
"""The API server's bound for all annotations of an object together."""
MAX_SECRET_BYTES = 1024 * 1024

Manifest = dict[str, Any]

GUARDED: Manifest = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
"""What somebody else changes of a template, as `kubectl rollout restart` does, costs no pod that serves: the one new pod waits
behind its gate, and we replace the others one by one."""
REPLACING: Manifest = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "100%"}}
"""While we change the template ourselves: what serves has been released before, and all that is left are spares."""


def deployment(spec: FunctionSpec, version: int, options: PodOptions, *, replicas: int = 0) -> Manifest:
    """The Deployment of a function. It has no pods until instances are asked for.

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
            "selector": {"matchLabels": selector(spec.key)},
            "strategy": GUARDED,
            "template": pod_template(spec, version, options),
        },
    }


def deployment_metadata(spec: FunctionSpec, version: int) -> Manifest:
    """The metadata of a function's Deployment. An update that needs no other instances changes only this.

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
            f"The function is described by {size_bytes} bytes; Kubernetes keeps {MAX_ANNOTATION_BYTES}.",
            "Put long values into a secret.",
        )
    labels = {**spec.labels, FUNCTION_LABEL: spec.key.name, MANAGED_LABEL: MANAGED, VERSION_LABEL: str(version)}
    return {"name": spec.key.name, "namespace": spec.key.namespace, "labels": labels, "annotations": annotations}


def changed_metadata(seen: Manifest, wanted: Manifest) -> Manifest:
    """The metadata of a Deployment that is there, as `wanted` has it.

    What the last deployment had said and this one does not say any more goes; what others have put there stays. The function is
    there again where it had been removed.
    """
    said: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        said = json.loads((seen.get("annotations") or {}).get(DEPLOYMENT_ANNOTATION, "{}"))
    said = said if isinstance(said, dict) else {}
    changed = dict(seen)
    for field in ("labels", "annotations"):
        before = said.get(field) or {}
        kept = {key: value for key, value in (seen.get(field) or {}).items() if key not in before and key != REMOVED_ANNOTATION}
        changed[field] = {**kept, **wanted[field]}
    return changed


def with_creation(metadata: Manifest, created_at: float) -> Manifest:
    """The same metadata, with when the function was deployed first."""
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
    """How many of a function's pods may be evicted at a time, say by who drains a node: one, and then its successor serves first.

    A bound from below would keep a function with one pod on its node for ever. Pods that do not serve may always go.
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
    """A user's secret. Its one entry has its name, and so has the file that functions read.

    Raises:
        GnomonError: 400 `secret_too_large`.

    """
    if len(value) > MAX_SECRET_BYTES:
        raise bad_request("secret_too_large", f"Secret {key.name} has {len(value)} bytes.", f"At most {MAX_SECRET_BYTES}.")
    return _secret(key.name, key.namespace, {key.name: value}, {SECRET_LABEL: SECRET_OWNER})


def batch_token(key: FunctionKey, token: str) -> Manifest:
    """The Secret with the token that a function's batch route asks for. Each function has its own."""
    labels = {FUNCTION_LABEL: key.name, MANAGED_LABEL: MANAGED}
    return _secret(token_secret(key), key.namespace, {TOKEN_KEY: token.encode()}, labels)


def owned_by(manifest: Manifest, owner: Manifest) -> Manifest:
    """The same object, removed by Kubernetes when its owner is. It is no controller: nobody adopts pods by this."""
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


def released(deployment_: Manifest) -> Manifest:
    """The merge patch that takes a pod out of its ReplicaSet's hands, and leaves it to us.

    The ReplicaSet lets go of what its selector no longer finds. The Deployment stays an owner, so that the pod goes with it.
    """
    reference = owned_by({"metadata": {}}, deployment_)["metadata"]["ownerReferences"]
    return {"metadata": {"labels": {MANAGED_LABEL: RELEASED}, "ownerReferences": reference}}


def _secret(name: str, namespace: str, data: dict[str, bytes], labels: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "data": {entry: base64.b64encode(value).decode() for entry, value in data.items()},
    }
