"""Who wishes for Shadows: do nodes' coordinators know it by their token, do network policies let it in, and is it the only one?

It is a Deployment of ours with `--coordinator-token`: the gateway of OpenFaaS, or the autoscaler class of Knative.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass

from gnomon_cli.doctor.findings import Level, Look
from gnomon_cli.doctor.looking import Cluster
from gnomon_cli.doctor.policies import NAMESPACE_LABEL, Comer, Door, shut_out, ways_in
from gnomon_cli.doctor.shadows import TOKEN, daemons
from gnomon_cli.doctor.workloads import arguments, named_ports, pod_labels
from gnomon_core.coordination import NODE_PORT, NODES_NAMESPACE, PAIR_PORT
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, NETWORK_POLICIES, SECRETS


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
    nodes = daemons(cluster)
    rules = ways_in(cluster.items(NETWORK_POLICIES.path(NODES_NAMESPACE)), pod_labels(nodes))
    if rules is None or not has_option(cluster, wisher):
        return Level.OK, "No NetworkPolicy is in the way of Shadows.", ""
    labels, named = pod_labels(cluster.one(DEPLOYMENTS, wisher.namespace, wisher.deployment)), named_ports(nodes)
    shut = []
    if shut_out(rules, Door(NODE_PORT, named), Comer({NAMESPACE_LABEL: wisher.namespace}, labels)):
        shut.append(f"{wisher.deployment} to port {NODE_PORT}")
    elsewhere = has_option(cluster, wisher, "--network-gbps")
    if elsewhere and shut_out(rules, Door(PAIR_PORT, named), Comer({}, {wisher.bodies: ""})):
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
