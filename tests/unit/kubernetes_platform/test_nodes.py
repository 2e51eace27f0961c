"""Nodes, their coordinators and the Shadows there."""

from __future__ import annotations

import gc
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.functions import read_deployment
from gnomon_core.pairs import Pair
from gnomon_platforms.kubernetes.informer import Change
from gnomon_platforms.kubernetes.nodes import Claim, Load, NodeCapacity, NodeFacts, admits_pod, node_facts, pod_load
from gnomon_platforms.kubernetes.objects.placing import Placing, read_constraints
from gnomon_platforms.nodes.coordinators import CoordinatorPod, coordinator_pod, load_besides_shadows
from gnomon_platforms.nodes.node_shadow import BodyPod, adopted_shadow, pair_of, requested_shadow, should_contain
from gnomon_platforms.openfaas.observed import ObservedCluster, OpenFaasOptions
from tests.virtual_clock import VirtualClock

GIB = 2**30


def document(name: str = "n1", **spec: Any) -> dict[str, Any]:
    status = {
        "allocatable": {"cpu": "3500m", "memory": "8Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": name, "labels": {"zone": "a"}}, "spec": spec, "status": status}


def pod(node: str | None, *requests: dict[str, str], phase: str = "Running", **spec: Any) -> dict[str, Any]:
    containers = [{"resources": {"requests": request}} for request in requests]
    return {
        "metadata": {"name": "p"},
        "spec": {"nodeName": node, "containers": containers, **spec},
        "status": {"phase": phase},
    }


def test_node_offers_its_allocatable_resources_while_it_is_ready() -> None:
    facts = node_facts(document())
    assert (facts.cores, facts.memory_bytes, facts.usable) == (3.5, 8 * GIB, True)
    assert not node_facts(document(unschedulable=True)).usable
    sick = document()
    sick["status"]["conditions"][0]["status"] = "Unknown"
    assert not node_facts(sick).usable


def test_a_pod_asks_for_its_containers_together_or_for_its_largest_first_step() -> None:
    first = {"initContainers": [{"resources": {"requests": {"cpu": "2"}}}], "overhead": {"cpu": "250m"}}
    load = pod_load(pod("n1", {"cpu": "500m", "memory": "1Gi"}, {"cpu": "100m"}, **first))
    assert (load.cores, load.memory_bytes) == (2.25, GIB)
    # Without a request a limit is one.
    assert pod_load({"metadata": {}, "spec": {"containers": [{"resources": {"limits": {"cpu": "3"}}}]}}).cores == 3.0


