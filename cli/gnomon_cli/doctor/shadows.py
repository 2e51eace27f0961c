"""Bodies with Shadows on a cluster: the CSI driver, the coordinators of nodes, and the client that asks them for Shadows.

The client is a Gnomon Deployment with `--coordinator-token`: the gateway on OpenFaaS, or the autoscaler class on Knative. It must
have the coordinators' token, network policies must admit it, and there may be only one client. Without coordinators nothing
fails: Bodies run without Shadows.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gnomon_cli.doctor.cluster import (
    DAEMON_SETS,
    NAMESPACE_LABEL,
    ClientPod,
    Cluster,
    PodPort,
    arguments,
    denied,
    ingress_rules,
    named_ports,
    pod_labels,
)
from gnomon_cli.doctor.findings import Check, Level
from gnomon_core.coordination import NODE_PORT, NODES_NAMESPACE, PAIR_PORT
from gnomon_platforms.kubernetes.client import Document
from gnomon_platforms.kubernetes.objects.pod_template import CSI_DRIVER
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, NETWORK_POLICIES, NODES, SECRETS, Resource

DAEMONS, TOKEN = "coordinator", "coordinator-token"
INSTALL_NODES = "kubectl apply -k deploy/openfaas/coordinator"
PROFILE_LABEL = "security.kubernetes.io/csi-ephemeral-volume-profile"
DRIVERS = Resource("storage.k8s.io/v1", "csidrivers", "CSIDriver", namespaced=False)
NODE_DRIVERS = Resource("storage.k8s.io/v1", "csinodes", "CSINode", namespaced=False)


def shadow_checks(cluster: Cluster, install: str = INSTALL_NODES) -> Iterator[tuple[str, Check]]:
    """The checks of deploy/openfaas/coordinator, which the command `install` installs."""
    yield "Shadows' driver", lambda: driver(cluster, install)
    yield "Shadows' coordinators", lambda: coordinators(cluster, install)
    yield "Shadows' nodes", lambda: registered(cluster)


def daemons(cluster: Cluster) -> Document | None:
    """The DaemonSet of coordinators; None if it is not installed.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    return cluster.find(DAEMON_SETS, NODES_NAMESPACE, DAEMONS)


def driver(cluster: Cluster, install: str) -> tuple[Level, str, str]:
    """Check whether pods may have the volume by which their Body reaches its node's coordinator.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    found = cluster.find(DRIVERS, None, CSI_DRIVER)
    if found is None:
        return Level.WARN, f"There is no CSIDriver {CSI_DRIVER}: Bodies run without Shadows.", install
    spec, labels = found.get("spec") or {}, found["metadata"].get("labels") or {}
    wrong = []
    if not spec.get("podInfoOnMount"):
        wrong.append("podInfoOnMount is not true")
    if "Ephemeral" not in (spec.get("volumeLifecycleModes") or ()):
        wrong.append("volumeLifecycleModes has no Ephemeral")
    if labels.get(PROFILE_LABEL) != "restricted":
        wrong.append(f"the label {PROFILE_LABEL} is not restricted")
    if wrong:
        hint = f"kubectl delete csidriver {CSI_DRIVER} && {install}"
        return Level.FAIL, f"CSIDriver {CSI_DRIVER} is not ours: {', '.join(wrong)}.", hint
    return Level.OK, f"CSIDriver {CSI_DRIVER} is there, and restricted pods may use it.", ""


def coordinators(cluster: Cluster, install: str) -> tuple[Level, str, str]:
    """Check whether each node has a coordinator that is ready.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    found = daemons(cluster)
    if found is None:
        return Level.WARN, f"There is no DaemonSet {DAEMONS} in {NODES_NAMESPACE}: Bodies run without Shadows.", install
    if cluster.find(SECRETS, NODES_NAMESPACE, TOKEN) is None:
        make = f"kubectl -n {NODES_NAMESPACE} create secret generic {TOKEN} --from-literal=token=…"
        return Level.FAIL, f"There is no Secret {TOKEN} in {NODES_NAMESPACE}: its pods wait.", make
    status = found.get("status") or {}
    desired, ready = int(status.get("desiredNumberScheduled", 0)), int(status.get("numberReady", 0))
    message = f"{ready} of {desired} nodes have a coordinator that is ready."
    if ready >= desired > 0:
        return Level.OK, message, ""
    return Level.WARN if ready else Level.FAIL, message, f"kubectl -n {NODES_NAMESPACE} describe pods"


def registered(cluster: Cluster) -> tuple[Level, str, str]:
    """Check whether each node's kubelet has registered the driver; otherwise pods with the volume wait on that node.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    if daemons(cluster) is None:
        return Level.OK, "There are no coordinators, so no driver is to be registered.", ""
    knowing = {node["metadata"]["name"] for node in cluster.items(NODE_DRIVERS.path()) if has_driver(node)}
    not_ready = sorted({node["metadata"]["name"] for node in cluster.items(NODES.path()) if runs_linux(node)} - knowing)
    if not not_ready:
        return Level.OK, f"The kubelets of all {len(knowing)} nodes know {CSI_DRIVER}.", ""
    hint = f"kubectl -n {NODES_NAMESPACE} logs -l app.kubernetes.io/component=coordinator -c coordinator"
    return Level.WARN, f"Pods with Shadows' volume would wait on {', '.join(not_ready)}.", hint


def runs_linux(node: dict[str, Any]) -> bool:
    """True if a coordinator would be scheduled on a node. A simulated node may have no label of its OS."""
    return bool((node["metadata"].get("labels") or {}).get("kubernetes.io/os", "linux") == "linux")


def has_driver(node: dict[str, Any]) -> bool:
    """True if a CSINode lists Gnomon's driver."""
    return any(driver.get("name") == CSI_DRIVER for driver in (node.get("spec") or {}).get("drivers") or ())


