"""Clusters for tests.

`control_plane`: etcd and an apiserver of our own, in seconds, where their programs were compiled (`make cluster-build`).
`cluster`: the cluster that `make test-kubernetes` boots, or was told of by KUBECONFIG. KUBECONFIG alone is not looked at here:
whoever runs all tests with a production cluster in their environment must not find them there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from benchmarks.kubernetes.pods import booted
from tests.cluster import build
from tests.cluster.client import Cluster, reached, until
from tests.cluster.settings import folders, image

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "whole_cluster: it uses the one cluster, and nobody else may meanwhile")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark those that use the one cluster: several install what there is once, so that they run one after the other.

    `python -m tests.kubernetes` runs the others beside them, on control planes of their own.
    """
    for item in items:
        if item.path.is_relative_to(HERE) and "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.whole_cluster)


@pytest.fixture(scope="session")
def compiled() -> build.Programs:
    found = build.kept(folders())
    if found is None:
        pytest.skip("the cluster's programs are not compiled: make cluster-build")
    return found


@contextlib.contextmanager
def plane(*, controllers: bool = False) -> Iterator[Cluster]:
    """A control plane for the length of a block. Whoever uses it asks for `compiled` before, which skips where nothing is."""
    with booted(controllers=controllers) as running:
        cluster = reached(running.kubeconfig)
        try:
            yield cluster
        finally:
            cluster.api.close()


@pytest.fixture(scope="session")
def control_plane(compiled: build.Programs) -> Iterator[Cluster]:
    """An empty one for the whole run; tests take namespaces of their own."""
    del compiled
    with plane() as cluster:
        yield cluster


@pytest.fixture
def own_plane(compiled: build.Programs) -> Iterator[Cluster]:
    """An empty one for a single test, such as one of somebody who looks after every namespace."""
    del compiled
    with plane() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    named = os.environ.get("GNOMON_TEST_KUBECONFIG")
    if not named:
        pytest.skip("no cluster: make test-kubernetes boots one, or uses the one that KUBECONFIG names")
    cluster = reached(Path(named))
    yield cluster
    cluster.api.close()


@pytest.fixture
def with_knative(cluster: Cluster) -> None:
    """The cluster has Knative; tests are skipped where it has not."""
    try:
        cluster.core.read_namespace("knative-serving")
    except client.ApiException as error:
        if error.status != 404:
            raise
        pytest.skip("this cluster has no Knative")


@pytest.fixture(scope="session")
def answer_image() -> str:
    """The small web server's image; another cluster gets it from wherever GNOMON_TEST_IMAGE says that it was put."""
    return os.environ.get("GNOMON_TEST_IMAGE", image("answer"))


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace for one test, deleted afterwards."""
    name = f"test-{secrets.token_hex(4)}"
    cluster.core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=name)))
    # Pods are refused until the controller manager has made this account.
    until(lambda: accounts(cluster, name), "the namespace's service account")
    yield name
    cluster.core.delete_namespace(name, grace_period_seconds=0)


def accounts(cluster: Cluster, namespace: str) -> bool:
    return "default" in {account.metadata.name for account in cluster.core.list_namespaced_service_account(namespace).items}


@pytest.fixture
def deploy(cluster: Cluster, namespace: str, answer_image: str) -> Callable[..., str]:
    """Makes a Deployment of the web server that the cluster's images contain; returns its name."""

    def make(name: str, *, replicas: int = 1, **container: Any) -> str:
        resources = {"requests": {"cpu": "20m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "32Mi"}}
        spec = {"name": "answer", "image": answer_image, "ports": [{"containerPort": 8080}], "resources": resources, **container}
        spec.setdefault("readinessProbe", {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1})
        template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [spec], "terminationGracePeriodSeconds": 2}}
        body = {"selector": {"matchLabels": {"app": name}}, "replicas": replicas, "template": template}
        cluster.apps.create_namespaced_deployment(namespace, {"metadata": {"name": name}, "spec": body})
        return name

    return make
