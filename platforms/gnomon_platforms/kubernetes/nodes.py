"""The cluster's nodes: their allocatable resources, pods' requests, and the choice of a node for a pod of ours.

`ledger` computes free capacity. Resources are counted as the scheduler does: requests, or the limit without a request; cores,
memory, pods, and any other resource such as devices. So a pod fits on its node when its scheduling gate is removed, unless
another pod was scheduled first: then the pod waits, and its instance reports why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Node
from gnomon_core.functions import FunctionSpec
from gnomon_platforms.kubernetes.objects.names import INSTANCE_ANNOTATION
from gnomon_platforms.kubernetes.objects.placing import Placing
from gnomon_platforms.kubernetes.objects.pods import ENDED_PHASES
from gnomon_platforms.kubernetes.objects.quantities import amounts_of, requests_of, resources

Others: TypeAlias = tuple[tuple[str, int], ...]
"""Amounts of other resources by their names in Kubernetes: devices, ephemeral storage, huge pages."""

_FORBIDDING = ("NoSchedule", "NoExecute")
_BY_NAME = ("cpu", "memory", "pods")
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node. `taints` are those that forbid scheduling: key, value, effect. `pods` is the most pods that it takes."""

    name: str
    cores: float
    memory_bytes: int
    usable: bool
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()
    pods: int = 0
    others: Others = ()


def node_facts(document: dict[str, Any]) -> NodeFacts:
    """Read a node."""
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    allocatable = amounts_of(status.get("allocatable") or {})
    conditions = {one.get("type"): one.get("status") for one in status.get("conditions") or ()}
    taints = tuple((one["key"], one.get("value", ""), one["effect"]) for one in spec.get("taints") or ())
    return NodeFacts(
        metadata["name"],
        allocatable.get("cpu", 0.0),
        int(allocatable.get("memory", 0)),
        conditions.get("Ready") == "True" and not spec.get("unschedulable", False),
        metadata.get("labels") or {},
        tuple(taint for taint in taints if taint[2] in _FORBIDDING),
        int(allocatable.get("pods", 0)),
        _others(allocatable),
    )


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of any user's pod. `instance` is the instance of ours that the pod is bound to."""

    node: str | None
    cores: float
    memory_bytes: int
    instance: str | None
    ended: bool
    others: Others = ()
    pods: ClassVar[int] = 1


def pod_load(document: dict[str, Any]) -> Load:
    """Read a pod's requests."""
    spec = document.get("spec") or {}
    counted = _counted(spec)
    return Load(
        spec.get("nodeName"),
        counted.get("cpu", 0.0),
        int(counted.get("memory", 0)),
        (document["metadata"].get("annotations") or {}).get(INSTANCE_ANNOTATION),
        (document.get("status") or {}).get("phase") in ENDED_PHASES,
        _others(counted),
    )


@dataclass(frozen=True, slots=True)
class Given:
    """An instance's reservation on a node. `pods` is 0 for a Shadow, which has no pod of its own."""

    node: str
    cores: float
    memory_bytes: int
    pods: int = 0
    others: Others = ()


def given_to(spec: FunctionSpec, cores: int, node: str = "") -> Given:
    """The reservation for the pod of an instance with this number of cores.

    Raises:
        GnomonError: 400 for a resource that cannot be read.

    """
    counted = requests_of(resources(spec, cores))
    return Given(node, counted.get("cpu", 0.0), int(counted.get("memory", 0)), 1, _others(counted))


@dataclass(frozen=True, slots=True)
class Room:
    """A node's free capacity: the `Node` that policies see, free pods, and other free resources."""

    node: Node
    pods: int
    others: Mapping[str, int]


def choose(rooms: Iterable[Room], allowed: set[str], wanted: Given, named: str | None) -> str:
    """Choose the node for an instance: the named one if the pod fits there, else the fitting node with the most free cores.

    The policy that names a node knows its free cores, but neither the function's constraints nor its other requests.

    Raises:
        GnomonError: 503 `no_capacity`, with the missing resource.

    """
    rooms = tuple(rooms)
    if named is not None and all(room.node.name != named for room in rooms):
        raise _no_capacity(f"There is no node {named!r} that takes pods.", "Check `kubectl get nodes`.")
    candidates = [room for room in rooms if room.node.name in allowed]
    if not candidates:
        raise _no_capacity("No node takes this function.", "Check its constraints, and `kubectl get nodes`.")
    fitting = [room for room in candidates if _fits(room, wanted)]
    if not fitting:
        hint = "Wait for an instance to end, ask for less, or add a node: `kubectl describe nodes` says what each has."
        raise _no_capacity(_lacking(candidates, wanted), hint)
    return max(fitting, key=lambda room: (room.node.name == named, room.node.free_cores, room.node.name)).node.name