@dataclass(frozen=True, slots=True)
class ShadowClient:
    """A Deployment that may request Shadows. `install` enables that; pods of its Bodies have the label `bodies`."""

    namespace: str
    deployment: str
    install: str
    bodies: str

    def __str__(self) -> str:
        return f"Deployment {self.deployment} in {self.namespace}"


def shadow_client_checks(cluster: Cluster, client: ShadowClient, other: ShadowClient) -> Iterator[tuple[str, Check]]:
    """The checks of this platform's client; `other` is the client on the other platform."""
    yield "Shadows' token", lambda: token_known(cluster, client, other)
    yield "Shadows' network", lambda: network_open(cluster, client)


def has_option(cluster: Cluster, client: ShadowClient, option: str = "--coordinator-token") -> bool:
    """True if the client's Deployment exists and has this option.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    given = arguments(cluster.find(DEPLOYMENTS, client.namespace, client.deployment))
    return any(word.partition("=")[0] == option for word in given)


def token_known(cluster: Cluster, client: ShadowClient, other: ShadowClient) -> tuple[Level, str, str]:
    """Check whether nodes' coordinators have this client's token, and no other client has it.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    if not has_option(cluster, client):
        return _without_token(cluster, client, other)
    if has_option(cluster, other):
        both = f"{client} has --coordinator-token, and so has {other}: nodes obey one of them, and each ends the other's Shadows."
        return Level.FAIL, both, f"Take it from one of them, such as by installing {other.deployment} without models."
    copied = f"kubectl -n {NODES_NAMESPACE} get secret {TOKEN} -o jsonpath='{{.data.token}}' | base64 -d"
    make = f'kubectl -n {client.namespace} create secret generic {TOKEN} --from-literal=token="$({copied})"'
    ours, theirs = secret(cluster, client.namespace), secret(cluster, NODES_NAMESPACE)
    if ours is None:
        return Level.FAIL, f"There is no Secret {TOKEN} in {client.namespace}: pods of {client.deployment} wait.", make
    if theirs is not None and ours != theirs:
        again = f"kubectl -n {client.namespace} delete secret {TOKEN} && {make}"
        restart = f"kubectl -n {client.namespace} rollout restart deployment {client.deployment}"
        message = f"Secret {TOKEN} in {client.namespace} differs from that in {NODES_NAMESPACE}: nodes answer 401 bad_token."
        return Level.FAIL, message, f"{again} && {restart}"
    return Level.OK, f"{client} has the token of the nodes' coordinators.", ""


def _without_token(cluster: Cluster, client: ShadowClient, other: ShadowClient) -> tuple[Level, str, str]:
    if daemons(cluster) is None:
        return Level.OK, "No Deployment asks for Shadows.", ""
    if has_option(cluster, other):
        # Two clients of the same coordinators would end each other's Shadows.
        return Level.OK, f"Shadows are made for {other}, and not for {client}.", ""
    return Level.WARN, f"{client} has no --coordinator-token: Bodies run without Shadows.", client.install


def network_open(cluster: Cluster, client: ShadowClient) -> tuple[Level, str, str]:
    """Check whether network policies admit the client, and Bodies of other nodes if Shadows may be on other nodes.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    nodes = daemons(cluster)
    rules = ingress_rules(cluster.items(NETWORK_POLICIES.path(NODES_NAMESPACE)), pod_labels(nodes))
    if rules is None or not has_option(cluster, client):
        return Level.OK, "No NetworkPolicy is in the way of Shadows.", ""
    labels, named = pod_labels(cluster.find(DEPLOYMENTS, client.namespace, client.deployment)), named_ports(nodes)
    shut = []
    if denied(rules, PodPort(NODE_PORT, named), ClientPod({NAMESPACE_LABEL: client.namespace}, labels)):
        shut.append(f"{client.deployment} to port {NODE_PORT}")
    elsewhere = has_option(cluster, client, "--network-gbps")
    if elsewhere and denied(rules, PodPort(PAIR_PORT, named), ClientPod({}, {client.bodies: ""})):
        shut.append(f"Bodies of other nodes to port {PAIR_PORT}")
    if shut:
        message = (
            f"NetworkPolicies in {NODES_NAMESPACE} do not let {' nor '.join(shut)}, where the cluster's network enforces them."
        )
        return Level.WARN, message, client.install
    return Level.OK, f"NetworkPolicies in {NODES_NAMESPACE} let {client.deployment} speak to the nodes' coordinators.", ""


def secret(cluster: Cluster, namespace: str) -> bytes | None:
    """The token in a namespace's Secret; None if it has none.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    held = ((cluster.find(SECRETS, namespace, TOKEN) or {}).get("data") or {}).get("token")
    return None if held is None else base64.b64decode(held).strip()
