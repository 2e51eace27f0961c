"""Who wishes for Shadows: do nodes' coordinators know it by their token, do network policies let it in, and is it the only one?

It is a Deployment of ours with `--coordinator-token`: the gateway of OpenFaaS, or the autoscaler class of Knative.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gnomon_cli.doctor.findings import Level, Look
from gnomon_cli.doctor.looking import Cluster
from gnomon_cli.doctor.shadows import NODES_NAMESPACE, TOKEN, daemons
from gnomon_cli.doctor.workloads import arguments
from gnomon_core.coordination import NODE_PORT, PAIR_PORT
from gnomon_platforms.kubernetes.api import Document
from gnomon_platforms.kubernetes.nodes import meets
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, NETWORK_POLICIES, SECRETS

_NAMED = {"control": NODE_PORT, "pairs": PAIR_PORT}
"""As the DaemonSet calls its ports."""


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
        return _without_token(cluster, wisher, other)
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


def _without_token(cluster: Cluster, wisher: Wisher, other: Wisher) -> tuple[Level, str, str]:
    if daemons(cluster) is None:
        return Level.OK, "Nobody wishes for Shadows.", ""
    if has_option(cluster, other):
        # To have both wish would be worse than to have one.
        return Level.OK, f"Shadows are made for {other}, and not for {wisher}.", ""
    return Level.WARN, f"{wisher} has no --coordinator-token: Bodies run without Shadows.", wisher.install


def network(cluster: Cluster, wisher: Wisher) -> tuple[Level, str, str]:
    """Whether network policies let it in, and Bodies of other nodes where they may come.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    rules = ways_in(cluster.items(NETWORK_POLICIES.path(NODES_NAMESPACE)), _pod_labels(daemons(cluster)))
    if rules is None or not has_option(cluster, wisher):
        return Level.OK, "No NetworkPolicy is in the way of Shadows.", ""
    labels = _pod_labels(cluster.one(DEPLOYMENTS, wisher.namespace, wisher.deployment))
    shut = []
    if not any(lets_in(rule, NODE_PORT, {"kubernetes.io/metadata.name": wisher.namespace}, labels) for rule in rules):
        shut.append(f"{wisher.deployment} to port {NODE_PORT}")
    elsewhere = has_option(cluster, wisher, "--network-gbps")
    if elsewhere and not any(lets_in(rule, PAIR_PORT, {}, {wisher.bodies: ""}) for rule in rules):
        shut.append(f"Bodies of other nodes to port {PAIR_PORT}")
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


def ways_in(policies: Iterable[Mapping[str, Any]], pod: Mapping[str, str]) -> list[Mapping[str, Any]] | None:
    """The rules by which a namespace's policies let anybody in to pods with these labels; None where they shut nobody out."""
    specs = [one.get("spec") or {} for one in policies]
    theirs = [
        spec
        for spec in specs
        if "Ingress" in (spec.get("policyTypes") or ("Ingress",)) and chooses(spec.get("podSelector") or {}, pod)
    ]
    return [rule for spec in theirs for rule in spec.get("ingress") or ()] if theirs else None


def lets_in(rule: Mapping[str, Any], port: int, namespace: Mapping[str, str], pod: Mapping[str, str]) -> bool:
    """Whether a rule of a NetworkPolicy lets pods with these labels, from a namespace with these, in at a port.

    An operator's own addresses are taken to be those that they should be.
    """
    ports, peers = rule.get("ports"), rule.get("from")
    if ports and not any(_opens(one, port) for one in ports):
        return False
    return not peers or any("ipBlock" in one or selects(one, namespace, pod) for one in peers)


def selects(peer: Mapping[str, Any], namespace: Mapping[str, str], pod: Mapping[str, str]) -> bool:
    """Whether a rule's peer is such pods. One without a selector of namespaces is of the policy's own."""
    if "namespaceSelector" not in peer:
        return False
    return chooses(peer["namespaceSelector"], namespace) and chooses(peer.get("podSelector") or {}, pod)


def chooses(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a selector of labels chooses what has these."""
    named = (selector.get("matchLabels") or {}).items() <= labels.items()
    return named and all(meets(labels, expression) for expression in selector.get("matchExpressions") or ())


def _opens(one: Mapping[str, Any], port: int) -> bool:
    """Whether an entry of a rule's ports is this one, or a range with it. One that names no port is all of them."""
    if (one.get("protocol") or "TCP") != "TCP":
        return False
    first: int | str | None = one.get("port")
    if isinstance(first, str):
        return _NAMED.get(first) == port
    return first is None or first <= port <= int(one.get("endPort") or first)


def _pod_labels(workload: Document | None) -> dict[str, str]:
    """Those of the pods that a Deployment or DaemonSet makes."""
    return {} if workload is None else workload["spec"]["template"]["metadata"].get("labels") or {}
