"""What nodes have left, and whom they take."""

import random
from typing import Any

import pytest

from gnomon_core.functions import read_deployment
from gnomon_platforms.kubernetes.informer import Change
from gnomon_platforms.kubernetes.ledger import Ledger
from gnomon_platforms.kubernetes.nodes import (
    Given,
    Load,
    NodeFacts,
    given_to,
    node_facts,
    pod_load,
    takes,
)
from gnomon_platforms.kubernetes.objects.placing import Placing, read_constraints
from gnomon_platforms.kubernetes.objects.pods import PodFacts, pod_facts

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


def test_what_is_requested_of_a_whole_pod_holds_instead_of_what_its_containers_ask_for() -> None:
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


def test_what_is_left_counts_an_instance_once_with_its_pod_or_before_it_has_one() -> None:
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
def test_what_is_left_is_always_the_sum_of_all_there_is(seed: int) -> None:
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