def test_sidecar_requests_add_to_those_of_later_containers() -> None:
    """A sidecar is a first step that is restarted always: the steps after it and the containers ask for theirs beside it."""

    def asks(cpu: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    steps = [asks("3"), asks("1", restartPolicy="Always"), asks("2500m")]
    assert pod_load({"metadata": {}, "spec": {"initContainers": steps, "containers": [asks("1")]}}).cores == 3.5
    assert pod_load({"metadata": {}, "spec": {"initContainers": steps[:2], "containers": [asks("4")]}}).cores == 5.0


def test_pod_level_requests_replace_those_of_containers() -> None:
    asked = {"requests": {"cpu": "3", "memory": "1Gi"}}
    spec = {"resources": {"requests": {"cpu": "2"}}, "containers": [{"resources": asked}], "overhead": {"cpu": "250m"}}
    load = pod_load({"metadata": {}, "spec": spec})
    assert (load.cores, load.memory_bytes) == (2.25, GIB)


class Observed:
    """Free capacity, from documents that change."""

    def __init__(self) -> None:
        self.capacity = NodeCapacity()
        self._loads: dict[str, Load] = {}
        self._facts: dict[str, NodeFacts] = {}

    def node(self, name: str = "n1", **spec: Any) -> None:
        new = node_facts(document(name, **spec))
        self.capacity.node_changed(Change(("", name), self._facts.get(name), new))
        self._facts[name] = new

    def load(self, name: str, found: dict[str, Any] | None) -> None:
        new = None if found is None else pod_load(found)
        self.capacity.load_changed(Change(("fn", name), self._loads.pop(name, None), new))
        if new is not None:
            self._loads[name] = new

    @property
    def free(self) -> dict[str, float]:
        return {node.name: node.free_cores for node in self.capacity.nodes()}


def test_pods_and_shadows_take_of_a_node_what_they_request() -> None:
    seen = Observed()
    seen.node()
    seen.load("x", pod("n1", {"cpu": "500m"}))
    seen.load("y", pod("n1", {"cpu": "1"}, phase="Succeeded"))
    seen.load("z", pod(None, {"cpu": "1"}))
    seen.capacity.claim("a Shadow", Claim("n1", 1.0, GIB))
    [node] = seen.capacity.nodes()
    assert (node.free_cores, node.free_memory_bytes) == (2.0, 7 * GIB)
    seen.capacity.claim("a Shadow", Claim("n1", 2.0, GIB))
    assert seen.free == {"n1": 1.0}
    seen.capacity.withdraw("a Shadow")
    seen.load("x", None)
    assert seen.free == {"n1": 3.5}


def test_a_change_of_a_node_counts_at_once() -> None:
    seen = Observed()
    seen.load("x", pod("n2", {"cpu": "500m"}))
    assert seen.free == {}
    seen.node()
    seen.node("n2")
    assert seen.free == {"n1": 3.5, "n2": 3.0}
    seen.node("n2", unschedulable=True)
    assert seen.free == {"n1": 3.5}
    seen.load("x", pod("n1", {"cpu": "500m"}))
    seen.node("n2")
    assert seen.free == {"n1": 3.0, "n2": 3.5}
    seen.capacity.node_changed(Change(("", "n2"), node_facts(document("n2")), None))
    assert seen.free == {"n1": 3.0}
    assert (seen.capacity.free_cores("n1"), seen.capacity.free_cores("n2")) == (3.0, 0.0)


def test_a_node_makes_shadows_while_its_pool_can() -> None:
    seen = Observed()
    seen.node()
    seen.node("n2")
    assert [node.pairs for node in seen.capacity.nodes()] == [False, False]
    seen.capacity.pool_ready("n2", ready=True)
    assert [node.pairs for node in seen.capacity.nodes()] == [False, True]
    seen.node("n2", unschedulable=True)
    seen.node("n2")
    assert [node.pairs for node in seen.capacity.nodes()] == [False, True]
    seen.capacity.pool_ready("n2", ready=False)
    assert [node.pairs for node in seen.capacity.nodes()] == [False, False]


@pytest.mark.parametrize("seed", range(10))
def test_free_capacity_is_allocatable_minus_all_pods_and_shadows(seed: int) -> None:
    rng, seen = random.Random(seed), Observed()
    loads: dict[str, str] = {}
    claims: dict[str, str] = {}
    for node in ("n1", "n2"):
        seen.node(node)
    for _ in range(400):
        name, node = rng.choice(["p", "q", "r"]), rng.choice(["n1", "n2"])
        match rng.randrange(4):
            case 0:
                loads[name] = node
                seen.load(name, pod(node, {"cpu": "500m"}))
            case 1:
                loads.pop(name, None)
                seen.load(name, None)
            case 2:
                claims[name] = node
                seen.capacity.claim(name, Claim(node, 1.0, 0))
            case 3:
                claims.pop(name, None)
                seen.capacity.withdraw(name)
        pods, shadows = list(loads.values()), list(claims.values())
        assert seen.free == {
            node_name: max(0.0, 3.5 - 0.5 * pods.count(node_name) - shadows.count(node_name)) for node_name in ("n1", "n2")
        }


@pytest.mark.parametrize(
    ("constraints", "taken"),
    [
        ([], True),
        (["zone=a"], True),
        (["zone=b"], False),
        (["zone!=a"], False),
        (["zone!=b"], True),
        (["disk=ssd"], False),
    ],
)
def test_constraints_and_labels(constraints: list[str], taken: bool) -> None:  # noqa: FBT001 - a table's column
    assert admits_pod(node_facts(document()), read_constraints(constraints)) is taken


@pytest.mark.parametrize(
    ("constraints", "taken"),
    [
        ([], False),
        (["tolerate:gpu"], True),
        (["tolerate:gpu=yes:NoSchedule"], True),
        (["tolerate:gpu=no"], False),
        (["tolerate:gpu:NoExecute"], False),
        (["tolerate:other"], False),
    ],
)
def test_taints_keep_away_whom_does_not_tolerate_them(constraints: list[str], taken: bool) -> None:  # noqa: FBT001 - a table's column
    taints = [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}, {"key": "slow", "effect": "PreferNoSchedule"}]
    facts: NodeFacts = node_facts(document(taints=taints))
    assert admits_pod(facts, read_constraints(constraints)) is taken


