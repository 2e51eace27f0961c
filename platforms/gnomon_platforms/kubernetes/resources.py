"""The kinds of objects that we read and write, and where the API server keeps them.

`Permission` is one row of a program's table of API permissions: its RBAC roles list the same, and `gnomon doctor` checks each.

`resizes_pods` checks for in-place pod resize, which Kubernetes has since 1.33. A pod starts with its deployment's cores; an
instance of another size gets its cores by the subresource `resize`. Without it, such an instance would never become ready, be
replaced after the startup timeout, and its replacement too: policies that choose cores are refused on such clusters. A resize
that is refused for a single pod, by a quota or a webhook, does not count as pending.
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
        """The path of one object; without a name of a namespace's collection, without both of all namespaces."""
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
"""From KEDA; exists only where KEDA is installed."""


class Scope(Enum):
    """The scope of a permission: the functions' namespace, Gnomon's own, the node coordinators' namespace, or the cluster."""

    FUNCTIONS = "functions"
    SYSTEM = "system"
    NODES = "nodes"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Permission:
    """Verbs on one resource: `pods`, or a subresource such as `pods/resize`. `group` is empty for the core API group.

    `only` restricts the permission to one object name; empty for all.
    """

    scope: Scope
    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    only: str = ""

    @property
    def name(self) -> str:
        """The resource in kubectl's notation: `deployments.apps/scale`."""
        plural, slash, subresource = self.resource.partition("/")
        return f"{plural}{f'.{self.group}' if self.group else ''}{slash}{subresource}"


CORE_GROUP, SUBRESOURCE = "/api/v1", "pods/resize"
REFUSED_S = 30.0
"""Seconds until a refused size is requested again. Meanwhile no resize is pending, and the policy is told of the refusal."""

_LOG = logging.getLogger("gnomon.kubernetes")


@dataclass(frozen=True, slots=True)
class RefusedSize:
    """A number of cores that was refused for a pod, the reason, and until when it is not requested again."""

    cores: int
    why: GnomonError
    until_s: float


def resizes_pods(api: Api) -> bool:
    """True if the API server offers `pods/resize`. If that cannot be read, True: the first resize then reports the error."""
    try:
        offered = api.call("GET", CORE_GROUP).get("resources") or ()
    except (Refused, Unreachable) as error:
        _LOG.warning("it is unknown whether the API server supports pods/resize: %s", error)
        return True
    if any(resource.get("name") == SUBRESOURCE for resource in offered):
        return True
    _LOG.warning("this API server offers no %s: policies that choose an instance's cores are refused", SUBRESOURCE)
    return False
