"""Each kustomization is applied, applied again as an upgrade is, and deleted: nothing of it stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.test_cluster import build
from deploy.test_cluster.client import Kubectl
from deploy.test_cluster.clusters import until
from tests.kubernetes.conftest import plane
from tests.kubernetes.installation.forms import DEPLOY

SERVING = "knative-serving"
EVERYWHERE = "clusterroles,clusterrolebindings,csidrivers,priorityclasses,namespaces"
INSIDE = "deployments,services,roles,rolebindings,poddisruptionbudgets,serviceaccounts,pods,replicasets,networkpolicies"


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
    return {*everywhere, *kubectl("get", INSIDE, "-n", SERVING, "-o", "name").split()}


@pytest.mark.parametrize(
    "folder",
    ["openfaas", "openfaas/coordinator", "knative", "knative/autoscaler", "knative/ingress", "knative/gateway", "knative-models"],
)
def test_what_was_applied_is_applied_again_and_deleted(kubectl_with_controllers: Kubectl, folder: str) -> None:
    kubectl, path = kubectl_with_controllers, str(Path(DEPLOY, folder))
    before = there(kubectl)
    kubectl("apply", "--validate=strict", "-k", path)
    made = there(kubectl)
    assert made > before
    # Nothing that is there would be changed by the same again; kubectl fails where there is a difference.
    kubectl("diff", "-k", path)
    assert "created" not in kubectl("apply", "-k", path)
    kubectl("delete", "-k", path, "--timeout=100s")
    until(lambda: there(kubectl) == before, f"nothing of {folder} to be left")
