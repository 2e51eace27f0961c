"""Nodes, their coordinators and the Shadows there."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.functions import read_deployment
from gnomon_core.pairs import Pair
from gnomon_platforms.kubernetes.informer import Change
from gnomon_platforms.kubernetes.ledger import Ledger
from gnomon_platforms.kubernetes.nodes import (
    Given,
    Load,
    NodeFacts,
    Room,
    choose,
    given_to,
    node_facts,
    place_shadow,
    pod_load,
    takes,
)
from gnomon_platforms.kubernetes.objects.placing import Placing, read_constraints
from gnomon_platforms.kubernetes.objects.pods import PodFacts, pod_facts
from gnomon_platforms.nodes.node_shadow import BodyPod, adopted_shadow, pair_of, requested_shadow, should_contain

GIB = 2**30
GPU = "nvidia.com/gpu"


def document(name: str = "n1", more: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    has = {"cpu": "3500m", "memory": "8Gi", "pods": "110", "ephemeral-storage": "90Gi", "hugepages-2Mi": "0", **(more or {})}
    status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": {"zone": "a"}}, "spec": spec, "status": status}


def pod(
    node: str | None, *requests: dict[str, str], phase: str = "Running", instance: str | None = None, **spec: Any
) -> dict[str, Any]:
    containers = [{"resources": {"requests": one}} for one in requests]
    annotations = {} if instance is None else {"gnomon/instance": instance}
    return {
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"nodeName": node, "containers": containers, **spec},
        "status": {"phase": phase},
    }


def test_a_node_has_what_it_can_allocate_and_takes_pods_while_it_is_ready() -> None:
    facts = node_facts(document(more={GPU: "2"}))
    assert (facts.cores, facts.memory_bytes, facts.pods, facts.usable) == (3.5, 8 * GIB, 110, True)
    assert dict(facts.others) == {"ephemeral-storage": 90 * GIB, GPU: 2}
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


def test_a_pod_asks_for_its_devices_too() -> None:
    one = {"resources": {"requests": {"cpu": "1", GPU: "1"}, "limits": {GPU: "1", "ephemeral-storage": "1Gi"}}}
    load = pod_load({"metadata": {}, "spec": {"containers": [one, one]}})
    assert dict(load.others) == {GPU: 2, "ephemeral-storage": 2 * GIB}
    assert (load.cores, load.pods) == (2.0, 1)


def test_a_sidecar_runs_on_beside_what_comes_after_it() -> None:
    """That is a first step that is restarted always: the steps after it and the containers ask for theirs beside it."""

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


@pytest.mark.parametrize(
    ("fields", "memory_bytes", "others"),
    [
        pytest.param({"requests": {"memory": "4Gi"}}, 4 * GIB, {}, id="a request without a limit"),
        pytest.param({"limits": {"memory": "4Gi"}}, 4 * GIB, {}, id="a limit without a request"),
        pytest.param({"requests": {"memory": "1Gi"}, "limits": {"memory": "4Gi"}}, GIB, {}, id="a request below the limit"),
        pytest.param({"limits": {GPU: "2"}}, 0, {GPU: 2}, id="devices"),
        pytest.param({"limits": {GPU: "0"}}, 0, {}, id="no devices"),
        pytest.param({}, 0, {}, id="nothing"),
    ],
)
def test_an_instance_takes_what_the_scheduler_will_count_of_its_pod(
    fields: dict[str, Any], memory_bytes: int, others: dict[str, int]
) -> None:
    given = given_to(read_deployment({"service": "figlet", "image": "figlet:1", **fields}), 2, "n1")
    assert given == Given("n1", 0.1, memory_bytes, 1, tuple(others.items()))


def test_an_instance_takes_the_cores_that_it_is_made_with_unless_the_function_requests_some() -> None:
    sized = {"service": "figlet", "image": "figlet:1", "annotations": {"gnomon/cores": "1"}}
    assert given_to(read_deployment(sized), 3).cores == 3.0
    assert given_to(read_deployment({**sized, "requests": {"cpu": "1500m"}}), 3).cores == 1.5


class Accounts:
    """A ledger that is told what becomes of documents, as informers tell it."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._loads: dict[str, Load] = {}
        self._pods: dict[str, PodFacts] = {}
        self._facts: dict[str, NodeFacts] = {}

    def node(self, name: str = "n1", more: dict[str, str] | None = None, **spec: Any) -> None:
        new = node_facts(document(name, more, **spec))
        self.ledger.node_changed(Change(("", name), self._facts.get(name), new))
        self._facts[name] = new

    def load(self, name: str, found: dict[str, Any] | None) -> None:
        new = None if found is None else pod_load(found)
        self.ledger.load_changed(Change(("fn", name), self._loads.pop(name, None), new))
        if new is not None:
            self._loads[name] = new

    def pod(self, name: str, instance: str | None, *, gone: bool = False) -> None:
        facts = {"metadata": {"name": name, "annotations": {} if instance is None else {"gnomon/instance": instance}}}
        new = None if gone else pod_facts(facts)
        self.ledger.pod_changed(Change(("fn", name), self._pods.pop(name, None), new))
        if new is not None:
            self._pods[name] = new

    @property
    def free(self) -> dict[str, float]:
        return {node.name: node.free_cores for node in self.ledger.nodes()}


