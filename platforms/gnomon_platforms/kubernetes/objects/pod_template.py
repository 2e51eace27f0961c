"""The pod of an instance.

The pod always meets the Pod Security Standard "restricted": no root, no privileges, no service account token. The root file
system is read-only unless the deployment has `"readOnlyRootFilesystem": false`; /tmp is writable. Probes follow OpenFaaS's
workload contract. If nodes have coordinators, a Body's pod mounts their volume and the models', so that the Body can have
Shadows, and prefers nodes with a coordinator.

**Probes.** Probes of a function's container: those of OpenFaaS's workload contract, with overrides by annotations.

    com.openfaas.health.http.path              path of the liveness and startup probes: /_/health
    com.openfaas.ready.http.path               path of the readiness probe: /_/ready
    com.openfaas.(health|ready).http.NAME      initialDelay, periodSeconds, timeoutSeconds: 2, 2s, 1m30s
                                               successThreshold, failureThreshold: 3

The startup probe runs every second for up to five minutes; the other two begin after its success. The annotations of health also
apply to the startup probe, except its period and thresholds.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gnomon_core.coordination import NODES_NAMESPACE
from gnomon_core.engines import AUTO, FP32
from gnomon_core.errors import GnomonError, bad_request
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


HEALTH_PATH, READY_PATH = "/_/health", "/_/ready"
START_TIMEOUT_S = 300
LONGEST_S = 86_400

_SECONDS: Final = {
    "initialDelay": "initialDelaySeconds",
    "initialDelaySeconds": "initialDelaySeconds",
    "periodSeconds": "periodSeconds",
    "timeoutSeconds": "timeoutSeconds",
}
_COUNTS = ("successThreshold", "failureThreshold")


def probes(spec: FunctionSpec) -> dict[str, Any]:
    """The three probes of a container.

    Raises:
        GnomonError: 400 `invalid_annotation`, with the valid values.

    """
    health, ready = _overrides(spec.annotations, "health"), _overrides(spec.annotations, "ready")
    if health.get("successThreshold", 1) != 1:
        raise _invalid("com.openfaas.health.http.successThreshold", "1", "Kubernetes takes no other of a health check.")
    at_start = {name: value for name, value in health.items() if name in ("initialDelaySeconds", "timeoutSeconds")}
    # A short period notices a fast start; the large threshold allows for a slow one that loads a model.
    start = _probe(spec, "health", HEALTH_PATH, {"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": START_TIMEOUT_S})
    often = {"periodSeconds": 2, "timeoutSeconds": 1, "failureThreshold": 3}
    usual = {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3}
    return {
        "startupProbe": start | at_start,
        "readinessProbe": _probe(spec, "ready", READY_PATH, often | ready),
        "livenessProbe": _probe(spec, "health", HEALTH_PATH, usual | health),
    }


def _probe(spec: FunctionSpec, kind: str, default: str, numbers: Mapping[str, int]) -> dict[str, Any]:
    name = f"com.openfaas.{kind}.http.path"
    path = spec.annotations.get(name, default)
    if not path.startswith("/"):
        raise _invalid(name, path, f"It begins with '/', such as {default}.")
    return {"httpGet": {"path": path, "port": PORT_NAME, "scheme": "HTTP"}, "successThreshold": 1, **numbers}


def _overrides(annotations: Mapping[str, str], kind: str) -> dict[str, int]:
    """The numbers of one probe that annotations set, by Kubernetes' names."""
    prefix = f"com.openfaas.{kind}.http."
    overrides: dict[str, int] = {}
    for key in [key for key in annotations if key.startswith(prefix)]:
        name = key.removeprefix(prefix)
        if name in _SECONDS:
            overrides[_SECONDS[name]] = _seconds(key, annotations[key], least=0 if name.startswith("initial") else 1)
        elif name in _COUNTS:
            overrides[name] = _count(key, annotations[key])
        elif name != "path":
            known = ", ".join(("path", *_SECONDS, *_COUNTS))
            raise bad_request(
                "invalid_annotation", f"{key[:100]} is no known probe setting.", f"After {prefix} comes one of {known}."
            )
    return overrides


def _seconds(key: str, text: str, *, least: int) -> int:
    """A duration in whole seconds, rounded up."""
    try:
        seconds = math.ceil(parse_duration_s(text))
    except ValueError:
        seconds = -1
    if not least <= seconds <= LONGEST_S:
        raise _invalid(key, text, f"Write seconds from {least} to {LONGEST_S}, such as 2, 2s or 1m30s.")
    return seconds


def _count(key: str, text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text):
        raise _invalid(key, text, "Write a whole number from 1 on.")
    return int(text)


def _invalid(key: str, text: str, hint: str) -> GnomonError:
    return bad_request("invalid_annotation", f"{key} is {text[:100]!r}.", hint)
