"""A control plane on which `kubectl apply -k deploy/openfaas` was run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl
from tests.kubernetes.conftest import plane
from tests.kubernetes.installation.forms import DEPLOY, Kustomized, Manifest, Name, kustomization


@pytest.fixture(scope="session")
def kustomized(compiled: build.Programs) -> Kustomized:
    """The objects that `kubectl apply -k` of a folder applies."""

    def render(folder: Path) -> dict[Name, Manifest]:
        return kustomization(compiled.folder / "kubectl", folder)

    return render


@pytest.fixture(scope="session")
def installed(compiled: build.Programs) -> Iterator[Cluster]:
    """Without controllers: objects are there, and nothing becomes of them."""
    with plane() as cluster:
        # A field that the API server does not know is an error, and not a warning.
        Kubectl(compiled.folder / "kubectl", cluster.kubeconfig)("apply", "--validate=strict", "-k", str(DEPLOY / "openfaas"))
        yield cluster


@pytest.fixture(scope="session")
def kubectl(compiled: build.Programs, installed: Cluster) -> Kubectl:
    return Kubectl(compiled.folder / "kubectl", installed.kubeconfig)
