"""Knative: is it there, do its config maps leave us what our classes need, and do they run?"""

from __future__ import annotations

from collections.abc import Iterator

from gnomon_cli.doctor.findings import Level, Look
from gnomon_cli.doctor.looking import Cluster
from gnomon_cli.doctor.permissions import Asker, permissions
from gnomon_cli.doctor.shadows import daemons
from gnomon_cli.doctor.wishes import Wisher, has_option
from gnomon_cli.doctor.workloads import ready
from gnomon_core.coordination import NODES_NAMESPACE
from gnomon_platforms.knative.autoscaler.configuration import CSI_FEATURE
from gnomon_platforms.knative.autoscaler.objects import conditions
from gnomon_platforms.knative.autoscaler.status import NO_POOL, NO_VOLUME, NOT_CONFIGURED, VOLUMES_DISABLED
from gnomon_platforms.knative.permissions import AUTOSCALER, GATEWAY, INGRESS
from gnomon_platforms.knative.resources import POD_AUTOSCALERS, REVISION_LABEL, SYSTEM_NAMESPACE
from gnomon_platforms.kubernetes.resources import CONFIG_MAPS, DEPLOYMENTS, Permission, Scope
from gnomon_platforms.nodes.permissions import POOLS

NAMESPACE = SYSTEM_NAMESPACE
GROUPS = ("serving.knative.dev/v1", "autoscaling.internal.knative.dev/v1alpha1", "networking.internal.knative.dev/v1alpha1")
SCALER, PROXY, BUFFER = "gnomon-autoscaler", "gnomon-ingress", "gnomon-gateway"
INSTALL = "kubectl apply -k deploy/knative"
INSIDE = "svc.cluster.local"
"""Knative's default domain, whose names are served inside the cluster only."""
ON_KNATIVE = Wisher(NAMESPACE, SCALER, "kubectl apply -k deploy/knative-models", REVISION_LABEL)
"""The autoscaler class, as it may wish for Shadows."""
_ENABLED = '{"data":{"' + CSI_FEATURE + '":"enabled"}}'
ALLOW_VOLUMES = f"kubectl -n {NAMESPACE} patch configmap config-features --type merge -p '{_ENABLED}'"
MISSING = {
    VOLUMES_DISABLED: ALLOW_VOLUMES,
    NO_VOLUME: 'Give the template of its service the volume: docs/howto/run-on-knative.md, "Bodies with Shadows".',
    NOT_CONFIGURED: ON_KNATIVE.install,
    NO_POOL: f"kubectl -n {NODES_NAMESPACE} logs -l app.kubernetes.io/component=coordinator -c pool",
}
"""What to do where Bodies of a Revision work alone, by the reason that its condition `Shadows` has."""


def knative_checks(cluster: Cluster, asker: Asker) -> Iterator[tuple[str, Look]]:
    """The checks of an installation on Knative, beside those of the cluster."""
    yield "Knative", lambda: serving(cluster)
    yield "Knative's metrics", lambda: metrics(cluster)
    yield "Knative's volumes", lambda: volumes(cluster)
    yield "Knative's scaling", lambda: scaling(cluster)
    yield "Knative's network", lambda: network(cluster)
    yield "Knative's domain", lambda: domain(cluster)
    yield "permissions", lambda: rights(cluster, asker)
    yield "autoscaler class", lambda: ready(cluster, NAMESPACE, SCALER, f"{INSTALL}/autoscaler")
    yield "ingress class", lambda: ingress(cluster)
    yield "gateway", lambda: gateway(cluster)
    yield "Shadows' Revisions", lambda: alone(cluster)


