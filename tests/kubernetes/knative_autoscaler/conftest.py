"""A control plane with Knative's kinds of objects, and a played Knative for each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.cluster import build
from tests.cluster.client import Cluster
from tests.kubernetes.kinds import install_kinds
from tests.kubernetes.knative_autoscaler.played_knative import PlayedKnative
from tests.kubernetes.openfaas.kubelet import WORKER

KINDS = ("serving/300-resources/podautoscaler.yaml", "serving/300-resources/revision.yaml", "networking/serverlessservice.yaml")
OCTETS = pytest.StashKey[list[int]]()


@pytest.fixture(scope="session")
def knative_kinds(control_plane: Cluster, compiled: build.Programs) -> Cluster:
    install_kinds(control_plane, compiled, *KINDS)
    return control_plane


@pytest.fixture
def played_as() -> type[PlayedKnative]:
    """The class of the fake Knative: a folder may override it with pods of its own."""
    return PlayedKnative


@pytest.fixture
def knative(knative_kinds: Cluster, played_as: type[PlayedKnative], request: pytest.FixtureRequest) -> Iterator[PlayedKnative]:
    """Each test has namespaces and loopback addresses of its own, also beside those of another process."""
    name = secrets.token_hex(3)
    used = request.config.stash.setdefault(OCTETS, [100 + 50 * WORKER])
    used[0] += 1
    played = played_as(knative_kinds, f"users-{name}", f"system-{name}", used[0])
    played.start()
    yield played
    played.stop()
