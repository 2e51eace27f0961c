"""deploy/openfaas: namespaces, permissions, login, gateway, and conflicts with other autoscalers or providers of functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gnomon_cli.doctor.cluster import Cluster, ReviewSubject, arguments, permissions, ready
from gnomon_cli.doctor.findings import Check, Level
from gnomon_cli.doctor.shadows import ShadowClient, daemons
from gnomon_core.coordination import NODES_NAMESPACE
from gnomon_core.functions import DEFAULT_NAMESPACE
from gnomon_platforms.kubernetes.objects.names import FUNCTION_LABEL, MANAGED, MANAGED_LABEL, NAMESPACE_ANNOTATION, NAMESPACE_MARK
from gnomon_platforms.kubernetes.resources import (
    AUTOSCALERS,
    DEPLOYMENTS,
    NAMESPACES,
    NETWORK_POLICIES,
    SCALED_OBJECTS,
    SECRETS,
    Resource,
    Scope,
)
from gnomon_platforms.nodes.coordinators import POOLS
from gnomon_platforms.openfaas.permissions import PERMISSIONS, WIDE

SECURITY_LABEL = "pod-security.kubernetes.io/enforce"
GATEWAY, LOGIN, PEERS = "gateway", "basic-auth", "gateway-peers"
INSTALL = "kubectl apply -k deploy/openfaas"
BEHIND = "gnomon"
"""The namespace of a gateway behind OpenFaaS's own."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The namespaces of the gateway and of functions, and the subject whose permissions are checked."""

    system: str
    functions: str
    subject: ReviewSubject


def gateway_of(system: str) -> ShadowClient:
    """The gateway as a client of nodes' coordinators."""
    return ShadowClient(system, GATEWAY, "kubectl apply -k deploy/openfaas-models", FUNCTION_LABEL)


def openfaas_checks(cluster: Cluster, installation: Installation) -> Iterator[tuple[str, Check]]:
    """The checks of deploy/openfaas, beside those of the cluster."""
    system, functions = installation.system, installation.functions
    install = installed_by(system)
    yield "namespaces", lambda: namespaces(cluster, (system, functions))
    yield "function namespaces", lambda: function_namespaces(cluster, system, functions)
    yield "permissions", lambda: rights(cluster, installation)
    yield "login", lambda: login(cluster, system)
    yield "replicas", lambda: peers(cluster, system)
    yield "gateway", lambda: ready(cluster, system, GATEWAY, install)
    yield "other autoscalers", lambda: find_conflicting_autoscalers(cluster, functions)
    yield "other providers", lambda: providers(cluster, functions)


def installed_by(system: str) -> str:
    """The command that installs what is missing, for a gateway in this namespace."""
    return f"{INSTALL}-behind" if system == BEHIND else INSTALL


def namespaces(cluster: Cluster, names: tuple[str, str]) -> tuple[Level, str, str]:
    """Check whether the gateway's and the functions' namespaces exist and enforce Pod Security's level restricted.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    found = {name: cluster.find(NAMESPACES, None, name) for name in names}
    missing = [name for name, namespace in found.items() if namespace is None]
    if missing:
        return Level.FAIL, f"There is no namespace {' and no '.join(missing)}.", installed_by(names[0])
    loose = [name for name, labels in found.items() if not is_restricted(labels or {})]
    if loose:
        return Level.WARN, f"Pod Security is not held to in {' and '.join(loose)}.", restrict(loose)
    return Level.OK, f"{' and '.join(names)} are there, and hold pods to Pod Security's restricted.", ""


def function_namespaces(cluster: Cluster, system: str, functions: str) -> tuple[Level, str, str]:
    """Check further namespaces marked for functions: the gateway manages them, with the same pod security and network policies.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    marked = {
        namespace["metadata"]["name"]: namespace
        for namespace in cluster.items(NAMESPACES.path())
        if (namespace["metadata"].get("annotations") or {}).get(NAMESPACE_ANNOTATION) == NAMESPACE_MARK
        and namespace["metadata"]["name"] != functions
    }
    wide = cluster_wide(cluster, system)
    if marked and not wide:
        hint = f"Use deploy/openfaas/cluster-wide, or kubectl annotate namespace NAME {NAMESPACE_ANNOTATION}-"
        return Level.WARN, f"Marked for functions, and not looked after: {', '.join(sorted(marked))}.", hint
    loose = sorted(name for name, labels in marked.items() if not is_restricted(labels))
    if loose:
        return Level.WARN, f"Pod Security is not held to in {' and '.join(loose)}.", restrict(loose)
    if cluster.items(NETWORK_POLICIES.path(functions)):
        open_ = [name for name in sorted(marked) if not cluster.items(NETWORK_POLICIES.path(name))]
        if open_:
            hint = " && ".join(f"kubectl apply -n {name} -k deploy/openfaas/function-namespace" for name in open_)
            return (
                Level.WARN,
                f"Functions in {' and '.join(open_)} are under no NetworkPolicy, as those in {functions} are.",
                hint,
            )
    if not wide:
        return Level.OK, f"Functions are in {functions} alone.", ""
    mark = f'kubectl annotate namespace NAME {NAMESPACE_ANNOTATION}="{NAMESPACE_MARK}" adds one.'
    return Level.OK, f"Functions are in {', '.join([functions, *sorted(marked)])}.", "" if marked else mark


