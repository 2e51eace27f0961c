"""Each kustomization is applied, applied again as an upgrade is, and deleted: nothing of it stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gnomon_platforms.kubernetes import ownership
from gnomon_server import knative_autoscaler, kubernetes
from tests.cluster import build
from tests.cluster.client import Kubectl, until
from tests.kubernetes.conftest import plane
from tests.kubernetes.installation.forms import DEPLOY, Kustomized

SYSTEM, SERVING = "openfaas", "knative-serving"
EVERYWHERE = "clusterroles,clusterrolebindings,csidrivers,priorityclasses,namespaces,persistentvolumes"
INSIDE = (
    "deployments,services,roles,rolebindings,poddisruptionbudgets,serviceaccounts,pods,replicasets,networkpolicies,"
    "leases,configmaps,secrets,persistentvolumeclaims"
)
ROOTS = "configmap/kube-root-ca.crt"
"""Kubernetes' own, in every namespace some time after it was made."""
LED = '{"spec":{"holderIdentity":"one","leaseDurationSeconds":15,"leaseTransitions":4}}'
FOLDERS = [
    "openfaas",
    "openfaas/coordinator",
    "openfaas-models",
    "knative",
    "knative/autoscaler",
    "knative/gateway",
    "knative-models",
]


@pytest.fixture(scope="module")
def kubectl_with_controllers(compiled: build.Programs) -> Iterator[Kubectl]:
    """A cluster whose namespaces end once they are empty, with the namespace of Knative's own."""
    with plane(controllers=True) as cluster:
        cluster.core.create_namespace({"metadata": {"name": SERVING}})
        until(lambda: cluster.core.list_namespaced_service_account(SERVING).items, "the service account")
        yield Kubectl(compiled.folder / "kubectl", cluster.kubeconfig)


def there(kubectl: Kubectl) -> set[str]:
    """The names of all that an installation could leave behind."""
    everywhere = kubectl("get", EVERYWHERE, "-o", "name").split()
    return {*everywhere, *kubectl("get", INSIDE, "-n", SERVING, "-o", "name").split()} - {ROOTS}


@pytest.mark.parametrize("folder", FOLDERS)
def test_manifests_are_reapplied_and_deleted(kubectl_with_controllers: Kubectl, folder: str) -> None:
    kubectl, path = kubectl_with_controllers, str(Path(DEPLOY, folder))
    before = there(kubectl)
    kubectl("apply", "--validate=strict", "-k", path)
    made = there(kubectl)
    assert made > before
    leases = sorted(name for name in made - before if name.startswith("lease."))
    for lease in leases:
        kubectl("patch", lease, "-n", SERVING, "--type=merge", "-p", LED)
    # Nothing that is there would be changed by the same again; kubectl fails where there is a difference.
    kubectl("diff", "-k", path)
    assert "created" not in kubectl("apply", "-k", path)
    for lease in leases:
        held = kubectl("get", lease, "-n", SERVING, "-o", "jsonpath={.spec.holderIdentity} {.spec.leaseTransitions}")
        assert held == "one 4", "who leads goes on"
    kubectl("delete", "-k", path, "--timeout=100s")
    until(lambda: there(kubectl) == before, f"nothing of {folder} to be left")


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("openfaas", ("Lease", SYSTEM, kubernetes.LEASE)),
        ("openfaas", ("ConfigMap", SYSTEM, ownership.NAME)),
        ("knative/autoscaler", ("Lease", SERVING, knative_autoscaler.LEASE)),
    ],
)
def test_lease_belongs_to_its_installation(kustomized: Kustomized, folder: str, name: tuple[str, str, str]) -> None:
    """An object that a process made for itself would remain when the rest is deleted."""
    assert name in kustomized(DEPLOY / folder)