def test_free_capacity_counts_an_instance_once() -> None:
    seen = Accounts()
    seen.node()
    seen.ledger.give("a", Given("n1", 1.0, GIB))
    seen.load("x", pod("n1", {"cpu": "500m"}))
    seen.load("y", pod("n1", {"cpu": "1"}, phase="Succeeded"))
    seen.load("z", pod(None, {"cpu": "1"}))
    [before] = seen.ledger.nodes()
    assert (before.free_cores, before.free_memory_bytes) == (2.0, 7 * GIB)
    seen.pod("p", "a")
    seen.load("p", pod("n1", {"cpu": "1"}, instance="a"))
    assert seen.ledger.nodes() == (before,)
    # Its instance has ended, its pod has not.
    seen.ledger.take_back("a")
    assert seen.free == {"n1": 2.0}
    # The one informer has seen the end of it, the other has not yet.
    seen.pod("p", None, gone=True)
    assert seen.free == {"n1": 3.0}
    seen.load("p", None)
    assert seen.free == {"n1": 3.0}


def test_pods_and_devices_are_counted_once_as_well() -> None:
    seen = Accounts()
    seen.node(more={GPU: "4", "pods": "10"})
    seen.ledger.give("a", Given("n1", 1.0, GIB, 1, ((GPU, 1),)))
    seen.ledger.give("a Shadow", Given("n1", 1.0, GIB))
    seen.load("x", pod("n1", {GPU: "2"}))
    seen.load("y", pod("n1", {GPU: "1"}, phase="Failed"))
    [before] = seen.ledger.rooms()
    assert (before.pods, before.others[GPU]) == (8, 1)
    seen.pod("p", "a")
    seen.load("p", pod("n1", {"cpu": "1", "memory": "1Gi", GPU: "1"}, instance="a"))
    assert seen.ledger.rooms() == (before,)
    # Its instance has ended, its pod has not.
    seen.ledger.take_back("a")
    assert seen.ledger.rooms() == (before,)
    seen.load("x", None)
    [after] = seen.ledger.rooms()
    assert (after.pods, after.others[GPU]) == (9, 3)


def test_news_of_a_node_counts_at_once() -> None:
    seen = Accounts()
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
    seen.ledger.node_changed(Change(("", "n2"), node_facts(document("n2")), None))
    assert seen.ledger.taking(Placing()) == {"n1"}
    assert seen.free == {"n1": 3.0}


