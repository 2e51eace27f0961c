"""What whoever has Shadows from nodes' pools asks of the API server in the coordinators' namespace, and for what.

The table behind the role `gnomon-pools` of deploy/openfaas/coordinator, which the gateway of OpenFaaS or the autoscaler class of
Knative is bound to.
"""

from __future__ import annotations

from gnomon_platforms.kubernetes.resources import Permission, Scope

POOLS = (
    Permission(Scope.NODES, "", "pods", ("get", "list", "watch"), "find the nodes' coordinators"),
    Permission(Scope.NODES, "", "pods/resize", ("patch",), "let a pool's request follow what its Shadows have"),
)
