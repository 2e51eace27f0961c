"""The cluster's nodes: what each has, what is asked of it, and which of them a pod of ours gets.

What a node has left is in the `ledger`. The scheduler counts in the same way, so what is given here fits when the gate is lifted,
unless somebody else was quicker: such a pod waits, and its instance says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Node
from gnomon_platforms.kubernetes.objects.names import INSTANCE_ANNOTATION
from gnomon_platforms.kubernetes.objects.placing import Placing
from gnomon_platforms.kubernetes.objects.pods import ENDED_PHASES
from gnomon_platforms.kubernetes.objects.quantities import bytes_of, cores_of

_FORBIDDING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node. `taints` are those that keep pods away: key, value, effect."""

    name: str
    cores: float
    memory_bytes: int
    usable: bool
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()


def node_facts(document: dict[str, Any]) -> NodeFacts:
    """Read a node."""
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    allocatable = status.get("allocatable") or {}
    conditions = {one.get("type"): one.get("status") for one in status.get("conditions") or ()}
    taints = tuple((one["key"], one.get("value", ""), one["effect"]) for one in spec.get("taints") or ())
    return NodeFacts(
        metadata["name"],
        cores_of(allocatable.get("cpu")),
        bytes_of(allocatable.get("memory")),
        conditions.get("Ready") == "True" and not spec.get("unschedulable", False),
        metadata.get("labels") or {},
        tuple(taint for taint in taints if taint[2] in _FORBIDDING),
    )


@dataclass(frozen=True, slots=True)
class Load:
    """What a pod, anybody's, asks of its node. `instance` is ours that it was given to."""

    node: str | None
    cores: float
    memory_bytes: int
    instance: str | None
    ended: bool


def pod_load(document: dict[str, Any]) -> Load:
    """Read what a pod asks for: its containers together, or its largest init container, and the overhead of its runtime."""
    spec = document.get("spec") or {}
    initial = [_request(one) for one in spec.get("initContainers") or ()]
    together = [_request(one) for one in spec.get("containers") or ()]
    overhead = spec.get("overhead") or {}
    return Load(
        spec.get("nodeName"),
        max([sum(cores for cores, _ in together), *(cores for cores, _ in initial)]) + cores_of(overhead.get("cpu", "0")),
        max([sum(size for _, size in together), *(size for _, size in initial)]) + bytes_of(overhead.get("memory", "0")),
        (document["metadata"].get("annotations") or {}).get(INSTANCE_ANNOTATION),
        (document.get("status") or {}).get("phase") in ENDED_PHASES,
    )


@dataclass(frozen=True, slots=True)
class Given:
    """What one of our instances has of a node."""

    node: str
    cores: float
    memory_bytes: int


def choose(nodes: Iterable[Node], allowed: set[str], cores: float, memory_bytes: int, named: str | None) -> str:
    """The node for an instance: the one that was named, else of those with room the one with most cores left.

    Raises:
        GnomonError: 503 `no_capacity`.

    """
    candidates = [node for node in nodes if node.name in allowed and named in (None, node.name)]
    if not candidates:
        problem = f"There is no node {named!r} for this function." if named is not None else "No node takes this function."
        raise GnomonError(503, "no_capacity", problem, "Check its constraints, and `kubectl get nodes`.")
    fitting = [node for node in candidates if node.free_cores >= cores and node.free_memory_bytes >= memory_bytes]
    if not fitting:
        most = max(node.free_cores for node in candidates)
        raise GnomonError(
            503,
            "no_capacity",
            f"No node has {cores:g} cores and {memory_bytes // 2**20} MiB left; the most are {most:g} cores.",
            "Wait for an instance to end, ask for less, or add a node.",
        )
    return max(fitting, key=lambda node: (node.free_cores, node.name)).name


def takes(facts: NodeFacts, placing: Placing) -> bool:
    """Whether a node meets a function's constraints, and a function tolerates its taints."""
    if not (facts.taints or placing.node_selector or placing.expressions):
        return True  # nearly always: and hundreds of nodes are asked about for each instance
    wanted = all(facts.labels.get(name) == value for name, value in placing.node_selector.items())
    unwanted = any(facts.labels.get(one["key"]) in one["values"] for one in placing.expressions)
    return wanted and not unwanted and all(any(_tolerates(one, taint) for one in placing.tolerations) for taint in facts.taints)


def _tolerates(toleration: dict[str, str], taint: tuple[str, str, str]) -> bool:
    key, value, effect = taint
    if toleration["key"] != key or toleration.get("effect", effect) != effect:
        return False
    return toleration["operator"] == "Exists" or toleration.get("value") == value


def _request(container: dict[str, Any]) -> tuple[float, int]:
    resources = container.get("resources") or {}
    requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return cores_of(requests.get("cpu", "0")), bytes_of(requests.get("memory", "0"))
