"""The cluster's nodes: what each has, what is asked of it, and which of them a pod of ours gets.

What a node has left is in the `ledger`. Everything is counted as the scheduler counts it: what is requested, and the limit where
nothing is; of cores, of memory, of pods, and of whatever else a node offers, such as devices. So what is given here fits when the
gate is lifted, unless somebody else was quicker: such a pod waits, and its instance says why.
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
"""What is counted beside cores, memory and pods, by its name in Kubernetes: devices, a node's own storage, huge pages."""

_FORBIDDING = ("NoSchedule", "NoExecute")
_BY_NAME = ("cpu", "memory", "pods")
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node. `taints` are those that keep pods away: key, value, effect. `pods` is how many it takes."""

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
    """What a pod, anybody's, asks of its node. `instance` is ours that it was given to."""

    node: str | None
    cores: float
    memory_bytes: int
    instance: str | None
    ended: bool
    others: Others = ()
    pods: ClassVar[int] = 1


def pod_load(document: dict[str, Any]) -> Load:
    """Read what a pod asks for."""
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
    """What one of our instances has of a node. `pods` is 0 for a Shadow, which has no pod of its own."""

    node: str
    cores: float
    memory_bytes: int
    pods: int = 0
    others: Others = ()


def given_to(spec: FunctionSpec, cores: int, node: str = "") -> Given:
    """What an instance of so many cores takes of a node by its pod.

    Raises:
        GnomonError: 400 for a resource that cannot be read.

    """
    counted = requests_of(resources(spec, cores))
    return Given(node, counted.get("cpu", 0.0), int(counted.get("memory", 0)), 1, _others(counted))


@dataclass(frozen=True, slots=True)
class Room:
    """What a node has left: what policies see of it, how many pods, and how much of anything else."""

    node: Node
    pods: int
    others: Mapping[str, int]


def choose(rooms: Iterable[Room], allowed: set[str], wanted: Given, named: str | None) -> str:
    """The node for an instance: the one that was named, else of those with room the one with most cores left.

    Who names a node knows its cores, and neither which nodes a function may be on nor what else it asks for: where its pod does
    not fit, another node gets it.

    Raises:
        GnomonError: 503 `no_capacity`, with what is lacking.

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
    """The node for a Shadow that is to be on another one than its Body: the one that was named, where its function may be there.

    Who names one knows its cores, and neither a function's constraints nor the taints that it does not tolerate, such as those of
    the control plane's nodes, which have pools as well. Where it may not be there, it is the other one with most cores left.

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
    """Whether a node is one that a pod may be on: its labels are those that the pod wants, and the pod tolerates its taints."""
    if not (facts.taints or placing.node_selector or placing.terms):
        return True  # nearly always: and hundreds of nodes are asked about for each instance
    labels = {**facts.labels, "metadata.name": facts.name}
    wanted = all(labels.get(name) == value for name, value in placing.node_selector.items())
    met = not placing.terms or any(term and all(meets(labels, one) for one in term) for term in placing.terms)
    return wanted and met and all(any(_tolerates(one, taint) for one in placing.tolerations) for taint in facts.taints)


def meets(labels: Mapping[str, str], expression: Mapping[str, Any]) -> bool:
    """Whether labels meet an expression of a selector, as Kubernetes reads it. Gt and Lt compare whole numbers."""
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
    """What a toleration leaves out it leaves open, but for the value."""
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
    """Of what no node has enough, with the most that any has."""
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
    """What a pod asks for: its containers together, or the most that one of its first steps takes, and its runtime's overhead."""
    containers: list[dict[str, Any]] = spec.get("containers") or []
    beside: dict[str, float] = {}
    first: dict[str, float] = {}
    if len(containers) == 1 and not any(spec.get(name) for name in ("initContainers", "resources", "overhead")):
        return requests_of(containers[0].get("resources") or {})  # nearly always: and there are thousands of pods
    for one in spec.get("initContainers") or ():
        with_it = _together(beside, requests_of(one.get("resources") or {}))
        first = {name: max(first.get(name, 0.0), with_it.get(name, 0.0)) for name in first | with_it}
        if one.get("restartPolicy") == "Always":
            beside = with_it  # it runs on, beside all that come after it
    together = _together(beside, *(requests_of(one.get("resources") or {}) for one in containers))
    most = {name: max(first.get(name, 0.0), together.get(name, 0.0)) for name in first | together}
    # What is requested of the pod as a whole holds instead of what its containers say.
    return _together(most | requests_of(spec.get("resources") or {}), amounts_of(spec.get("overhead") or {}))


def _together(*each: Mapping[str, float]) -> dict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for one in each:
        for name, amount in one.items():
            total[name] += amount
    return dict(total)


def _others(amounts: Mapping[str, float]) -> Others:
    return tuple((name, int(amount)) for name, amount in amounts.items() if name not in _BY_NAME)