def test_a_shadow_on_another_node_is_where_its_function_may_be() -> None:
    seen, taint = Observed(), [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    for name, cores in (("full", "3500m"), ("n2", "1500m"), ("n3", "500m"), ("cold", "0")):
        seen.node(name, **({"taints": taint} if name == "n2" else {}))
        seen.load(name, pod(name, {"cpu": cores}))
        seen.capacity.pool_ready(name, ready=name != "cold")
    tolerant = read_constraints(["tolerate:gpu"])
    assert seen.capacity.place_shadow(tolerant, 4, "n2") == "n2", "the policy that names it knows its cores"
    assert seen.capacity.place_shadow(tolerant, 1, "n9") == "n9", "the coordinators' client finds out that there is none"
    # Such as the control plane's, which has a pool as well: not there, and not where no Shadow can be made.
    assert seen.capacity.place_shadow(Placing(), 2, "n2") == "n3"
    with pytest.raises(GnomonError) as caught:
        seen.capacity.place_shadow(Placing(), 4, "n2")
    assert (caught.value.status, caught.value.code) == (503, "no_capacity")


BODY = BodyPod(
    Instance("b-1", "line.openfaas-fn", 3, "node-a", 4, 100, InstanceState.READY, 1.0),
    read_deployment({"service": "line", "image": "i"}),
    "uid-1",
    "node-a",
)
STATE = {"incarnation": "i", "version": 7}
ROW: dict[str, Any] = {
    "id": "s-1", "pod_uid": "uid-1", "state": "starting", "reason": "", "cores": 2, "paired": False, "blocks": [], "split": [],
    "wished": {"blocks": [0, 1], "split": [0, 1]}, "memory_bytes": 500,
}  # fmt: skip
WISHED = Pair(2, (0, 1), (0, 1))


def test_adopted_shadow_keeps_its_task_and_reports_its_state() -> None:
    shadow = adopted_shadow(ROW, BODY, STATE, 20.0)
    assert shadow.instance == requested_shadow("s-1", BODY, WISHED, 500, 20.0).instance
    assert (shadow.instance.kind, shadow.instance.state) == (InstanceKind.SHADOW, InstanceState.STARTING)
    assert (shadow.instance.partner, shadow.instance.version, shadow.instance.node) == ("b-1", 3, "node-a")
    assert (shadow.pair, pair_of(ROW)) == (None, None)
    # On its way from one task to another: it was asked to compute less, and has not been told so by its Body.
    changing = {**ROW, "state": "ready", "paired": True, "blocks": [0, 1, 2], "split": [0, 1, 2]}
    assert adopted_shadow(changing, BODY, STATE, 20.0).instance.pair == WISHED
    assert pair_of(changing) == Pair(2, (0, 1, 2), (0, 1, 2))


@pytest.mark.parametrize(("reported", "expected"), [({}, 0), ({"resident_bytes": 90}, 90)])
def test_a_coordinator_of_an_earlier_version_says_only_what_it_does(reported: dict[str, int], expected: int) -> None:
    row = {key: value for key, value in ROW.items() if key not in ("wished", "memory_bytes")}
    row |= {"paired": True, "blocks": [0], "split": [0, 1], **reported}
    shadow = adopted_shadow(row, BODY, STATE, 0.0)
    assert (shadow.instance.pair, shadow.instance.memory_bytes) == (Pair(2, (0,), (0, 1)), expected)


def test_the_state_that_told_of_it_and_every_later_one_should_know_it() -> None:
    shadow = adopted_shadow(ROW, BODY, STATE, 0.0)
    assert should_contain(STATE, shadow.known_since)
    assert should_contain({"incarnation": "i", "version": 8}, shadow.known_since)
    assert should_contain({"incarnation": "another", "version": 1}, shadow.known_since)
    assert not should_contain({"incarnation": "i", "version": 6}, shadow.known_since)
    assert not should_contain(STATE, requested_shadow("s-2", BODY, WISHED, 0, 0.0).known_since), "the node has not answered yet"


async def test_contact_of_a_node_is_shared_and_forgotten_with_its_last_channel() -> None:
    api = cast("Any", SimpleNamespace(namespace="openfaas-fn"))
    cluster = ObservedCluster(api, OpenFaasOptions(), lambda _: None, leads=True, clock=VirtualClock())
    first, second = cluster.node_contact("node-a"), cluster.node_contact("node-a")
    assert first is second
    assert cluster.node_contact("node-b") is not first
    first.at_s = 7.0
    del first
    gc.collect()
    assert cluster.node_contact("node-a").at_s == 7.0
    del second
    gc.collect()
    assert cluster.node_contact("node-a").at_s == float("-inf")


LABELS = {"app.kubernetes.io/name": "gnomon", "app.kubernetes.io/component": "coordinator"}


def coordinator_document(ready: str = "True", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "coordinator-x", "uid": "u", **metadata},
        "spec": {
            "nodeName": "node-a",
            "containers": [
                {"name": "coordinator", "resources": {"requests": {"cpu": "20m"}}},
                {"name": "pool", "resources": {"requests": {"cpu": "2100m"}}},
            ],
        },
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": ready}]},
    }


