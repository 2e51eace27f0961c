"""The pod of an instance.

The pod always meets the Pod Security Standard "restricted": no root, no privileges, no service account token. The root file
system is read-only unless the deployment has `"readOnlyRootFilesystem": false`; /tmp is writable. Probes follow OpenFaaS's
workload contract. If nodes have coordinators, a Body's pod mounts their volume and the models', so that the Body can have
Shadows, and prefers nodes with a coordinator.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from typing import Any

from gnomon_core.coordination import NODES_NAMESPACE
from gnomon_core.engines import AUTO, FP32
from gnomon_core.functions import FunctionSpec
from gnomon_core.units import parse_duration_s
from gnomon_platforms.kubernetes.objects.names import (
    FUNCTION_LABEL,
    MANAGED,
    MANAGED_LABEL,
    PORT,
    PORT_NAME,
    SECRETS_FOLDER,
    VERSION_LABEL,
    token_secret,
)
from gnomon_platforms.kubernetes.objects.placing import near, read_constraints
from gnomon_platforms.kubernetes.objects.probes import probes
from gnomon_platforms.kubernetes.objects.quantities import resources

USER = 12_000
"""A user that no image uses; a number, because `runAsNonRoot` cannot check a name."""
SECRET_MODE = 0o440
PRE_STOP_S = 2
"""The pause between a pod's deletion and its SIGTERM. Gateways and kube-proxy learn of the deletion by watches, when the kubelet
does: until they have stopped sending, the pod goes on as if nothing had happened, whatever its image does at SIGTERM."""
GRACE_S = 5
"""Seconds added to the time for requests in flight, for the SIGTERM and the last answers to arrive."""
TMP_SIZE = "1Gi"
CSI_DRIVER, FUNCTION_ATTRIBUTE = "node.gnomon", "gnomon/function"
COORDINATOR_LABELS = {"app.kubernetes.io/name": "gnomon", "app.kubernetes.io/component": "coordinator"}
"""The labels of the DaemonSet's pods, each of which is its node's coordinator."""
BODY_FOLDERS = {"coordinator": "/run/gnomon", "models": "/models"}
"""The mount paths at which a Body looks for them."""


@dataclass(frozen=True, slots=True)
class PodOptions:
    """The operator's settings for all pods.

    `user` is their user id. `image_pull_policy`, `runtime_class` and `pull_secrets` are passed on; a pull secret that a function
    names is for the kubelet, and not mounted as a file.
    """

    user: int = USER
    image_pull_policy: str = "IfNotPresent"
    runtime_class: str | None = None
    pull_secrets: tuple[str, ...] = ()
    coordinated: bool = False
    """Bodies get the volume of their node's coordinator. A pod with that volume starts only on nodes with a coordinator."""
    models_claim: str | None = None
    """A PersistentVolumeClaim in the function's namespace with the model repository; without it images contain their models."""


def pod_template(spec: FunctionSpec, version: int, options: PodOptions) -> dict[str, Any]:
    """The template of a function's pods: metadata and specification.

    Raises:
        GnomonError: 400 for a constraint, a resource or a probe's annotation that cannot be read.

    """
    labels = {**spec.labels, FUNCTION_LABEL: spec.key.name, MANAGED_LABEL: MANAGED, VERSION_LABEL: str(version)}
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": options.user,
            "runAsGroup": options.user,
            "fsGroup": options.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": PRE_STOP_S + math.ceil(_longest_s(spec)) + GRACE_S,
        "containers": [_container(spec, options)],
        "volumes": [
            {"name": "tmp", "emptyDir": {"sizeLimit": TMP_SIZE}},
            {"name": "secrets", "projected": {"defaultMode": SECRET_MODE, "sources": _secrets(spec, options)}},
            *_body_volumes(spec, options),
        ],
        **read_constraints(spec.constraints).fields(),
    }
    if options.coordinated and spec.settings.model is not None:
        # Only a node with a coordinator makes Shadows, and a new one gets its coordinator a moment after it has joined.
        pod["affinity"] = {**pod.get("affinity", {}), **near(COORDINATOR_LABELS, NODES_NAMESPACE)}
    if options.runtime_class is not None:
        pod["runtimeClassName"] = options.runtime_class
    if options.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
    return {"metadata": {"labels": labels, "annotations": dict(spec.annotations)}, "spec": pod}