def place_shadow(nodes: Iterable[Node], allowed: set[str], cores: int, named: str) -> str:
    """Choose the node for a Shadow on another node than its Body: the named one if its function may run there.

    The policy that names a node knows its free cores, but neither the function's constraints nor taints, such as those of
    control-plane nodes, which have pools as well. Otherwise, choose the allowed node with a pool and the most free cores.

    Raises:
        GnomonError: 503 `no_capacity`.

    """
    nodes = tuple(nodes)
    if named in allowed or all(node.name != named for node in nodes):
        return named
    fitting = [node for node in nodes if node.name in allowed and node.pairs and node.free_cores >= cores]
    if not fitting:
        problem = f"The function may not be on {named}, and no other node has {cores} cores for its Shadow."
        raise _no_capacity(problem, "Check its constraints, and `kubectl get nodes`.")
    return max(fitting, key=lambda node: (node.free_cores, node.name)).name


def takes(facts: NodeFacts, placing: Placing) -> bool:
    """Whether a pod may be scheduled to a node: the labels match its selectors, and it tolerates the taints."""
    if not (facts.taints or placing.node_selector or placing.terms):
        return True  # fast path, nearly always: hundreds of nodes are checked for each instance
    labels = {**facts.labels, "metadata.name": facts.name}
    wanted = all(labels.get(name) == value for name, value in placing.node_selector.items())
    met = not placing.terms or any(term and all(meets(labels, one) for one in term) for term in placing.terms)
    return wanted and met and all(any(_tolerates(one, taint) for one in placing.tolerations) for taint in facts.taints)


def meets(labels: Mapping[str, str], expression: Mapping[str, Any]) -> bool:
    """Whether labels meet a selector's expression, as Kubernetes evaluates it. Gt and Lt compare whole numbers."""
    operator, found = str(expression["operator"]), labels.get(expression["key"])
    values: Sequence[str] = expression.get("values") or ()
    if operator in ("Exists", "DoesNotExist"):
        return (found is not None) == (operator == "Exists")
    if operator in ("In", "NotIn"):
        return (found in values) == (operator == "In")
    if found is None or not found.isdecimal():
        return False
    return int(found) > int(values[0]) if operator == "Gt" else int(found) < int(values[0])


def _tolerates(toleration: Mapping[str, Any], taint: tuple[str, str, str]) -> bool:
    """Whether a toleration matches a taint. An omitted key or effect matches any, an omitted value only the empty one."""
    key, value, effect = taint
    if (toleration.get("key") or key) != key or (toleration.get("effect") or effect) != effect:
        return False
    operator = str(toleration.get("operator") or "Equal")
    return operator == "Exists" or (operator == "Equal" and str(toleration.get("value") or "") == value)


def _fits(room: Room, wanted: Given) -> bool:
    node = room.node
    if wanted.cores > node.free_cores or wanted.memory_bytes > node.free_memory_bytes or wanted.pods > room.pods:
        return False
    return all(amount <= room.others.get(name, 0) for name, amount in wanted.others)


def _lacking(rooms: list[Room], wanted: Given) -> str:
    """The message that names the resources of which no node has enough, with the largest free amount of each."""
    asked: list[tuple[str, float, float]] = [
        ("cores", wanted.cores, max(room.node.free_cores for room in rooms)),
        ("MiB", wanted.memory_bytes / _MIB, max(room.node.free_memory_bytes for room in rooms) / _MIB),
        ("pods", wanted.pods, max(room.pods for room in rooms)),
        *((name, amount, max(room.others.get(name, 0) for room in rooms)) for name, amount in wanted.others),
    ]
    short = [f"{amount:.10g} {name} ({max(0.0, most):.10g} at most)" for name, amount, most in asked if amount > most]
    if short:
        return f"No node has enough left of what an instance asks for: {', '.join(short)}."
    return f"No node has all of it left together: {', '.join(f'{amount:.10g} {name}' for name, amount, _ in asked if amount)}."


def _no_capacity(problem: str, hint: str) -> GnomonError:
    return GnomonError(503, "no_capacity", problem, hint)


def _counted(spec: dict[str, Any]) -> dict[str, float]:
    """A pod's effective requests: the sum of its containers or the largest init container, plus its runtime's overhead."""
    containers: list[dict[str, Any]] = spec.get("containers") or []
    beside: dict[str, float] = {}
    first: dict[str, float] = {}
    if len(containers) == 1 and not any(spec.get(name) for name in ("initContainers", "resources", "overhead")):
        return requests_of(containers[0].get("resources") or {})  # fast path, nearly always: there are thousands of pods
    for one in spec.get("initContainers") or ():
        with_it = _together(beside, requests_of(one.get("resources") or {}))
        first = {name: max(first.get(name, 0.0), with_it.get(name, 0.0)) for name in first | with_it}
        if one.get("restartPolicy") == "Always":
            beside = with_it  # a sidecar: it keeps running next to all later containers
    together = _together(beside, *(requests_of(one.get("resources") or {}) for one in containers))
    most = {name: max(first.get(name, 0.0), together.get(name, 0.0)) for name in first | together}
    # Pod-level requests replace the sum of the containers' requests.
    return _together(most | requests_of(spec.get("resources") or {}), amounts_of(spec.get("overhead") or {}))


def _together(*each: Mapping[str, float]) -> dict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for one in each:
        for name, amount in one.items():
            total[name] += amount
    return dict(total)


def _others(amounts: Mapping[str, float]) -> Others:
    return tuple((name, int(amount)) for name, amount in amounts.items() if name not in _BY_NAME)
