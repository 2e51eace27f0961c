"""Conversion of a Deployment to a function: its specification and its status."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from gnomon_core.clock import seconds_of
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_platforms.kubernetes.objects.names import (
    CREATED_ANNOTATION,
    DEPLOYMENT_ANNOTATION,
    FORMER_PLACEMENT_GATE,
    FUNCTION_LABEL,
    MANAGED_LABEL,
    REMOVED_ANNOTATION,
    RESERVED_ANNOTATIONS,
    RESTARTED_ANNOTATION,
    VERSION_LABEL,
    token_secret,
)
from gnomon_platforms.kubernetes.objects.placing import constraints_of
from gnomon_platforms.kubernetes.objects.pods import whole, words

_OURS = (FUNCTION_LABEL, MANAGED_LABEL, VERSION_LABEL)
_OUR_VARIABLES = ("GNOMON_", "write_timeout", "fprocess")


@dataclass(frozen=True, slots=True)
class DeployedFunction:
    """A function's Deployment. `spec` is what was deployed, `template_version` the version that its new pods have.

    `removed` is whether the function was removed; the Deployment then only stays for requests in flight. `failure` says why its
    ReplicaSets cannot create missing pods, if they have tried with the present number and template. `max_unavailable` is how many
    pods a rolling update may remove before their successors are ready: 0, or 1 for any other number. `restarted` is whether a
    user has restarted the pods of the present template. `scaled_by` is the field manager that has set the number of replicas.
    """

    spec: FunctionSpec
    uid: str
    resource_version: str
    generation: int
    version: int
    template_version: int
    created_at: float
    replicas: int
    removed: bool = False
    failure: str = ""
    max_unavailable: int = 0
    restarted: bool = False
    scaled_by: str = ""


def deployed_function(document: dict[str, Any]) -> DeployedFunction | None:
    """Read a Deployment; None if it is no function, or a copy of another function's Deployment in another namespace.

    A Deployment by other software, such as OpenFaaS's own provider, is read from its pod template.
    """
    metadata, status = document["metadata"], document.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    template = document["spec"]["template"]
    name = labels.get(FUNCTION_LABEL) or (template["metadata"].get("labels") or {}).get(FUNCTION_LABEL)
    if not name or name != metadata["name"]:
        return None
    try:
        spec = read_deployment(_sent(document), metadata.get("namespace", ""))
    except (GnomonError, ValueError, RecursionError):
        return None
    if spec.key != FunctionKey(metadata["name"], metadata.get("namespace", "")):
        return None
    observed = status.get("observedGeneration", 0) >= metadata.get("generation", 0)
    return DeployedFunction(
        spec=spec,
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        generation=metadata.get("generation", 0),
        version=whole(labels.get(VERSION_LABEL)),
        template_version=_template_version(template),
        created_at=_created_at(metadata),
        # Kubernetes' default for absent replicas is 1.
        replicas=document["spec"].get("replicas", 1),
        removed=REMOVED_ANNOTATION in annotations,
        failure=_failure(status) if observed else "",
        max_unavailable=0 if (document["spec"].get("strategy") or {}).get("rollingUpdate", {}).get("maxUnavailable") == 0 else 1,
        restarted=RESTARTED_ANNOTATION in (template["metadata"].get("annotations") or {}),
        scaled_by=_scaled_by(metadata),
    )


def _template_version(template: dict[str, Any]) -> int:
    """The version of a function that a pod template runs; 0 if its pods would wait for a gateway of before to place them."""
    gates = (template.get("spec") or {}).get("schedulingGates") or ()
    if any(gate.get("name") == FORMER_PLACEMENT_GATE for gate in gates):
        return 0
    return whole((template["metadata"].get("labels") or {}).get(VERSION_LABEL))


def _scaled_by(metadata: dict[str, Any]) -> str:
    """The field manager of `spec.replicas` by `managedFields`; the last one of several."""
    found = ""
    for entry in metadata.get("managedFields") or ():
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}):
            found = str(entry.get("manager") or "")
    return found


def _failure(status: dict[str, Any]) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("reason") == "FailedCreate":
            return words("FailedCreate", condition.get("message")) if condition.get("status") == "True" else ""
    return ""


def _created_at(metadata: dict[str, Any]) -> float:
    """The creation time in seconds since 1970: Gnomon's annotation, else Kubernetes' timestamp of whole seconds."""
    try:
        written = float((metadata.get("annotations") or {})[CREATED_ANNOTATION])
    except (KeyError, ValueError):
        written = math.nan
    # By `kubectl annotate` it may be `nan`, which is no time: a list of functions with it could not be written.
    return written if math.isfinite(written) else seconds_of(metadata.get("creationTimestamp"))


def _sent(document: dict[str, Any]) -> dict[str, Any]:
    """The FunctionDeployment: as it was sent if the annotation has it, else reconstructed from the pod template."""
    metadata = document["metadata"]
    kept = (metadata.get("annotations") or {}).get(DEPLOYMENT_ANNOTATION)
    if kept is not None:
        sent = json.loads(kept)
        return sent if isinstance(sent, dict) else {}
    pod = document["spec"]["template"]["spec"]
    container = pod["containers"][0]
    variables = {variable["name"]: variable.get("value", "") for variable in container.get("env") or ()}
    resources = container.get("resources") or {}
    token = token_secret(FunctionKey(metadata["name"]))
    found: dict[str, Any] = {
        "service": metadata["name"],
        "namespace": metadata.get("namespace"),
        "image": container.get("image"),
        "envProcess": variables.pop("fprocess", None),
        "envVars": {name: value for name, value in variables.items() if not name.startswith(_OUR_VARIABLES)},
        "constraints": list(constraints_of(pod)),
        "secrets": [name for name in _mounted(pod) if name != token],
        "labels": {key: value for key, value in (metadata.get("labels") or {}).items() if key not in _OURS},
        "annotations": {
            key: value for key, value in (metadata.get("annotations") or {}).items() if key not in RESERVED_ANNOTATIONS
        },
        "limits": resources.get("limits"),
        "requests": resources.get("requests"),
        "readOnlyRootFilesystem": (container.get("securityContext") or {}).get("readOnlyRootFilesystem"),
    }
    return {name: value for name, value in found.items() if value not in (None, {}, [], "")}


def _mounted(pod: dict[str, Any]) -> list[str]:
    names = []
    for volume in pod.get("volumes") or ():
        if "secret" in volume:
            names.append(volume["secret"].get("secretName", ""))
        sources = (volume.get("projected") or {}).get("sources") or ()
        names += [source["secret"].get("name", "") for source in sources if "secret" in source]
    return [name for name in names if name]
