"""A Kubernetes cluster as checks read it, and the checks of any cluster: version, nodes, permissions, network policies.

NetworkPolicies are evaluated as Kubernetes does: which peers they admit to a pod, and at which ports. The API does not show
whether the network enforces them, so the check looks for agents that are known to do so. A network without such an agent may
enforce policies in its own way, as in some clouds; only a trial can tell, and checks change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gnomon_cli.doctor.findings import Check, Level
from gnomon_platforms.kubernetes.client import Api, Document, Refused
from gnomon_platforms.kubernetes.nodes import meets
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, NODES, Permission, Resource, Scope


class Cluster:
    """A read-only view of a cluster for checks."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Document | None:
        """The document at this path; None if it does not exist.

        Raises:
            Refused: reading is forbidden.
            Unreachable: the API server does not answer.

        """
        try:
            return self._api.call("GET", path, query=query)
        except Refused as refusal:
            if refusal.missing:
                return None
            raise

    def find(self, resource: Resource, namespace: str | None, name: str) -> Document | None:
        """The named object; None if it does not exist.

        Raises:
            Refused, Unreachable: as `get`.

        """
        return self.get(resource.path(namespace, name))

    def items(self, path: str, query: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """The objects of a list; none if the API server does not know the kind.

        Raises:
            Refused, Unreachable: as `get`.

        """
        found = self.get(path, query) or {}
        return list(found.get("items") or ())

    def review(self, kind: str, spec: Document) -> bool:
        """True if an access review is allowed; `kind` is SelfSubjectAccessReview or SubjectAccessReview.

        Raises:
            Refused, Unreachable: as `get`.

        """
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        answer = self._api.call("POST", f"/apis/authorization.k8s.io/v1/{kind.lower()}s", body=body)
        return bool((answer.get("status") or {}).get("allowed"))


def ready(cluster: Cluster, namespace: str, name: str, install: str) -> tuple[Level, str, str]:
    """Check whether a Deployment's pods are ready. `install` is the command that creates it.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    found = cluster.find(DEPLOYMENTS, namespace, name)
    if found is None:
        return Level.FAIL, f"There is no Deployment {name} in {namespace}.", install
    desired, serving = int(found["spec"].get("replicas", 1)), int((found.get("status") or {}).get("readyReplicas", 0))
    message = f"{serving} of {desired} replicas are ready."
    if serving >= desired > 0:
        return Level.OK, message, ""
    component = (found["metadata"].get("labels") or {}).get("app.kubernetes.io/component", name)
    hint = f"kubectl -n {namespace} describe pods -l app.kubernetes.io/component={component}"
    return Level.WARN if serving else Level.FAIL, message, hint


def arguments(deployment: Document | None) -> list[str]:
    """The arguments of the Deployment's first container."""
    if deployment is None:
        return []
    containers = deployment["spec"]["template"]["spec"].get("containers") or [{}]
    return list(containers[0].get("args") or ())


def option(deployment: Document | None, name: str) -> str | None:
    """The value of an option of the first container, as `--name=value` or `--name value`; None if it is absent."""
    given = arguments(deployment)
    for word, following in zip(given, [*given[1:], ""], strict=True):
        named, equals, value = word.partition("=")
        if named == name:
            return value if equals else following
    return None


def pod_labels(workload: Document | None) -> dict[str, str]:
    """The labels of pods that a Deployment or DaemonSet creates."""
    return {} if workload is None else dict(workload["spec"]["template"]["metadata"].get("labels") or {})


def named_ports(workload: Document | None) -> dict[str, int]:
    """Port numbers by name, from the containers of a workload's pods."""
    containers = [] if workload is None else workload["spec"]["template"]["spec"].get("containers") or []
    ports = [port for container in containers for port in container.get("ports") or ()]
    return {port["name"]: int(port["containerPort"]) for port in ports if port.get("name")}


API_SERVER = "API server"
OLDEST = (1, 30)
"""The oldest supported Kubernetes: it has the pause before a container's end (`preStop.sleep`) of gateways and functions."""
RESIZING_SINCE = (1, 33)
"""The first Kubernetes with in-place resize by default; earlier versions need a feature gate on every node."""


def cluster_checks(cluster: Cluster) -> Iterator[tuple[str, Check]]:
    """The checks of any cluster. If the first fails, the others cannot run."""
    yield API_SERVER, lambda: api_server(cluster)
    yield "nodes", lambda: nodes(cluster)
    yield "in-place resize", lambda: resize(cluster)
    yield "metrics", lambda: metrics(cluster)


def api_server(cluster: Cluster) -> tuple[Level, str, str]:
    """Check whether the API server is reachable, and its version.

    Raises:
        Refused, Unreachable: it is not.

    """
    version = str((cluster.get("/version") or {}).get("gitVersion", ""))
    found = minor(version)
    if found is None or found < OLDEST:
        return Level.FAIL, f"Kubernetes {version or 'of no version'}.", f"Gnomon needs {OLDEST[0]}.{OLDEST[1]} or newer."
    return Level.OK, f"Kubernetes {version} answers; our client is {client_version()}.", ""


def nodes(cluster: Cluster) -> tuple[Level, str, str]:
    """The number of nodes that accept pods.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    found = cluster.items(NODES.path())
    ready = [node for node in found if is_ready(node) and not node["spec"].get("unschedulable")]
    if not ready:
        return Level.FAIL, f"None of {len(found)} nodes takes pods.", "kubectl get nodes"
    level = Level.OK if len(ready) == len(found) else Level.WARN
    return level, f"{len(ready)} of {len(found)} take pods.", "" if level is Level.OK else "kubectl get nodes"


def resize(cluster: Cluster) -> tuple[Level, str, str]:
    """Check whether running pods can be resized in place.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    known = {resource["name"] for resource in (cluster.get("/api/v1") or {}).get("resources", ())}
    if "pods/resize" not in known:
        hint = "Policies that choose an instance's cores are refused; use Kubernetes 1.33 or newer."
        return Level.WARN, "The API server does not offer it.", hint
    old = sorted(node["metadata"]["name"] for node in cluster.items(NODES.path()) if kubelet(node) < RESIZING_SINCE)
    if old:
        hint = "Instances there never get cores other than their deployment's; keep functions that need it away, or update them."
        return Level.WARN, f"These nodes are too old for it: {', '.join(old)}.", hint
    return Level.OK, "Pods can be given other cores while they run.", ""


def metrics(cluster: Cluster) -> tuple[Level, str, str]:
    """Check whether the metrics API reports the resource usage of pods.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    if cluster.get("/apis/metrics.k8s.io/v1beta1") is None:
        return (
            Level.WARN,
            "No metrics server: what functions use is not shown.",
            "Install metrics-server; scaling does not need it.",
        )
    return Level.OK, "A metrics server answers.", ""


def minor(text: str) -> tuple[int, int] | None:
    """`v1.35.4+k3s1` → (1, 35)."""
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return None if found is None else (int(found[1]), int(found[2]))


def kubelet(node: dict[str, Any]) -> tuple[int, int]:
    """The version of a node's kubelet; the newest if it has none, as with simulated nodes."""
    version = ((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion", "")
    return minor(version) or RESIZING_SINCE


def is_ready(node: dict[str, Any]) -> bool:
    """True if the node's kubelet reports it as ready."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)


def client_version() -> str:
    """The version of the Python client."""
    try:
        return version("kubernetes")
    except PackageNotFoundError:  # pragma: no cover - then nothing here runs
        return "not installed"


SHOWN = 4
"""The most missing permissions that are named; others are only counted."""


@dataclass(frozen=True, slots=True)
class ReviewSubject:
    """The subject of an access review: a service account (`namespace`, `name`), or the kubeconfig's user if `account` is None."""

    account: tuple[str, str] | None = None

    @property
    def kind(self) -> str:
        return "SelfSubjectAccessReview" if self.account is None else "SubjectAccessReview"

    @property
    def fields(self) -> Document:
        """The review's fields that name its subject."""
        if self.account is None:
            return {}
        namespace, name = self.account
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        return {"user": f"system:serviceaccount:{namespace}:{name}", "groups": groups}

    def __str__(self) -> str:
        return "you" if self.account is None else ":".join(self.account)


def permissions(
    cluster: Cluster, required: Iterable[Permission], namespaces: dict[Scope, str | None], subject: ReviewSubject, install: str
) -> tuple[Level, str, str]:
    """Review each verb of each rule in the namespace of its scope. `install` is the command that grants them.

    Raises:
        Refused: access reviews are forbidden; reviews of one's own access never are.
        Unreachable: the API server does not answer.

    """
    reviewed, missing = 0, []
    for permission in required:
        resource, _, subresource = permission.resource.partition("/")
        for verb in permission.verbs:
            attributes = {"group": permission.group, "resource": resource, "subresource": subresource, "verb": verb}
            attributes |= {"name": permission.only} if permission.only else {}
            namespace = namespaces[permission.scope]
            spec = {**subject.fields, "resourceAttributes": {**attributes, **({"namespace": namespace} if namespace else {})}}
            reviewed += 1
            if not cluster.review(subject.kind, spec):
                where = f" in {namespace}" if namespace else ""
                missing.append(f"{verb} {permission.name}{where} (to {permission.why})")
    if not missing:
        return Level.OK, f"All {reviewed} that are needed are given to {subject}.", ""
    more = f", and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return (
        Level.FAIL,
        f"{len(missing)} of {reviewed} are not given to {subject}: {', '.join(missing[:SHOWN])}{more}.",
        install,
    )


NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""The label of each namespace with the namespace's name."""


@dataclass(frozen=True, slots=True)
class ClientPod:
    """A client pod: the labels of its namespace and its own. `same_namespace` says whether it is in the policies' namespace."""

    namespace: Mapping[str, str]
    pod: Mapping[str, str]
    same_namespace: bool = False


@dataclass(frozen=True, slots=True)
class PodPort:
    """A destination port of a pod, and the port numbers of the pod's named ports."""

    port: int
    named: Mapping[str, int] = field(default_factory=dict)


def ingress_rules(policies: Iterable[Mapping[str, Any]], pod: Mapping[str, str]) -> list[Mapping[str, Any]] | None:
    """The ingress rules of a namespace's policies for pods with these labels; None if no policy selects the pods."""
    specs = [policy.get("spec") or {} for policy in policies]
    theirs = [
        spec
        for spec in specs
        if "Ingress" in (spec.get("policyTypes") or ("Ingress",)) and selector_matches(spec.get("podSelector") or {}, pod)
    ]
    return [rule for spec in theirs for rule in spec.get("ingress") or ()] if theirs else None


def denied(rules: Iterable[Mapping[str, Any]] | None, target: PodPort, client_pod: ClientPod) -> bool:
    """True if the rules of `ingress_rules` deny this client access."""
    return rules is not None and not any(rule_allows(rule, target, client_pod) for rule in rules)


def rule_allows(rule: Mapping[str, Any], target: PodPort, client_pod: ClientPod) -> bool:
    """True if a NetworkPolicy's ingress rule admits this client to this port.

    A rule with an operator's IP blocks counts as admitting the client: the addresses cannot be checked here.
    """
    ports, peers = rule.get("ports"), rule.get("from")
    if ports and not any(_port_matches(port, target) for port in ports):
        return False
    return not peers or any("ipBlock" in peer or peer_matches(peer, client_pod) for peer in peers)


def peer_matches(peer: Mapping[str, Any], client_pod: ClientPod) -> bool:
    """True if a rule's peer selects this client. Without a namespace selector a peer is in the policy's own namespace."""
    within = (
        selector_matches(peer["namespaceSelector"], client_pod.namespace)
        if "namespaceSelector" in peer
        else client_pod.same_namespace
    )
    return within and selector_matches(peer.get("podSelector") or {}, client_pod.pod)


def selector_matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """True if a label selector matches these labels."""
    named = (selector.get("matchLabels") or {}).items() <= labels.items()
    return named and all(meets(labels, expression) for expression in selector.get("matchExpressions") or ())


def _port_matches(port: Mapping[str, Any], target: PodPort) -> bool:
    """True if an entry of a rule's ports includes this port. An entry without a port includes all ports."""
    if (port.get("protocol") or "TCP") != "TCP":
        return False
    first: int | str | None = port.get("port")
    if isinstance(first, str):
        return target.named.get(first) == target.port
    return first is None or first <= target.port <= int(port.get("endPort") or first)


DAEMON_SETS = Resource("apps/v1", "daemonsets", "DaemonSet")
AGENTS = frozenset(
    {
        "anetd",  # Google's, of dataplane V2
        "antrea-agent",
        "azure-npm",
        "calico-node",
        "canal",
        "cilium",
        "kube-network-policies",
        "kube-ovn-cni",
        "kube-router",
        "ovnkube-node",
    }
)
"""DaemonSets by which networks enforce policies, as their projects' own manifests name them."""
K3S = "+k3s"
"""Mark of k3s in the version of its kubelets: k3s enforces network policies itself, unless that is disabled."""
K3S_ARGUMENTS, K3S_WITHOUT = "k3s.io/node-args", "--disable-network-policy"
TRY = 'Try it: docs/howto/install-on-kubernetes.md, "Does the network enforce policies?"'


def network_policies(cluster: Cluster) -> tuple[Level, str, str]:
    """Check whether a known network agent enforces NetworkPolicies in this cluster.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    return enforced(cluster.items(DAEMON_SETS.path()), cluster.items(NODES.path()))


def enforced(daemons: Iterable[Mapping[str, Any]], nodes: Iterable[Mapping[str, Any]]) -> tuple[Level, str, str]:
    """Check whether the cluster enforces NetworkPolicies, judged by its network agents and nodes."""
    agents = [daemon for daemon in daemons if daemon["metadata"]["name"] in AGENTS]
    if agents:
        [agent, *_] = sorted(agents, key=_not_ready)
        name = f"{agent['metadata']['name']} in {agent['metadata']['namespace']}"
        if not_ready := _not_ready(agent):
            look = f"kubectl -n {agent['metadata']['namespace']} get pods -o wide"
            desired = agent["status"]["desiredNumberScheduled"]
            return Level.WARN, f"{name} enforces NetworkPolicies, and is not ready on {not_ready} of {desired} nodes.", look
        return Level.OK, f"{name} enforces NetworkPolicies.", ""
    all_nodes = list(nodes)
    if all_nodes and all(_k3s_enforces(node) for node in all_nodes):
        return Level.OK, "k3s enforces NetworkPolicies.", ""
    message = (
        "No known enforcer of NetworkPolicies was found: unless the network enforces them, any pod can connect to functions."
    )
    return Level.WARN, message, TRY


def _not_ready(daemon: Mapping[str, Any]) -> int:
    """The number of nodes on which the DaemonSet should be ready and is not."""
    status = daemon.get("status") or {}
    return max(int(status.get("desiredNumberScheduled", 0)) - int(status.get("numberReady", 0)), 0)


def _k3s_enforces(node: Mapping[str, Any]) -> bool:
    version = ((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion", "")
    node_args = (node["metadata"].get("annotations") or {}).get(K3S_ARGUMENTS, "")
    return K3S in version and K3S_WITHOUT not in node_args
