"""Who wishes for Shadows: do nodes' coordinators know it by their token, do network policies let it in, and is it the only one?

It is a Deployment of ours with `--coordinator-token`: the gateway of OpenFaaS, or the autoscaler class of Knative.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gnomon_cli.doctor.findings import Level, Look
from gnomon_cli.doctor.looking import Cluster
from gnomon_cli.doctor.shadows import NODES_NAMESPACE, TOKEN, daemons
from gnomon_cli.doctor.workloads import arguments
from gnomon_platforms.kubernetes.nodes import meets
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, NETWORK_POLICIES, SECRETS

WISHES, PAIRS = 7468, 7469
"""Ports of a coordinator: for whoever wishes, and for Bodies of other nodes."""


@dataclass(frozen=True, slots=True)
class Wisher:
    """A Deployment that may wish for Shadows. `install` makes it do so; pods of its Bodies have the label `bodies`."""

    namespace: str
    deployment: str
    install: str
    bodies: str

    def __str__(self) -> str:
        return f"Deployment {self.deployment} in {self.namespace}"


def wish_checks(cluster: Cluster, wisher: Wisher, other: Wisher) -> Iterator[tuple[str, Look]]:
    """The checks of who wishes on this platform; `other` is who does on another one."""
    yield "Shadows' token", lambda: token(cluster, wisher, other)
    yield "Shadows' network", lambda: network(cluster, wisher)


def has_option(cluster: Cluster, wisher: Wisher, option: str = "--coordinator-token") -> bool:
    """Whether it is there, and told this.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    given = arguments(cluster.one(DEPLOYMENTS, wisher.namespace, wisher.deployment))
    return any(word.partition("=")[0] == option for word in given)


def token(cluster: Cluster, wisher: Wisher, other: Wisher) -> tuple[Level, str, str]:
    """Whether nodes' coordinators know it, and nobody else.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    if not has_option(cluster, wisher):
        if daemons(cluster) is None:
            return Level.OK, "Nobody wishes for Shadows.", ""
        return Level.WARN, f"{wisher} has no --coordinator-token: Bodies run without Shadows.", wisher.install
    if has_option(cluster, other):
        both = f"{wisher} has --coordinator-token, and so has {other}: nodes obey one of them, and each ends the other's Shadows."
        return Level.FAIL, both, f"Take it from one of them, such as by installing {other.deployment} without models."
    copied = f"kubectl -n {NODES_NAMESPACE} get secret {TOKEN} -o jsonpath='{{.data.token}}' | base64 -d"
    make = f'kubectl -n {wisher.namespace} create secret generic {TOKEN} --from-literal=token="$({copied})"'
    ours, theirs = secret(cluster, wisher.namespace), secret(cluster, NODES_NAMESPACE)
    if ours is None:
        return Level.FAIL, f"There is no Secret {TOKEN} in {wisher.namespace}: pods of {wisher.deployment} wait.", make
    if theirs is not None and ours != theirs:
        again = f"kubectl -n {wisher.namespace} delete secret {TOKEN} && {make}"
        restart = f"kubectl -n {wisher.namespace} rollout restart deployment {wisher.deployment}"
        said = f"Secret {TOKEN} in {wisher.namespace} differs from that in {NODES_NAMESPACE}: nodes answer 401 bad_token."
        return Level.FAIL, said, f"{again} && {restart}"
    return Level.OK, f"{wisher} has the token of the nodes' coordinators.", ""


def network(cluster: Cluster, wisher: Wisher) -> tuple[Level, str, str]:
    """Whether network policies let it in, and Bodies of other nodes where they may come.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    policies = cluster.items(NETWORK_POLICIES.path(NODES_NAMESPACE))
    if not policies or not has_option(cluster, wisher):
        return Level.OK, "No NetworkPolicy is in the way of Shadows.", ""
    deployment = cluster.one(DEPLOYMENTS, wisher.namespace, wisher.deployment) or {}
    labels = deployment["spec"]["template"]["metadata"].get("labels") or {}
    rules = [rule for one in policies for rule in (one.get("spec") or {}).get("ingress") or ()]
    shut = []
    if not any(lets_in(rule, WISHES, {"kubernetes.io/metadata.name": wisher.namespace}, labels) for rule in rules):
        shut.append(f"{wisher.deployment} to port {WISHES}")
    elsewhere = has_option(cluster, wisher, "--network-gbps")
    if elsewhere and not any(lets_in(rule, PAIRS, {}, {wisher.bodies: ""}) for rule in rules):
        shut.append(f"Bodies of other nodes to port {PAIRS}")
    if shut:
        said = f"NetworkPolicies in {NODES_NAMESPACE} do not let {' nor '.join(shut)}, where the cluster's network enforces them."
        return Level.WARN, said, wisher.install
    return Level.OK, f"NetworkPolicies in {NODES_NAMESPACE} let {wisher.deployment} speak to the nodes' coordinators.", ""


def secret(cluster: Cluster, namespace: str) -> bytes | None:
    """The token in a namespace's Secret; None where there is none.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    held = ((cluster.one(SECRETS, namespace, TOKEN) or {}).get("data") or {}).get("token")
    return None if held is None else base64.b64decode(held).strip()


def lets_in(rule: Mapping[str, Any], port: int, namespace: Mapping[str, str], pod: Mapping[str, str]) -> bool:
    """Whether a rule of a NetworkPolicy lets pods with these labels, from a namespace with these, in at a port.

    An operator's own addresses are taken to be those that they should be.
    """
    ports, peers = rule.get("ports"), rule.get("from")
    if ports and port not in [one.get("port") for one in ports]:
        return False
    return not peers or any("ipBlock" in one or selects(one, namespace, pod) for one in peers)


def selects(peer: Mapping[str, Any], namespace: Mapping[str, str], pod: Mapping[str, str]) -> bool:
    """Whether a rule's peer is such pods. One without a selector of namespaces is of the policy's own."""
    if "namespaceSelector" not in peer:
        return False
    pairs = ((peer["namespaceSelector"], namespace), (peer.get("podSelector") or {}, pod))
    return all(
        (one.get("matchLabels") or {}).items() <= labels.items()
        and all(meets(labels, expression) for expression in one.get("matchExpressions") or ())
        for one, labels in pairs
    )
