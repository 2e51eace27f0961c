"""The cluster's nodes and their free capacity, as policies see it and Shadows use it.

The scheduler places pods. Free capacity is what it would find: allocatable, less the requests of the node's pods. Shadows are
processes in a coordinator's pod, whose CPU request follows them with a delay: each claims its cores and memory here at once.

Free capacity is read for each function at each look, and changes by one pod at a time: with 1,000 functions on 200 nodes, a sum
over all pods took 2 ms, two thousand times a second. So each event marks its nodes, and only their sums are computed again. A sum
is always computed from its parts, never updated by a difference, so that errors cannot accumulate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Node
from gnomon_platforms.kubernetes.informer import Change
from gnomon_platforms.kubernetes.objects.placing import Placing
from gnomon_platforms.kubernetes.objects.pods import ENDED_PHASES
from gnomon_platforms.kubernetes.objects.quantities import amounts_of, requests_of

PodName = tuple[str, str]
"""Namespace and name."""
_FORBIDDING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node. `taints` are those that forbid scheduling: key, value, effect."""

    name: str
    cores: float
    memory_bytes: int
    usable: bool
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()


def node_facts(document: dict[str, Any]) -> NodeFacts:
    """Read a node."""
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    allocatable = amounts_of(status.get("allocatable") or {})
    conditions = {condition.get("type"): condition.get("status") for condition in status.get("conditions") or ()}
    taints = tuple((taint["key"], taint.get("value", ""), taint["effect"]) for taint in spec.get("taints") or ())
    return NodeFacts(
        metadata["name"],
        allocatable.get("cpu", 0.0),
        int(allocatable.get("memory", 0)),
        conditions.get("Ready") == "True" and not spec.get("unschedulable", False),
        metadata.get("labels") or {},
        tuple(taint for taint in taints if taint[2] in _FORBIDDING),
    )


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of any user's pod."""

    node: str | None
    cores: float
    memory_bytes: int
    ended: bool


def pod_load(document: dict[str, Any]) -> Load:
    """Read a pod's requests."""
    spec = document.get("spec") or {}
    requested = _effective_requests(spec)
    return Load(
        spec.get("nodeName"),
        requested.get("cpu", 0.0),
        int(requested.get("memory", 0)),
        (document.get("status") or {}).get("phase") in ENDED_PHASES,
    )


@dataclass(frozen=True, slots=True)
class Claim:
    """The cores and memory that a Shadow takes of a node."""

    node: str
    cores: float
    memory_bytes: int