def test_a_node_makes_shadows_while_its_pool_can() -> None:
    seen = Accounts()
    seen.node()
    seen.node("n2")
    assert [node.pairs for node in seen.ledger.nodes()] == [False, False]
    seen.ledger.pool_ready("n2", ready=True)
    assert [node.pairs for node in seen.ledger.nodes()] == [False, True]
    seen.node("n2", unschedulable=True)
    seen.node("n2")
    assert [node.pairs for node in seen.ledger.nodes()] == [False, True]
    seen.ledger.pool_ready("n2", ready=False)
    assert [node.pairs for node in seen.ledger.nodes()] == [False, False]


@pytest.mark.parametrize("seed", range(10))
def test_free_capacity_is_allocatable_minus_all_pods(seed: int) -> None:
    chance, seen = random.Random(seed), Accounts()
    loads: dict[str, tuple[str, str | None]] = {}
    given: dict[str, Given] = {}
    pods: dict[str, str | None] = {}
    for node in ("n1", "n2"):
        seen.node(node, {GPU: "9"})
    for _ in range(400):
        name, node = chance.choice(["p", "q", "r"]), chance.choice(["n1", "n2"])
        instance = chance.choice(["a", "b", None])
        match chance.randrange(6):
            case 0:
                loads[name] = node, instance
                seen.load(name, pod(node, {"cpu": "500m", GPU: "2"}, instance=instance))
            case 1:
                loads.pop(name, None)
                seen.load(name, None)
            case 2 if instance is not None:
                given[instance] = Given(node, 1.0, 0, 1, ((GPU, 1),))
                seen.ledger.give(instance, given[instance])
            case 3 if instance is not None:
                given.pop(instance, None)
                seen.ledger.take_back(instance)
            case 4:
                pods[name] = instance
                seen.pod(name, instance)
            case 5:
                pods.pop(name, None)
                seen.pod(name, None, gone=True)
        counted = [at for at, of in loads.values() if of is None or (of not in given and of in pods.values())]
        rooms = seen.ledger.rooms()
        assert {room.node.name for room in rooms} == {"n1", "n2"}
        for room in rooms:
            here, ours = counted.count(room.node.name), sum(one.node == room.node.name for one in given.values())
            assert room.node.free_cores == max(0.0, 3.5 - 0.5 * here - ours)
            assert (room.pods, room.others[GPU]) == (110 - here - ours, 9 - 2 * here - ours)


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
    assert takes(node_facts(document()), read_constraints(constraints)) is taken


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
    assert takes(facts, read_constraints(constraints)) is taken


def room(name: str, cores: float, memory_bytes: int, pods: int = 10, **others: int) -> Room:
    return Room(Node(name, 8, 8 * GIB, cores, memory_bytes, pairs=False), pods, others)


ROOMS = [room("a", 2.0, GIB), room("b", 6.0, GIB), room("c", 7.0, 0), room("d", 8.0, GIB, pods=0), room("e", 1.0, GIB, gpu=2)]
EVERY = {"a", "b", "c", "d", "e"}


def asks(cores: float, memory_bytes: int = 0, **others: int) -> Given:
    return Given("", cores, memory_bytes, 1, tuple(others.items()))


def test_the_node_with_most_cores_left_is_chosen_among_those_that_fit() -> None:
    assert choose(ROOMS, EVERY, asks(1.0, GIB), None) == "b"
    assert choose(ROOMS, EVERY, asks(1.0), None) == "c"
    assert choose(ROOMS, {"a"}, asks(1.0), None) == "a"
    assert choose(ROOMS, EVERY, asks(1.0), "a") == "a"
    assert choose(ROOMS, EVERY, asks(1.0, gpu=1), None) == "e"
    assert choose(ROOMS, EVERY, replace(asks(8.0), pods=0), None) == "d"


