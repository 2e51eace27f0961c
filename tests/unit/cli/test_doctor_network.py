"""Whom a rule of a NetworkPolicy lets in, as `gnomon doctor` reads it: taken for open, one that is shut costs every Shadow."""

from __future__ import annotations

from typing import Any

import pytest

from gnomon_cli.doctor.cluster import NAMESPACE_LABEL, Comer, Door, enforced, lets_in, ways_in
from gnomon_cli.doctor.findings import Level

SERVING, CLASS = {NAMESPACE_LABEL: "knative-serving"}, {"app": "class", "pod-template-hash": "x"}
PORTS = {"ports": [{"port": 7468, "protocol": "TCP"}]}


def peer(namespace: dict[str, Any], pod: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"namespaceSelector": namespace, **({} if pod is None else {"podSelector": pod})}


@pytest.mark.parametrize(
    ("rule", "let_in"),
    [
        ({}, True),
        (PORTS, True),
        ({"ports": [{"port": 7469}]}, False),
        ({"ports": [{"protocol": "TCP"}]}, True),
        ({"ports": [{"port": 7468, "protocol": "UDP"}]}, False),
        ({"ports": [{"port": 7000, "endPort": 7468}]}, True),
        ({"ports": [{"port": 7469, "endPort": 8000}, {"port": 7000, "endPort": 7467}]}, False),
        ({"ports": [{"port": "control"}]}, True),
        ({"ports": [{"port": "pairs"}]}, False),
        ({**PORTS, "from": [peer({"matchLabels": SERVING}, {"matchLabels": {"app": "class"}})]}, True),
        ({**PORTS, "from": [peer({"matchLabels": SERVING})]}, True),
        ({**PORTS, "from": [peer({}, {"matchLabels": {"app": "other"}})]}, False),
        ({**PORTS, "from": [peer({"matchLabels": {"kubernetes.io/metadata.name": "openfaas"}})]}, False),
        ({**PORTS, "from": [peer({"matchLabels": {"kubernetes.io/metadata.name": "openfaas"}}), peer({})]}, True),
        ({**PORTS, "from": [peer({}, {"matchExpressions": [{"key": "app", "operator": "Exists"}]})]}, True),
        ({**PORTS, "from": [peer({}, {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["class"]}]})]}, False),
        # Of the policy's own namespace, which is that of the nodes' coordinators.
        ({**PORTS, "from": [{"podSelector": {}}]}, False),
        ({**PORTS, "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}, True),
    ],
)
def test_a_rule_lets_in_whom_it_names_at_its_ports(rule: dict[str, Any], let_in: bool) -> None:  # noqa: FBT001 - a table's column
    assert lets_in(rule, Door(7468, {"control": 7468, "pairs": 7469}), Comer(SERVING, CLASS)) is let_in


@pytest.mark.parametrize(
    ("peer_of_ours", "beside", "let_in"),
    [
        ({"podSelector": {"matchLabels": {"app": "class"}}}, True, True),
        ({"podSelector": {"matchLabels": {"app": "other"}}}, True, False),
        ({"podSelector": {"matchLabels": {"app": "class"}}}, False, False),
        # With a selector of namespaces its own is one like any other.
        (peer({"matchLabels": SERVING}), True, True),
        (peer({"matchLabels": {NAMESPACE_LABEL: "openfaas"}}), True, False),
    ],
)
def test_a_peer_without_a_namespace_is_of_the_policys_own(
    peer_of_ours: dict[str, Any],
    beside: bool,  # noqa: FBT001 - as below
    let_in: bool,  # noqa: FBT001 - a table's columns
) -> None:
    assert lets_in({"from": [peer_of_ours]}, Door(8080), Comer(SERVING, CLASS, beside=beside)) is let_in


RULE = {"from": [{"namespaceSelector": {}}]}


def policy(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "one"}, "spec": {"podSelector": {}, **spec}}


@pytest.mark.parametrize(
    ("policies", "rules"),
    [
        ([], None),
        ([policy()], []),
        ([policy(policyTypes=["Ingress", "Egress"], ingress=[RULE]), policy()], [RULE]),
        # These shut nobody out: one is about where pods go, and one about other pods.
        ([policy(policyTypes=["Egress"])], None),
        ([policy(podSelector={"matchLabels": {"app": "another"}})], None),
        ([policy(podSelector={"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]})], None),
    ],
)
def test_pods_are_shut_in_by_policies_that_choose_them_and_are_about_who_comes(
    policies: list[dict[str, Any]], rules: list[dict[str, Any]] | None
) -> None:
    assert ways_in(policies, {"app": "coordinator"}) == rules


def daemon(name: str, *, wanted: int = 2, ready: int = 2) -> dict[str, Any]:
    status = {"desiredNumberScheduled": wanted, "numberReady": ready}
    return {"metadata": {"name": name, "namespace": "kube-system"}, "status": status}


def node(version: str, **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": version, "annotations": annotations}, "status": {"nodeInfo": {"kubeletVersion": version}}}


PLAIN, K3S = node("v1.35.4"), node("v1.35.4+k3s1")


def test_the_agent_that_enforces_policies_is_named() -> None:
    level, said, hint = enforced([daemon("kube-proxy"), daemon("calico-node")], [PLAIN])
    assert (level, hint) == (Level.OK, "")
    assert said == "calico-node in kube-system enforces NetworkPolicies."


def test_an_agent_that_is_missing_on_a_node_enforces_nothing_there() -> None:
    level, said, _ = enforced([daemon("cilium", wanted=3)], [PLAIN])
    assert level is Level.WARN
    assert "not ready on 1 of 3 nodes" in said
    # Of two, as on a cluster that changes its network, the one that is whole counts.
    assert enforced([daemon("calico-node", ready=0), daemon("cilium")], [PLAIN])[0] is Level.OK


def test_where_no_agent_is_known_it_is_said_that_it_is_not_known() -> None:
    level, said, hint = enforced([daemon("kube-proxy"), daemon("kube-flannel-ds")], [PLAIN])
    assert level is Level.WARN
    assert "known to enforce" in said
    assert "install-on-kubernetes.md" in hint


def test_k3s_enforces_them_itself_unless_it_was_told_not_to() -> None:
    assert enforced([], [K3S])[0] is Level.OK
    told = node("v1.35.4+k3s1", **{"k3s.io/node-args": '["server","--disable-network-policy"]'})
    assert enforced([], [K3S, told])[0] is Level.WARN
    assert enforced([], [K3S, PLAIN])[0] is Level.WARN
    assert enforced([], [])[0] is Level.WARN
