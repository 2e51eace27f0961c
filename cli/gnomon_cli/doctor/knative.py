"""Knative: is it there, and do its config maps leave us what our classes need?"""

from __future__ import annotations

from collections.abc import Iterator

from gnomon_cli.doctor.findings import Level, Look
from gnomon_cli.doctor.looking import Cluster
from gnomon_platforms.kubernetes.resources import Resource

NAMESPACE = "knative-serving"
CONFIG_MAPS = Resource("v1", "configmaps", "ConfigMap")
GROUPS = ("serving.knative.dev/v1", "autoscaling.internal.knative.dev/v1alpha1", "networking.internal.knative.dev/v1alpha1")
CSI_FEATURE = "kubernetes.podspec-volumes-csi"


def knative_checks(cluster: Cluster) -> Iterator[tuple[str, Look]]:
    """The checks of an installation on Knative, beside those of the cluster."""
    yield "Knative", lambda: serving(cluster)
    yield "Knative's volumes", lambda: volumes(cluster)
    yield "Knative's scaling", lambda: scaling(cluster)
    yield "Knative's network", lambda: network(cluster)


def serving(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether its objects are known.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    missing = [group for group in GROUPS if cluster.get(f"/apis/{group}") is None]
    if missing:
        return Level.FAIL, f"The cluster does not know {', '.join(missing)}.", "Install Knative Serving."
    return Level.OK, "Knative Serving is installed.", ""


def volumes(cluster: Cluster) -> tuple[Level, str, str]:
    """Whether a Revision's pods may have the volume by which Bodies reach their node's coordinator.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    value = settings(cluster, "config-features").get(CSI_FEATURE, "disabled").lower()
    if value != "enabled":
        patch = f'{{"data":{{"{CSI_FEATURE}":"enabled"}}}}'
        hint = f"kubectl -n {NAMESPACE} patch configmap config-features --type merge -p '{patch}'"
        return Level.WARN, f"{CSI_FEATURE} is {value}: Bodies run without Shadows.", hint
    return Level.OK, f"{CSI_FEATURE} is enabled: Bodies can have Shadows.", ""


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


def settings(cluster: Cluster, name: str) -> dict[str, str]:
    """What a config map says. One that is not there says nothing, which Knative takes for its defaults.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    found = cluster.one(CONFIG_MAPS, NAMESPACE, name) or {}
    return dict(found.get("data") or {})