def pod_digest(spec: FunctionSpec, options: PodOptions) -> str:
    """A hash of a function's pod template: pods with another digest must be replaced, new labels are not enough.

    The largest batch size is excluded: a pod takes whatever it is sent.

    Raises:
        GnomonError: as `pod_template`.

    """
    pod = pod_template(replace(spec, settings=replace(spec.settings, max_batch=1)), 0, options)["spec"]
    return hashlib.sha256(json.dumps(pod, sort_keys=True).encode()).hexdigest()[:16]


def _container(spec: FunctionSpec, options: PodOptions) -> dict[str, Any]:
    return {
        "name": spec.key.name,
        "image": spec.image,
        "imagePullPolicy": options.image_pull_policy,
        "env": [{"name": name, "value": value} for name, value in sorted(environment(spec).items())],
        "ports": [{"name": PORT_NAME, "containerPort": PORT, "protocol": "TCP"}],
        "resources": resources(spec, spec.settings.cores),
        "resizePolicy": [
            {"resourceName": "cpu", "restartPolicy": "NotRequired"},
            {"resourceName": "memory", "restartPolicy": "NotRequired"},
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": spec.raw.get("readOnlyRootFilesystem") is not False,
            "runAsNonRoot": True,
        },
        **probes(spec),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            {"name": "secrets", "mountPath": SECRETS_FOLDER, "readOnly": True},
            *(
                {"name": volume["name"], "mountPath": BODY_FOLDERS[volume["name"]], "readOnly": True}
                for volume in _body_volumes(spec, options)
            ),
        ],
    }


def environment(spec: FunctionSpec) -> dict[str, str]:
    """The environment of a function's container. The user's variables override Gnomon's."""
    settings = spec.settings
    entries = {
        "GNOMON_FUNCTION": str(spec.key),
        "GNOMON_CORES": str(settings.cores),
        "GNOMON_MAX_BATCH": str(settings.max_batch),
        "write_timeout": f"{settings.deadline_s:g}s",
    }
    if settings.concurrency is not None:
        entries |= {"GNOMON_CONCURRENCY": str(settings.concurrency)}
    if settings.model is not None:
        entries |= {"GNOMON_MODEL": settings.model, "GNOMON_WEIGHTS": settings.weight_mode}
        # Which engines an image has is not known here: a pod runs another one than the program where it is named.
        entries |= {} if settings.engine == AUTO else {"GNOMON_ENGINE": settings.engine}
        entries |= (
            {} if settings.precision == FP32 else {"GNOMON_ENGINE": settings.engine, "GNOMON_PRECISION": settings.precision}
        )
        entries |= {} if settings.accuracy_floor is None else {"GNOMON_ACCURACY_FLOOR": f"{settings.accuracy_floor:g}"}
    process = {"fprocess": spec.env_process} if spec.env_process else {}
    return {**entries, **spec.environment, **process}


def _body_volumes(spec: FunctionSpec, options: PodOptions) -> list[dict[str, Any]]:
    """The volumes that a Body needs for Shadows: its socket to its node's coordinator, and the model files that both map."""
    volumes: list[dict[str, Any]] = []
    if spec.settings.model is None:
        return volumes
    if options.coordinated:
        attributes = {FUNCTION_ATTRIBUTE: spec.key.name}
        volumes.append({"name": "coordinator", "csi": {"driver": CSI_DRIVER, "readOnly": True, "volumeAttributes": attributes}})
    if options.models_claim is not None:
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": options.models_claim, "readOnly": True}})
    return volumes


def _secrets(spec: FunctionSpec, options: PodOptions) -> list[dict[str, Any]]:
    files = [name for name in spec.secrets if name not in options.pull_secrets]
    return [{"secret": {"name": name}} for name in (*files, token_secret(spec.key))]


def _longest_s(spec: FunctionSpec) -> float:
    """The longest time of a request in flight, in seconds: the watchdog's `write_timeout`, else the request's deadline."""
    try:
        return parse_duration_s(spec.environment["write_timeout"])
    except (KeyError, ValueError):
        return spec.settings.deadline_s
