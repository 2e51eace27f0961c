"""The kinds of objects that we read and write, and where the API server keeps them.

A table of what a program asks of the API server, and for what: its roles say the same, and `gnomon doctor` asks for each.

Whether the cluster gives pods other cores while they run, which Kubernetes does since 1.33.

A pod is born with its deployment's cores, and an instance of another size gets its own by the subresource `resize`. Where there
is none it would never have them, be replaced after the time for a start, and its successor too: policies that choose cores are
refused there. What is refused of a single pod, by a quota or a webhook, is no size that is on its way.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote

from gnomon_core.errors import GnomonError
from gnomon_platforms.kubernetes.client import Api, Refused, Unreachable


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object: `apps/v1`, `deployments`, `Deployment`."""

    api_version: str
    plural: str
    kind: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """The path of one object, of those of a namespace, or without either of all."""
        parts = ["api" if "/" not in self.api_version else "apis", *self.api_version.split("/")]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/" + "/".join(parts)


DEPLOYMENTS = Resource("apps/v1", "deployments", "Deployment")
PODS = Resource("v1", "pods", "Pod")
SERVICES = Resource("v1", "services", "Service")
SECRETS = Resource("v1", "secrets", "Secret")
CONFIG_MAPS = Resource("v1", "configmaps", "ConfigMap")
EVENTS = Resource("v1", "events", "Event")
NODES = Resource("v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("v1", "namespaces", "Namespace", namespaced=False)
DISRUPTION_BUDGETS = Resource("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget")
LEASES = Resource("coordination.k8s.io/v1", "leases", "Lease")
ENDPOINTS = Resource("v1", "endpoints", "Endpoints")
ENDPOINT_SLICES = Resource("discovery.k8s.io/v1", "endpointslices", "EndpointSlice")
NETWORK_POLICIES = Resource("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
AUTOSCALERS = Resource("autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
SCALED_OBJECTS = Resource("keda.sh/v1alpha1", "scaledobjects", "ScaledObject")
"""KEDA's; there only where KEDA is installed."""


class Scope(Enum):
    """Where a rule holds: in the namespace of functions, in our own, in that of the nodes' coordinators, or everywhere."""

    FUNCTIONS = "functions"
    SYSTEM = "system"
    NODES = "nodes"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Permission:
    """Verbs on one resource: `pods`, or a subresource such as `pods/resize`. `group` is empty for the core's.

    `only` is the one name that may be asked for; empty for all.
    """

    scope: Scope
    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    only: str = ""

    @property
    def name(self) -> str:
        """As kubectl writes it: `deployments.apps/scale`."""
        plural, slash, subresource = self.resource.partition("/")
        return f"{plural}{f'.{self.group}' if self.group else ''}{slash}{subresource}"


CORE_GROUP, SUBRESOURCE = "/api/v1", "pods/resize"
REFUSED_S = 30.0
"""A size that was refused is not asked for sooner again. Until then it is not on its way, and who decides on it is told so."""

_LOG = logging.getLogger("gnomon.kubernetes")


@dataclass(frozen=True, slots=True)
class RefusedSize:
    """So many cores a pod was refused, and why; until when they are not asked for."""

    cores: int
    why: GnomonError
    until_s: float


def resizes_pods(api: Api) -> bool:
    """Whether the API server offers it. One that does not say so is believed to: its answer to the first resize is told."""
    try:
        offered = api.call("GET", CORE_GROUP).get("resources") or ()
    except (Refused, Unreachable) as error:
        _LOG.warning("whether pods can be resized is not known: %s", error)
        return True
    if any(one.get("name") == SUBRESOURCE for one in offered):
        return True
    _LOG.warning("this API server offers no %s: policies that choose an instance's cores are refused", SUBRESOURCE)
    return False
