"""What nodes have left, and which of them an instance gets."""

from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Node
from gnomon_platforms.kubernetes.nodes import Given, Ledger, NodeFacts, choose, node_facts, pod_load, takes
from gnomon_platforms.kubernetes.objects.placing import read_constraints

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


def test_what_is_left_counts_an_instance_once_with_its_pod_or_before_it_has_one() -> None:
    ledger = Ledger()
    ledger.give("a", Given("n1", 1.0, GIB))
    others = [
        pod_load(pod("n1", {"cpu": "500m"})),
        pod_load(pod("n1", {"cpu": "1"}, phase="Succeeded")),
        pod_load(pod(None, {"cpu": "1"})),
    ]
    [before] = ledger.nodes([node_facts(document())], others)
    assert (before.free_cores, before.free_memory_bytes) == (2.0, 7 * GIB)
    of_a = pod_load(pod("n1", {"cpu": "1"}, instance="a"))
    assert ledger.nodes([node_facts(document())], [*others, of_a]) == (before,)
    ledger.take_back("a")
    assert ledger.nodes([node_facts(document())], others)[0].free_cores == 3.0


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