def test_ready_coordinator_is_reached_at_its_address() -> None:
    assert coordinator_pod(coordinator_document()) == CoordinatorPod("coordinator-x", "u", "node-a", "10.0.0.1", 2.1)


def test_unready_or_terminating_coordinator_is_not_used() -> None:
    assert coordinator_pod(coordinator_document("False")).address is None
    assert coordinator_pod(coordinator_document(deletionTimestamp="2026-11-22T00:00:00Z")).address is None
    assert coordinator_pod({"metadata": {"name": "new"}}) == CoordinatorPod("new", "", "", None, 0.0)


def test_pool_requests_match_the_installation() -> None:
    """The pool's own request is what it was resized to."""
    said = coordinator_document(annotations={"gnomon/pool-cores": "500m"})
    assert coordinator_pod(said) == CoordinatorPod("coordinator-x", "u", "node-a", "10.0.0.1", 2.1, 0.5)
    for unreadable in ("", "half"):
        assert coordinator_pod(coordinator_document(annotations={"gnomon/pool-cores": unreadable})).base_cores == 0.1
    load = load_besides_shadows("gnomon-nodes")
    said["metadata"] |= {"namespace": "gnomon-nodes", "labels": LABELS}
    assert load(said).cores == pytest.approx(0.52)


def test_cores_of_shadows_are_counted_once() -> None:
    """Cores of Shadows are claimed one by one; that the pool's pod asks for them as well is for the scheduler."""
    load = load_besides_shadows("gnomon-nodes")

    def of(namespace: str, labels: dict[str, str]) -> float:
        document = coordinator_document()
        document["metadata"] |= {"namespace": namespace, "labels": labels}
        return load(document).cores

    assert of("gnomon-nodes", LABELS) == pytest.approx(0.12)
    # Nobody else's pod is smaller than it says.
    assert of("elsewhere", LABELS) == pytest.approx(2.12)
    assert of("gnomon-nodes", {}) == pytest.approx(2.12)
