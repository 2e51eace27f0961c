"""What nodes have left, and which of them an instance gets."""

import random
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Node
from gnomon_platforms.kubernetes.cache import Change
from gnomon_platforms.kubernetes.ledger import Ledger
from gnomon_platforms.kubernetes.nodes import Given, Load, NodeFacts, choose, node_facts, pod_load, takes
from gnomon_platforms.kubernetes.objects.placing import read_constraints
from gnomon_platforms.kubernetes.objects.pods import PodFacts, pod_facts

GIB = 2**30


def document(name: str = "n1", **spec: Any) -> dict[str, Any]:
    status = {"allocatable": {"cpu": "3500m", "memory": "8Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}
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


class Accounts:
    """A ledger that is told what becomes of documents, as informers tell it."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._loads: dict[str, Load] = {}
        self._pods: dict[str, PodFacts] = {}
        self._facts: dict[str, NodeFacts] = {}

    def node(self, name: str = "n1", **spec: Any) -> None:
        new = node_facts(document(name, **spec))
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
    assert [facts.name for facts in seen.ledger.facts()] == ["n1"]
    assert seen.free == {"n1": 3.0}


@pytest.mark.parametrize("seed", range(10))
def test_what_is_left_is_always_the_sum_of_all_there_is(seed: int) -> None:
    chance, seen = random.Random(seed), Accounts()
    loads: dict[str, tuple[str, str | None]] = {}
    given: dict[str, Given] = {}
    pods: dict[str, str | None] = {}
    for node in ("n1", "n2"):
        seen.node(node)
    for _ in range(400):
        name, node = chance.choice(["p", "q", "r"]), chance.choice(["n1", "n2"])
        instance = chance.choice(["a", "b", None])
        match chance.randrange(6):
            case 0:
                loads[name] = node, instance
                seen.load(name, pod(node, {"cpu": "500m"}, instance=instance))
            case 1:
                loads.pop(name, None)
                seen.load(name, None)
            case 2 if instance is not None:
                given[instance] = Given(node, 1.0, 0)
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
        for node in ("n1", "n2"):
            taken = sum(0.5 for at in counted if at == node) + sum(one.cores for one in given.values() if one.node == node)
            assert seen.free[node] == max(0.0, 3.5 - taken)


def test_the_node_with_most_cores_left_is_chosen_among_those_that_fit() -> None:
    nodes = [Node("a", 8, 8 * GIB, 2.0, GIB), Node("b", 8, 8 * GIB, 6.0, GIB), Node("c", 8, 8 * GIB, 7.0, 0)]
    every = {"a", "b", "c"}
    assert choose(nodes, every, 1.0, GIB, None) == "b"
    assert choose(nodes, every, 1.0, 0, None) == "c"
    assert choose(nodes, {"a"}, 1.0, 0, None) == "a"
    assert choose(nodes, every, 1.0, 0, "a") == "a"
    for allowed, cores, named in ((every, 7.5, None), (every, 1.0, "elsewhere"), (set[str](), 1.0, None), (every, 3.0, "a")):
        with pytest.raises(GnomonError) as refused:
            choose(nodes, allowed, cores, 0, named)
        assert (refused.value.status, refused.value.code) == (503, "no_capacity")


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