def rights(cluster: Cluster, installation: Installation) -> tuple[Level, str, str]:
    """Check whether the account has all permissions of this installation: more if it is cluster-wide or has coordinators.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    wide, pools = cluster_wide(cluster, installation.system), daemons(cluster) is not None
    wanted = [*PERMISSIONS, *(WIDE if wide else ()), *(POOLS if pools else ())]
    scopes = {
        Scope.CLUSTER: None,
        Scope.FUNCTIONS: None if wide else installation.functions,
        Scope.SYSTEM: installation.system,
        Scope.NODES: NODES_NAMESPACE,
    }
    own = installed_by(installation.system)
    install = f"{INSTALL}/coordinator and {own}" if pools else own
    if wide:
        install += ", with the component deploy/openfaas/cluster-wide"
    return permissions(cluster, wanted, scopes, installation.subject, install)


def login(cluster: Cluster, system: str) -> tuple[Level, str, str]:
    """Check whether the login Secret exists, without which the gateway's pods wait.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    found = cluster.find(SECRETS, system, LOGIN)
    make = (
        f"kubectl -n {system} create secret generic {LOGIN} --from-literal=basic-auth-user=… --from-literal=basic-auth-password=…"
    )
    if found is None:
        return Level.FAIL, f"There is no Secret {LOGIN} in {system}.", make
    not_ready = {"basic-auth-user", "basic-auth-password"} - set(found.get("data") or {})
    if not_ready:
        return Level.FAIL, f"Secret {LOGIN} has no {' and no '.join(sorted(not_ready))}.", make
    return Level.OK, f"Secret {LOGIN} is there.", ""


def peers(cluster: Cluster, system: str) -> tuple[Level, str, str]:
    """Check whether the Secret exists by which replicas share the functions.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    found = cluster.find(SECRETS, system, PEERS)
    if found is not None and "secret" in (found.get("data") or {}):
        return Level.OK, f"Secret {PEERS} is there: replicas share the functions.", ""
    make = f'kubectl -n {system} create secret generic {PEERS} --from-literal=secret="$(openssl rand -hex 24)"'
    return Level.WARN, f"There is no Secret {PEERS} with a key secret: one replica serves, the others only stand by.", make


def cluster_wide(cluster: Cluster, system: str) -> bool:
    """True if the gateway manages every marked namespace.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    given = arguments(cluster.find(DEPLOYMENTS, system, GATEWAY))
    named = {word.partition("=")[2] for word in given if word.startswith("--namespace=")}
    return "--cluster-wide" in given or bool(named - {DEFAULT_NAMESPACE})


def is_restricted(namespace: dict[str, object]) -> bool:
    """True if the namespace admits only pods that meet Pod Security's level restricted."""
    metadata = namespace.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return isinstance(labels, dict) and labels.get(SECURITY_LABEL) == "restricted"


def restrict(names: list[str]) -> str:
    """The command that sets Pod Security's level restricted on namespaces."""
    return f"kubectl label namespace {' '.join(names)} {SECURITY_LABEL}=restricted --overwrite"


def find_conflicting_autoscalers(cluster: Cluster, namespace: str) -> tuple[Level, str, str]:
    """Check for conflicting autoscalers in the namespace of functions.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    query = {"labelSelector": f"{MANAGED_LABEL}={MANAGED}"}
    ours = {item["metadata"]["name"] for item in cluster.items(DEPLOYMENTS.path(namespace), query)}
    conflicting = [
        autoscaler
        for resource in (AUTOSCALERS, SCALED_OBJECTS)
        for autoscaler in targeting(resource, cluster.items(resource.path(namespace)), ours)
    ]
    if not conflicting:
        return Level.OK, f"No other autoscaler targets the {len(ours)} functions in {namespace}.", ""
    return (
        Level.WARN,
        f"Others count the pods of functions, which Gnomon then leaves alone: {', '.join(conflicting)}.",
        "Remove them, and these functions' own policies scale them again.",
    )


def targeting(resource: Resource, items: Iterable[dict[str, Any]], ours: set[str]) -> list[str]:
    """Autoscalers of one kind that target one of our Deployments, each as `Kind name → function`."""
    found = []
    for item in items:
        target = (item.get("spec") or {}).get("scaleTargetRef") or {}
        if target.get("kind", DEPLOYMENTS.kind) == DEPLOYMENTS.kind and target.get("name") in ours:
            found.append(f"{resource.kind} {item['metadata']['name']} → {target['name']}")
    return sorted(found)


PROVIDER, NAMESPACE_VARIABLE = "faas-netes", "function_namespace"


def providers(cluster: Cluster, functions: str) -> tuple[Level, str, str]:
    """Check in all namespaces for another provider that manages the functions' namespace.

    Raises:
        Refused, Unreachable: the API server refuses the request, or cannot be reached.

    """
    found = [name for deployment in cluster.items(DEPLOYMENTS.path()) for name in managing(deployment, functions)]
    if not found:
        return Level.OK, f"No other provider manages the functions in {functions}.", ""
    return (
        Level.WARN,
        f"{PROVIDER} manages {functions} as well, and keeps each function between 1 and 5 replicas: {', '.join(found)}.",
        'Take it out of the gateway\'s pod: docs/howto/adopt-in-openfaas.md, "Behind the gateway on Kubernetes".',
    )


def managing(deployment: dict[str, Any], functions: str) -> Iterator[str]:
    """A Deployment's faas-netes containers for this namespace, or for an unspecified one."""
    metadata, pod = deployment["metadata"], deployment["spec"]["template"]["spec"]
    for container in pod.get("containers") or ():
        if image_name(container.get("image", "")) != PROVIDER:
            continue
        variables = {variable["name"]: variable.get("value") for variable in container.get("env") or ()}
        if variables.get(NAMESPACE_VARIABLE) in (None, "", functions):
            yield f"container {container['name']} of Deployment {metadata['name']} in {metadata['namespace']}"


def image_name(reference: str) -> str:
    """`registry.example:5000/openfaas/faas-netes:1@sha256:…` → `faas-netes`."""
    return reference.partition("@")[0].rpartition("/")[2].partition(":")[0]