def serving(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether its objects are known.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    missing = [group for group in GROUPS if cluster.get(f"/apis/{group}") is None]
    if missing:
        return Level.FAIL, f"The cluster does not know {', '.join(missing)}.", "Install Knative Serving."
    return Level.OK, "Knative Serving is installed.", ""


def metrics(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether activators tell what waits at them. Without it nothing goes to zero, for nobody could be woken.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    value = settings(cluster, "config-observability").get("metrics-protocol", "none")
    if value != "prometheus":
        patch = '{"data":{"metrics-protocol":"prometheus"}}'
        hint = (
            f"kubectl -n {NAMESPACE} patch configmap config-observability --type merge -p '{patch}' && "
            f"kubectl -n {NAMESPACE} rollout restart deployment activator"
        )
        return Level.WARN, f"metrics-protocol is {value}: activators do not tell what waits, and nothing goes to zero.", hint
    return Level.OK, "metrics-protocol is prometheus: activators tell what waits at them.", ""


def rights(cluster: Cluster, asker: Asker) -> tuple[Level, str, str]:
    """Whether the account may do what its part asks for; what all three ask for, where it is none of theirs.

    The autoscaler class asks for more where it wishes for Shadows: their pools' pods.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    wishes = has_option(cluster, ON_KNATIVE)
    scaler = (*AUTOSCALER, *(POOLS if wishes else ()))
    tables: dict[str, tuple[Permission, ...]] = {SCALER: scaler, PROXY: INGRESS, BUFFER: GATEWAY}
    name = asker.account[1] if asker.account else ""
    proxy = () if cluster.one(DEPLOYMENTS, NAMESPACE, PROXY) is None else INGRESS
    wanted = tables.get(name, scaler + proxy + GATEWAY)
    scopes = {Scope.CLUSTER: None, Scope.SYSTEM: NAMESPACE, Scope.NODES: NODES_NAMESPACE}
    return permissions(cluster, wanted, scopes, asker, ON_KNATIVE.install if wishes else INSTALL)


def ingress(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether our proxies are ready, where there are any. Any other ingress class serves routes as well, and they batch.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    install = f"{INSTALL}/ingress"
    if cluster.one(DEPLOYMENTS, NAMESPACE, PROXY) is None:
        if settings(cluster, "config-network").get("ingress-class") == "gnomon":
            return Level.FAIL, f"ingress-class is gnomon, and there is no Deployment {PROXY}: nothing is routed.", install
        return Level.OK, "Routes are of another ingress class, behind which Revisions batch as well.", ""
    return ready(cluster, NAMESPACE, PROXY, install)


def gateway(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether the gateway is ready to which Services of Revisions that batch lead. Without it each request goes by itself.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    install = f"{INSTALL}/gateway"
    if cluster.one(DEPLOYMENTS, NAMESPACE, BUFFER) is None:
        return Level.WARN, f"There is no Deployment {BUFFER}: nothing batches.", install
    if cluster.one(DEPLOYMENTS, NAMESPACE, SCALER) is None:
        said = f"There is no Deployment {SCALER}, and nobody else leads to the gateway: nothing batches."
        return Level.WARN, said, f"{INSTALL}/autoscaler"
    return ready(cluster, NAMESPACE, BUFFER, install)


def volumes(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether a Revision's pods may have the volume by which Bodies reach their node's coordinator, where there are some.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    value = settings(cluster, "config-features").get(CSI_FEATURE, "disabled").lower()
    if value == "enabled":
        return Level.OK, f"{CSI_FEATURE} is enabled: pods may have the volume by which their Bodies have Shadows.", ""
    said = f"{CSI_FEATURE} is {value}: pods cannot have the volume of their node's coordinator, and Bodies run without Shadows."
    if daemons(cluster) is None:
        return Level.OK, said, ""
    return Level.WARN, said, ALLOW_VOLUMES


def alone(cluster: Cluster) -> tuple[Level, str, str]:
    """Which Revisions have no Shadows although their policy makes them, and what the first of them lacks.

    One that no route leads to any more stays as it was: what its service lacked, its next Revision may have.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    found = {}
    for one in cluster.items(POD_AUTOSCALERS.path()):
        said = conditions(one.get("status") or {}).get("Shadows")
        reached = (one.get("spec") or {}).get("reachability") != "Unreachable"
        if reached and said is not None and said.status == "False":
            found[f"{one['metadata']['namespace']}/{one['metadata']['name']}"] = said
    if not found:
        return Level.OK, "No Revision lacks Shadows that its policy would make.", ""
    name, first = min(found.items())
    more = f", and of {len(found) - 1} more," if len(found) > 1 else ""
    return Level.WARN, f"Bodies of {name}{more} have no Shadows: {first.message}", MISSING.get(first.reason, "")


def scaling(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether functions may go to zero, and whose class is the default.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    found = settings(cluster, "config-autoscaler")
    default = found.get("pod-autoscaler-class", "kpa.autoscaling.knative.dev")
    if found.get("enable-scale-to-zero", "true").lower() == "false":
        return Level.WARN, "enable-scale-to-zero is false: nothing goes to zero.", f"Set it in {NAMESPACE}/config-autoscaler."
    return Level.OK, f"Revisions that name no class get {default}.", ""


def network(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether pods may be spoken to at their own addresses, and whose ingress class is the default.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    found = settings(cluster, "config-network")
    default = found.get("ingress-class", "istio.ingress.networking.knative.dev")
    if found.get("mesh-compatibility-mode", "auto").lower() == "enabled":
        hint = f"Set mesh-compatibility-mode in {NAMESPACE}/config-network to auto or disabled for Revisions that batch."
        return Level.WARN, "Pods are reached through a mesh, so none can be chosen for a batch.", hint
    return Level.OK, f"Pods are reached at their own addresses; routes that name no class get {default}.", ""


def domain(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether services have names outside the cluster. Under Knative's default an ingress serves callers inside only.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    named = sorted(one for one in settings(cluster, "config-domain") if not one.startswith("_") and one != INSIDE)
    if named:
        return Level.OK, f"Services have names under {', '.join(named)}.", ""
    patch = '{"data":{"knative.example.com":""}}'
    hint = f"With a domain of yours: kubectl -n {NAMESPACE} patch configmap config-domain --type merge -p '{patch}'"
    return Level.WARN, f"The domain is {INSIDE}: services answer inside the cluster only, and 404 to all others.", hint


def settings(cluster: Cluster, name: str) -> dict[str, str]:
    """What a config map says. One that is not there says nothing, which Knative takes for its defaults.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    found = cluster.one(CONFIG_MAPS, NAMESPACE, name) or {}
    return dict(found.get("data") or {})
