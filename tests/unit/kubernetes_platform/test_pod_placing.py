"""Which nodes a pod may be on by what its specification says, as the scheduler reads it. A Shadow elsewhere is on these alone."""

from __future__ import annotations

from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.knative.autoscaler.objects import live_revision
from gnomon_platforms.kubernetes.informer import Change
from gnomon_platforms.kubernetes.ledger import Ledger
from gnomon_platforms.kubernetes.nodes import Given, node_facts, takes
from gnomon_platforms.kubernetes.objects.placing import placing_of, read_constraints

TAINT = {"key": "dedicated", "value": "vision", "effect": "NoSchedule"}


def node(name: str = "n1", *, taints: tuple[dict[str, str], ...] = (), **labels: str) -> dict[str, Any]:
    status = {"allocatable": {"cpu": "4", "memory": "8Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": list(taints)}, "status": status}


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("spec", "taken"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "a", "disk": "ssd"}}, False),
        (affinity({"matchExpressions": [expression("zone", "In", "a", "b")]}), True),
        (affinity({"matchExpressions": [expression("zone", "In", "b")]}), False),
        (affinity({"matchExpressions": [expression("zone", "NotIn", "a")]}), False),
        (affinity({"matchExpressions": [expression("disk", "NotIn", "hdd")]}), True),
        (affinity({"matchExpressions": [expression("zone", "Exists"), expression("disk", "DoesNotExist")]}), True),
        (affinity({"matchExpressions": [expression("zone", "DoesNotExist")]}), False),
        (affinity({"matchExpressions": [expression("cpus", "Gt", "31"), expression("cpus", "Lt", "33")]}), True),
        (affinity({"matchExpressions": [expression("cpus", "Gt", "32")]}), False),
        (affinity({"matchExpressions": [expression("zone", "Gt", "1")]}), False),
        # All expressions of any one of the terms; a term that says nothing is met by nobody.
        (
            affinity({"matchExpressions": [expression("zone", "In", "b")]}, {"matchExpressions": [expression("cpus", "Exists")]}),
            True,
        ),
        (affinity({"matchExpressions": [expression("zone", "In", "b"), expression("cpus", "Exists")]}), False),
        (affinity({}), False),
        (affinity({"matchFields": [expression("metadata.name", "In", "n1")]}), True),
        (affinity({"matchFields": [expression("metadata.name", "In", "n2")]}), False),
        # Whatever a pod would rather have, it may be elsewhere.
        ({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}}, True),
    ],
)
def test_a_nodes_labels_are_those_that_the_pod_wants(spec: dict[str, Any], taken: bool) -> None:  # noqa: FBT001 - a table's column
    assert takes(node_facts(node(zone="a", cpus="32")), placing_of(spec)) is taken


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "dedicated", "operator": "Exists"}, True),
        ({"key": "dedicated", "value": "vision"}, True),
        ({"key": "dedicated", "operator": "Equal", "value": "vision", "effect": "NoSchedule"}, True),
        ({"key": "dedicated", "operator": "Equal", "value": "speech"}, False),
        ({"key": "dedicated", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}, False),
        ({"key": "dedicated"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_pod_tolerates_what_it_says(toleration: dict[str, Any], tolerated: bool) -> None:  # noqa: FBT001 - a table's column
    facts = node_facts(node(taints=(TAINT,)))
    assert takes(facts, placing_of({"tolerations": [toleration]})) is tolerated
    assert not takes(facts, placing_of({}))


def test_constraints_mean_what_the_pods_that_come_of_them_say() -> None:
    read = read_constraints(["zone=a", "disk!=hdd", "arch!=arm64", "tolerate:dedicated=vision:NoSchedule"])
    assert placing_of(read.fields()) == read


def test_a_shadow_is_on_no_node_that_its_bodys_pod_may_not_be_on() -> None:
    ledger = Ledger()
    for document in (node("far", taints=(TAINT,)), node("roomy"), node("small")):
        ledger.node_changed(Change(("", document["metadata"]["name"]), None, node_facts(document)))
    for name in ("far", "roomy", "small"):
        ledger.pool_ready(name, ready=True)
    ledger.give("somebody", Given("small", 3.0, 0))
    assert [ledger.free_cores(name) for name in ("far", "small", "nowhere")] == [4.0, 1.0, 0.0]

    tolerant = placing_of({"tolerations": [{"operator": "Exists"}]})
    assert ledger.place_shadow(tolerant, 2, "far") == "far"
    assert ledger.place_shadow(placing_of({}), 2, "far") == "roomy"
    with pytest.raises(GnomonError) as refused:
        ledger.place_shadow(placing_of({}), 5, "far")
    assert (refused.value.status, refused.value.code) == (503, "no_capacity")


def test_a_revision_says_of_nodes_what_its_pods_say() -> None:
    spec = {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "dedicated", "operator": "Exists"}]}
    assert live_revision({"metadata": {}, "spec": spec}).placing == placing_of(spec)
    assert live_revision({"metadata": {}}).placing == placing_of({})
