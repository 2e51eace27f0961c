"""The API permissions of the autoscaler class and the gateway: the source for the roles of deploy/knative.

A test runs each as its service account and compares the roles with the API server's audit log, and with these tables.
"""

from __future__ import annotations

from gnomon_platforms.knative.batching.revisions import BATCH_SECRET
from gnomon_platforms.kubernetes.resources import Permission, Scope

_SCALING, _NETWORKING, _SERVING = "autoscaling.internal.knative.dev", "networking.internal.knative.dev", "serving.knative.dev"

AUTOSCALER = (
    Permission(Scope.CLUSTER, _SCALING, "podautoscalers", ("get", "list", "watch"), "see which Revisions there are"),
    Permission(Scope.CLUSTER, _SCALING, "podautoscalers/status", ("update",), "say how they are scaled"),
    Permission(Scope.CLUSTER, _SCALING, "podautoscalers/finalizers", ("update",), "own ServerlessServices for them"),
    Permission(Scope.CLUSTER, _SERVING, "revisions", ("list", "watch"), "see what they are to be scaled by"),
    Permission(
        Scope.CLUSTER,
        _NETWORKING,
        "serverlessservices",
        ("get", "list", "watch", "create", "update"),
        "send requests to pods or to activators",
    ),
    Permission(Scope.CLUSTER, "apps", "deployments", ("list", "watch"), "see how many pods there are"),
    Permission(Scope.CLUSTER, "apps", "deployments/scale", ("patch",), "set how many there are"),
    Permission(Scope.CLUSTER, "", "pods", ("list", "watch"), "see which of them serve"),
    Permission(Scope.CLUSTER, "", "pods/resize", ("patch",), "give them other cores in place"),
    Permission(Scope.CLUSTER, "", "nodes", ("list", "watch"), "see where there is room, with --models"),
    Permission(Scope.CLUSTER, "", "services", ("get",), "ask whether an activator answers before the last pod goes"),
    Permission(
        Scope.CLUSTER, "", "endpoints", ("get", "list", "watch", "patch"), "lead Services of Revisions that batch to the gateway"
    ),
    Permission(
        Scope.CLUSTER,
        "discovery.k8s.io",
        "endpointslices",
        ("get", "list", "watch", "create", "update", "delete"),
        "the same",
    ),
    Permission(
        Scope.CLUSTER,
        "",
        "events",
        ("get", "create"),
        "say on a Deployment that others count its pods, or that Bodies work alone",
    ),
    Permission(Scope.CLUSTER, "autoscaling", "horizontalpodautoscalers", ("list", "watch"), "see whose pods others count"),
    Permission(Scope.CLUSTER, "keda.sh", "scaledobjects", ("list", "watch"), "see the same of KEDA"),
    Permission(Scope.SYSTEM, "", "configmaps", ("list", "watch"), "see what is set for all Revisions"),
    Permission(Scope.SYSTEM, "coordination.k8s.io", "leases", ("get", "create", "update"), "let one autoscaler lead"),
)

GATEWAY = (
    Permission(Scope.CLUSTER, _SERVING, "revisions", ("list", "watch"), "see which Revisions batch"),
    Permission(Scope.CLUSTER, _SCALING, "podautoscalers", ("list", "watch"), "see how their buffers are planned"),
    Permission(Scope.CLUSTER, "", "pods", ("list", "watch"), "see which of their pods are ready"),
    Permission(Scope.CLUSTER, "", "secrets", ("get",), "send batches to pods that take them", only=BATCH_SECRET),
)
