"""A control plane on which `kubectl apply -k deploy/openfaas` was run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.test_cluster import build
from deploy.test_cluster.client import Kubectl
from deploy.test_cluster.clusters import Cluster, reached
from deploy.test_cluster.control_plane import ControlPlane
from deploy.test_cluster.processes import Programs

DEPLOY = Path(__file__).parents[3] / "deploy"


@pytest.fixture(scope="session")
def installed(compiled: build.Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Without controllers: objects are there, and nothing becomes of them."""
    state = tmp_path_factory.mktemp("installed") / "state"
    plane = ControlPlane(state, compiled.folder, Programs(state, end_with_us=True))
    try:
        plane.boot()
        cluster = reached(plane.kubeconfig)
        # A field that the API server does not know is an error, and not a warning.
        Kubectl(compiled.folder / "kubectl", plane.kubeconfig)("apply", "--validate=strict", "-k", str(DEPLOY / "openfaas"))
        yield cluster
        cluster.api.close()
    finally:
        plane.end()


@pytest.fixture(scope="session")
def kubectl(compiled: build.Programs, installed: Cluster) -> Kubectl:
    return Kubectl(compiled.folder / "kubectl", installed.kubeconfig)
