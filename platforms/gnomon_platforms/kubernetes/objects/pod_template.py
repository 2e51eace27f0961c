"""The pod of an instance.

It is what Pod Security calls "restricted", whatever the function asks for: no root, no privileges, no token of the API server.
The root file system is read-only unless the deployment says `"readOnlyRootFilesystem": false`; /tmp can be written. Probes are
those of OpenFaaS's workload contract. A pod is born gated where placing is ours, and unready until we let it serve. A Body can
have Shadows where nodes have coordinators: then its pod has their volume, and the models'.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from typing import Any

from gnomon_core.functions import FunctionSpec
from gnomon_core.units import parse_duration_s
from gnomon_platforms.kubernetes.objects.names import (
    FUNCTION_LABEL,
    MANAGED,
    MANAGED_LABEL,
    PLACEMENT_GATE,
    PORT,
    PORT_NAME,
    SECRETS_FOLDER,
    SERVING_CONDITION,
    VERSION_LABEL,
    token_secret,
)
from gnomon_platforms.kubernetes.objects.placing import read_constraints
from gnomon_platforms.kubernetes.objects.probes import probes
from gnomon_platforms.kubernetes.objects.quantities import resources

USER = 12_000
"""Nobody in any image; a number, because `runAsNonRoot` cannot check a name."""
SECRET_MODE = 0o440
GRACE_S = 5
"""On top of what is in flight: the way of a SIGTERM and of the last answers."""
TMP_SIZE = "1Gi"
CSI_DRIVER, FUNCTION_ATTRIBUTE = "node.gnomon", "gnomon/function"
BODY_FOLDERS = {"coordinator": "/run/gnomon", "models": "/models"}
"""Where a Body looks for them."""


@dataclass(frozen=True, slots=True)
class PodOptions:
    """What the operator says once about all pods.

    `place` gates them until we have chosen a node. `user` is who they run as. `image_pull_policy` is Kubernetes'. `runtime_class`
    and `pull_secrets` are passed on; a pull secret that a function names is for the kubelet, and no file of the function's.
    """

    place: bool = True
    user: int = USER
    image_pull_policy: str = "IfNotPresent"
    runtime_class: str | None = None
    pull_secrets: tuple[str, ...] = ()
    coordinated: bool = False
    """Bodies get the volume of their node's coordinator. A pod with it starts only on nodes that have one."""
    models_claim: str | None = None
    """A PersistentVolumeClaim in the function's namespace with the model repository; without it images have their models."""


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
        "terminationGracePeriodSeconds": math.ceil(_longest_s(spec)) + GRACE_S,
        "readinessGates": [{"conditionType": SERVING_CONDITION}],
        "containers": [_container(spec, options)],
        "volumes": [
            {"name": "tmp", "emptyDir": {"sizeLimit": TMP_SIZE}},
            {"name": "secrets", "projected": {"defaultMode": SECRET_MODE, "sources": _secrets(spec, options)}},
            *_body_volumes(spec, options),
        ],
        **read_constraints(spec.constraints).fields(),
    }
    if options.place:
        pod["schedulingGates"] = [{"name": PLACEMENT_GATE}]
    if options.runtime_class is not None:
        pod["runtimeClassName"] = options.runtime_class
    if options.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
    return {"metadata": {"labels": labels, "annotations": dict(spec.annotations)}, "spec": pod}


def pod_digest(spec: FunctionSpec, options: PodOptions) -> str:
    """What a function's pods are made of, in short: pods with another digest do not become these by new labels.

    How large batches may be is left out: a pod takes whatever it is sent.

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
    """The variables of a function's container: what its images need to know, under what its user says."""
    settings = spec.settings
    ours = {
        "GNOMON_FUNCTION": str(spec.key),
        "GNOMON_CORES": str(settings.cores),
        "GNOMON_MAX_BATCH": str(settings.max_batch),
        "write_timeout": f"{settings.deadline_s:g}s",
    }
    if settings.concurrency is not None:
        ours |= {"GNOMON_CONCURRENCY": str(settings.concurrency)}
    if settings.model is not None:
        ours |= {"GNOMON_MODEL": settings.model, "GNOMON_WEIGHTS": settings.weight_mode}
    process = {"fprocess": spec.env_process} if spec.env_process else {}
    return {**ours, **spec.environment, **process}


def _body_volumes(spec: FunctionSpec, options: PodOptions) -> list[dict[str, Any]]:
    """What a Body needs for its Shadows: a socket of its own to its node's coordinator, and the files that both map."""
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
    """How long what is in flight may take: the watchdog's own setting, else the deadline of a request."""
    try:
        return parse_duration_s(spec.environment["write_timeout"])
    except (KeyError, ValueError):
        return spec.settings.deadline_s
