"""The API permissions of the gateway, with reasons: the source for the roles of deploy/openfaas, the chart and `gnomon doctor`.

A test runs the platform as the service account and compares the API server's audit log with this table in both directions: no
permission is missing, and none is unused.
"""

from __future__ import annotations

from collections.abc import Iterator

from gnomon_platforms.kubernetes.resources import Permission, Scope

PERMISSIONS = (
    Permission(Scope.CLUSTER, "", "nodes", ("list", "watch"), "see where Shadows have room"),
    Permission(Scope.CLUSTER, "", "pods", ("list", "watch"), "see what all pods take of it"),
    Permission(
        Scope.FUNCTIONS,
        "apps",
        "deployments",
        ("get", "list", "watch", "create", "update", "delete"),
        "keep one for each function",
    ),
    Permission(Scope.FUNCTIONS, "apps", "deployments/scale", ("patch",), "set how many pods it has"),
    Permission(
        Scope.FUNCTIONS, "", "pods", ("get", "list", "watch", "patch", "delete"), "bind pods to instances, mark and remove them"
    ),
    Permission(Scope.FUNCTIONS, "", "pods/resize", ("patch",), "change a pod's cores in place"),
    Permission(Scope.FUNCTIONS, "", "pods/log", ("get",), "read what functions write"),
    Permission(Scope.FUNCTIONS, "", "secrets", ("get", "list", "create", "update", "delete"), "keep secrets and tokens"),
    Permission(Scope.FUNCTIONS, "", "services", ("get", "create"), "name functions inside the cluster"),
    Permission(Scope.FUNCTIONS, "policy", "poddisruptionbudgets", ("get", "create"), "let drains take one pod at a time"),
    Permission(Scope.FUNCTIONS, "", "events", ("get", "create"), "say on a Deployment what keeps it from its pods"),
    Permission(Scope.FUNCTIONS, "autoscaling", "horizontalpodautoscalers", ("list", "watch"), "see whose pods others count"),
    Permission(Scope.FUNCTIONS, "keda.sh", "scaledobjects", ("list", "watch"), "see the same of KEDA"),
    Permission(Scope.SYSTEM, "coordination.k8s.io", "leases", ("get", "create", "update"), "let one gateway lead"),
    Permission(Scope.SYSTEM, "", "configmaps", ("get", "list", "watch", "create", "update"), "say which gateway has what"),
    Permission(Scope.SYSTEM, "", "pods", ("list", "watch"), "see the other gateways"),
)

WIDE = (Permission(Scope.CLUSTER, "", "namespaces", ("get", "list", "watch", "create", "patch"), "mark namespaces of functions"),)
"""Additional permissions with `--cluster-wide`; those of the functions' namespace then hold in all namespaces."""


def all_permissions() -> Iterator[tuple[Scope, str, str, str]]:
    """Every permission by scope, group, resource and verb."""
    for permission in PERMISSIONS:
        for verb in permission.verbs:
            yield permission.scope, permission.group, permission.resource, verb
