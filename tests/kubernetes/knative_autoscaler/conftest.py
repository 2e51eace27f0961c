"""A control plane with Knative's kinds of objects, and a played Knative for each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client

from deploy.test_cluster import build
from deploy.test_cluster.client import documents
from deploy.test_cluster.clusters import Cluster, until
from tests.kubernetes.knative_autoscaler.played_knative import PlayedKnative

KINDS = ("serving/300-resources/podautoscaler.yaml", "serving/300-resources/revision.yaml", "networking/serverlessservice.yaml")


OCTETS = pytest.StashKey[list[int]]()


def install_kinds(cluster: Cluster, compiled: build.Programs) -> None:
    """Let the API server know the kinds that an autoscaler class sees and writes."""
    extensions: Any = client.ApiextensionsV1Api(cluster.api)
    manifests = [
        one for one in documents(*(compiled.manifests / one for one in KINDS)) if one["kind"] == "CustomResourceDefinition"
    ]
    for manifest in manifests:
        try:
            extensions.create_custom_resource_definition(manifest)
        except client.ApiException as error:
            if error.status != 409:
                raise
    served = [manifest["metadata"]["name"] for manifest in manifests]

    def established() -> bool:
        found = {one.metadata.name: one.status.conditions or [] for one in extensions.list_custom_resource_definition().items}
        return all(any(one.type == "Established" and one.status == "True" for one in found[name]) for name in served)

    until(established, "Knative's kinds")


@pytest.fixture(scope="session")
def knative_kinds(control_plane: Cluster, compiled: build.Programs) -> Cluster:
    install_kinds(control_plane, compiled)
    return control_plane


@pytest.fixture
def knative(knative_kinds: Cluster, request: pytest.FixtureRequest) -> Iterator[PlayedKnative]:
    """Each test has namespaces and loopback addresses of its own."""
    name = secrets.token_hex(3)
    used = request.config.stash.setdefault(OCTETS, [100])
    used[0] += 1
    played = PlayedKnative(knative_kinds, f"users-{name}", f"system-{name}", used[0])
    played.start()
    yield played
    played.stop()