def test_where_the_pod_does_not_fit_on_the_node_that_was_named_another_one_gets_it() -> None:
    """A policy names the node with most cores. It knows neither constraints nor memory, pods and devices."""
    assert choose(ROOMS, EVERY - {"c"}, asks(1.0), "c") == "b"
    assert choose(ROOMS, EVERY, asks(1.0, GIB), "c") == "b"
    assert choose(ROOMS, EVERY, asks(1.0), "d") == "c"
    assert choose(ROOMS, EVERY, asks(1.0, gpu=2), "c") == "e"
    assert choose(ROOMS, EVERY, asks(3.0), "a") == "c"


@pytest.mark.parametrize(
    ("allowed", "wanted", "named", "says"),
    [
        (EVERY, asks(1.0), "elsewhere", "There is no node 'elsewhere'"),
        (set[str](), asks(1.0), None, "No node takes this function."),
        (EVERY, asks(8.5), None, ": 8.5 cores (8 at most)."),
        (EVERY, asks(1.0, 2 * GIB), None, ": 2048 MiB (1024 at most)."),
        (EVERY, asks(0.1, gpu=3), None, ": 3 gpu (2 at most)."),
        (EVERY, asks(0.1, GIB, tpu=1), "a", ": 1 tpu (0 at most)."),
        ({"d"}, asks(0.1), None, ": 1 pods (0 at most)."),
        (EVERY, asks(9.0, gpu=3), None, ": 9 cores (8 at most), 3 gpu (2 at most)."),
        (EVERY, asks(2.0, gpu=1), None, "No node has all of it left together: 2 cores, 1 pods, 1 gpu."),
    ],
)
def test_a_refusal_says_what_is_lacking(allowed: set[str], wanted: Given, named: str | None, says: str) -> None:
    with pytest.raises(GnomonError) as refused:
        choose(ROOMS, allowed, wanted, named)
    assert (refused.value.status, refused.value.code) == (503, "no_capacity")
    assert says in str(refused.value)


def test_a_shadow_on_another_node_is_where_its_function_may_be() -> None:
    nodes = [
        Node(name, 8, GIB, free, GIB, pairs=name != "cold") for name, free in (("full", 0), ("n2", 2), ("n3", 3), ("cold", 9))
    ]
    everywhere = {node.name for node in nodes}
    assert place_shadow(nodes, everywhere, 4, "n2") == "n2", "who names it knows its cores"
    assert place_shadow(nodes, everywhere, 1, "n9") == "n9", "that there is none is found out elsewhere"
    # Such as the control plane's, which has a pool as well: not there, and not where no Shadow can be made.
    assert place_shadow(nodes, everywhere - {"n2"}, 2, "n2") == "n3"
    with pytest.raises(GnomonError) as caught:
        place_shadow(nodes, {"full", "cold"}, 1, "n2")
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


@pytest.mark.parametrize(("told", "expected"), [({}, 0), ({"resident_bytes": 90}, 90)])
def test_a_coordinator_of_an_earlier_version_says_only_what_it_does(told: dict[str, int], expected: int) -> None:
    row = {key: value for key, value in ROW.items() if key not in ("wished", "memory_bytes")}
    row |= {"paired": True, "blocks": [0], "split": [0, 1], **told}
    shadow = adopted_shadow(row, BODY, STATE, 0.0)
    assert (shadow.instance.pair, shadow.instance.memory_bytes) == (Pair(2, (0,), (0, 1)), expected)


def test_the_state_that_told_of_it_and_every_later_one_should_know_it() -> None:
    shadow = adopted_shadow(ROW, BODY, STATE, 0.0)
    assert should_contain(STATE, shadow.known_since)
    assert should_contain({"incarnation": "i", "version": 8}, shadow.known_since)
    assert should_contain({"incarnation": "another", "version": 1}, shadow.known_since)
    assert not should_contain({"incarnation": "i", "version": 6}, shadow.known_since)
    assert not should_contain(STATE, requested_shadow("s-2", BODY, WISHED, 0, 0.0).known_since), "the node has not answered yet"
