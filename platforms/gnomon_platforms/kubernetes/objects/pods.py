"""The facts about a pod that its instance's owner needs, and no more: so the informer's cache stays small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnomon_core.clock import seconds_of
from gnomon_core.fleet import InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_platforms.kubernetes.objects.names import (
    DELETION_COST,
    FUNCTION_LABEL,
    INSTANCE_ANNOTATION,
    VERSION_LABEL,
)
from gnomon_platforms.kubernetes.objects.quantities import amount_of, bytes_of

ENDED_PHASES = ("Succeeded", "Failed")
MAX_WORDS = 300
UNSCHEDULABLE = "Unschedulable"
"""The prefix of `PodFacts.trouble` for a pod without a node that has room for it."""
RESIZE = "resize"
"""The prefix of `PodFacts.trouble` for a resize that is pending or refused."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod of a function.

    `instance` is the instance that it is bound to, if any. `cores` are those of its specification, `effective_cores` those that
    its container has now. `healthy` is whether its containers are ready, `ready` whether Kubernetes sends it requests. `trouble`
    says why the pod does not become ready.
    """

    name: str
    namespace: str
    uid: str
    resource_version: str
    function: str
    version: int
    created_at: float
    node: str | None
    phase: str
    ip: str | None
    healthy: bool
    ready: bool
    ending: bool
    deletion_cost: int
    instance: str | None
    cores: float
    effective_cores: float
    memory_bytes: int
    restarts: int
    trouble: str

    @property
    def key(self) -> FunctionKey:
        return FunctionKey(self.function, self.namespace)

    @property
    def ended(self) -> bool:
        """True if it has ended by itself, as after an eviction. No ReplicaSet counts it any more."""
        return self.phase in ENDED_PHASES

    @property
    def unschedulable(self) -> bool:
        """True if the scheduler has found no node for it; `trouble` has the scheduler's reason."""
        return self.node is None and self.trouble.startswith(UNSCHEDULABLE)

    @property
    def state(self) -> InstanceState:
        """The state of the pod's instance, as far as Kubernetes knows."""
        if self.ended:
            return InstanceState.GONE
        if self.ending:
            return InstanceState.DRAINING
        return InstanceState.READY if self.healthy and self.ip else InstanceState.STARTING


def pod_facts(pod: dict[str, Any]) -> PodFacts:
    """Read a pod as the API server sends it. Only its name is required."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    name = str(labels.get(FUNCTION_LABEL, ""))
    conditions = {condition.get("type"): condition.get("status") == "True" for condition in status.get("conditions") or ()}
    container = _named(spec.get("containers") or (), name)
    of_container = _named(status.get("containerStatuses") or (), name)
    resources = container.get("resources") or {}
    return PodFacts(
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        function=name,
        version=whole(labels.get(VERSION_LABEL)),
        created_at=seconds_of(metadata.get("creationTimestamp")),
        node=spec.get("nodeName"),
        phase=status.get("phase", "Pending"),
        ip=status.get("podIP"),
        healthy=conditions.get("ContainersReady", False),
        ready=conditions.get("Ready", False),
        ending="deletionTimestamp" in metadata,
        deletion_cost=whole(annotations.get(DELETION_COST)),
        instance=annotations.get(INSTANCE_ANNOTATION),
        cores=cores_of(resources),
        effective_cores=cores_of(of_container.get("resources") or {}),
        memory_bytes=memory_of(resources),
        restarts=whole(of_container.get("restartCount")),
        trouble=_trouble(status, of_container),
    )


def _trouble(status: dict[str, Any], container: dict[str, Any]) -> str:
    """Return the reason why a pod is not ready, in Kubernetes' words: evicted, unschedulable, ErrImagePull, an exit code."""
    state = container.get("state") or {}
    for found in (state.get("waiting"), state.get("terminated"), (container.get("lastState") or {}).get("terminated")):
        if found and found.get("reason") not in (None, "ContainerCreating", "PodInitializing", "Completed"):
            code = f" with exit code {found['exitCode']}" if found.get("exitCode") else ""
            return words(f"{found['reason']}{code}", found.get("message"))
    if status.get("reason"):
        return words(status["reason"], status.get("message"))
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return words(condition.get("reason", "not scheduled"), condition.get("message"))
    return resize_trouble(status)


def words(reason: str, message: str | None) -> str:
    """Kubernetes' reason and message in one text of at most `MAX_WORDS` characters."""
    return f"{reason}: {message}"[:MAX_WORDS] if message else reason[:MAX_WORDS]


def _named(entries: Any, name: str) -> dict[str, Any]:
    """The function's container: the one with the function's name, else the first."""
    first: dict[str, Any] = {}
    for entry in entries:
        if entry.get("name") == name:
            return dict(entry)
        first = first or dict(entry)
    return first


def cores_of(resources: Mapping[str, Any]) -> float:
    """A container's cores: its CPU limit, else its request, else 0."""
    return amount_of(_either(resources, "cpu"))


def memory_of(resources: Mapping[str, Any]) -> int:
    """A container's memory in bytes: its limit, else its request, else 0."""
    return bytes_of(_either(resources, "memory"))


def resize_trouble(status: Mapping[str, Any]) -> str:
    """Return the reason why a node has deferred or refused a pod's resize, in Kubernetes' words; empty if it has not."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodResizePending" and condition.get("status") == "True":
            return words(f"{RESIZE} {condition.get('reason', 'pending')}", condition.get("message"))
    return ""


def _either(resources: Mapping[str, Any], name: str) -> object:
    """A limit, or the request if there is no limit."""
    limit = (resources.get("limits") or {}).get(name)
    return limit if limit is not None else (resources.get("requests") or {}).get(name, "0")


def whole(value: object) -> int:
    """Parse an integer; 0 if the value is not one."""
    try:
        return int(str(value))
    except ValueError:
        return 0