class NodeCapacity:
    """Free capacity of all nodes. `load_changed` and `node_changed` are callbacks of informers."""

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}
        """The claim of each Shadow, by its id."""
        self._facts: dict[str, NodeFacts] = {}
        self._loads: dict[str, dict[PodName, Load]] = defaultdict(dict)
        """The requests of each node's pods, by node and pod."""
        self._nodes: dict[str, Node] = {}
        self._pools: set[str] = set()
        """The nodes whose pool can make Shadows."""
        self._marked: set[str] = set()
        self._all: tuple[Node, ...] = ()

    def claim(self, shadow_id: str, claim: Claim) -> None:
        """Set a Shadow's claim, in place of an earlier one."""
        self.withdraw(shadow_id)
        self._claims[shadow_id] = claim
        self._marked.add(claim.node)

    def withdraw(self, shadow_id: str) -> None:
        """Remove a Shadow's claim."""
        claim = self._claims.pop(shadow_id, None)
        if claim is not None:
            self._marked.add(claim.node)

    def pool_ready(self, node: str, *, ready: bool) -> None:
        """Set whether a node's pool can make Shadows."""
        if ready != (node in self._pools):
            (self._pools.add if ready else self._pools.discard)(node)
            self._marked.add(node)

    def load_changed(self, change: Change[Load]) -> None:
        """Handle the addition, change or removal of any user's pod that has a node."""
        for load in (change.old, change.new):
            if load is None or load.node is None:
                continue
            if load is change.old:
                self._loads[load.node].pop(change.name, None)
            elif not load.ended:
                self._loads[load.node][change.name] = load
            self._marked.add(load.node)

    def node_changed(self, change: Change[NodeFacts]) -> None:
        """Handle the addition, change or removal of a node. A heartbeat changes nothing."""
        if change.new == change.old:
            return
        name = change.name[1]
        if change.new is None:
            self._facts.pop(name, None)
        else:
            self._facts[name] = change.new
        self._marked.add(name)

    def nodes(self) -> tuple[Node, ...]:
        """The schedulable nodes with their free capacity, sorted by name."""
        self._sum_marked()
        return self._all

    def free_cores(self, node: str) -> float:
        """The free cores of a node; 0 if it is unknown or not schedulable."""
        self._sum_marked()
        found = self._nodes.get(node)
        return 0.0 if found is None else found.free_cores

    def place_shadow(self, placing: Placing, cores: int, named: str) -> str:
        """Choose the node for a Shadow on another node than its Body, whose pod has this `placing`.

        It is the named one if the Body's pod may run there: the policy that names a node knows its free cores, but neither the
        function's constraints nor taints, such as those of control-plane nodes, which have pools as well. Otherwise it is the
        admissible node with a pool and the most free cores.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        admissible = {facts.name for facts in self._facts.values() if admits_pod(facts, placing)}
        nodes = self.nodes()
        if named in admissible or all(node.name != named for node in nodes):
            return named
        fitting = [node for node in nodes if node.name in admissible and node.pairs and node.free_cores >= cores]
        if not fitting:
            problem = f"The function may not be on {named}, and no other node has {cores} cores for its Shadow."
            raise GnomonError(503, "no_capacity", problem, "Check its constraints, and `kubectl get nodes`.")
        return max(fitting, key=lambda node: (node.free_cores, node.name)).name

    def _sum_marked(self) -> None:
        if not self._marked:
            return
        for name in self._marked:
            self._sum(name)
        self._marked.clear()
        self._all = tuple(self._nodes[name] for name in sorted(self._nodes))

    def _sum(self, name: str) -> None:
        facts = self._facts.get(name)
        if facts is None or not facts.usable:
            self._nodes.pop(name, None)
            return
        taken: list[Claim | Load] = [*(claim for claim in self._claims.values() if claim.node == name)]
        taken += self._loads.get(name, {}).values()
        free_cores = max(0.0, round(facts.cores - sum(pod.cores for pod in taken), 6))
        free_bytes = max(0, facts.memory_bytes - sum(pod.memory_bytes for pod in taken))
        pairs = name in self._pools
        self._nodes[name] = Node(name, int(facts.cores), facts.memory_bytes, free_cores, free_bytes, pairs=pairs)


def admits_pod(facts: NodeFacts, placing: Placing) -> bool:
    """True if a pod may be scheduled to a node: the labels match its selectors, and it tolerates the taints."""
    if not (facts.taints or placing.node_selector or placing.terms):
        return True  # fast path, nearly always: hundreds of nodes are checked for each instance
    labels = {**facts.labels, "metadata.name": facts.name}
    selected = all(labels.get(name) == value for name, value in placing.node_selector.items())
    met = not placing.terms or any(term and all(meets(labels, expression) for expression in term) for term in placing.terms)
    return (
        selected
        and met
        and all(any(_tolerates(toleration, taint) for toleration in placing.tolerations) for taint in facts.taints)
    )


def meets(labels: Mapping[str, str], expression: Mapping[str, Any]) -> bool:
    """True if labels meet a selector's expression, as Kubernetes evaluates it. Gt and Lt compare whole numbers."""
    operator, value = str(expression["operator"]), labels.get(expression["key"])
    values: Sequence[str] = expression.get("values") or ()
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) == (operator == "Exists")
    if operator in ("In", "NotIn"):
        return (value in values) == (operator == "In")
    if value is None or not value.isdecimal():
        return False
    return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])


def _tolerates(toleration: Mapping[str, Any], taint: tuple[str, str, str]) -> bool:
    """True if a toleration matches a taint. An omitted key or effect matches any, an omitted value only the empty one."""
    key, value, effect = taint
    if (toleration.get("key") or key) != key or (toleration.get("effect") or effect) != effect:
        return False
    operator = str(toleration.get("operator") or "Equal")
    return operator == "Exists" or (operator == "Equal" and str(toleration.get("value") or "") == value)


def _effective_requests(spec: dict[str, Any]) -> dict[str, float]:
    """A pod's effective requests: the sum of its containers or the largest init container, plus its runtime's overhead."""
    containers: list[dict[str, Any]] = spec.get("containers") or []
    concurrent: dict[str, float] = {}
    first: dict[str, float] = {}
    if len(containers) == 1 and not any(spec.get(name) for name in ("initContainers", "resources", "overhead")):
        return requests_of(containers[0].get("resources") or {})  # fast path, nearly always: there are thousands of pods
    for container in spec.get("initContainers") or ():
        with_init = _summed(concurrent, requests_of(container.get("resources") or {}))
        first = {name: max(first.get(name, 0.0), with_init.get(name, 0.0)) for name in first | with_init}
        if container.get("restartPolicy") == "Always":
            concurrent = with_init  # a sidecar: it keeps running next to all later containers
    regular = _summed(concurrent, *(requests_of(container.get("resources") or {}) for container in containers))
    most = {name: max(first.get(name, 0.0), regular.get(name, 0.0)) for name in first | regular}
    # Pod-level requests replace the sum of the containers' requests.
    return _summed(most | requests_of(spec.get("resources") or {}), amounts_of(spec.get("overhead") or {}))


def _summed(*each: Mapping[str, float]) -> dict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for requests in each:
        for name, amount in requests.items():
            total[name] += amount
    return dict(total)
