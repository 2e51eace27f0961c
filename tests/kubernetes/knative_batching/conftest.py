"""A control plane with Knative's kinds, played Knative, and pods that run what images run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster.client import Cluster
from tests.kubernetes.knative_autoscaler.conftest import knative, knative_kinds, played_as
from tests.kubernetes.knative_autoscaler.played_knative import PlayedKnative
from tests.kubernetes.knative_batching.pods import TOKEN, Pod

__all__ = ["knative", "knative_kinds", "played_as"]

HANDLER = """
import time


def handle(event, context):
    if event.body.startswith(b"slow"):
        time.sleep(0.05)
    return event.body
"""
SECRET = "gnomon-batch-token"
ENV = [{"name": "GNOMON_BATCH_TOKEN", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": SECRET}}}]
"""By which a Revision's pods get the token of their namespace."""


@dataclass
class Pods:
    """The requests that pods of Revisions have received: paths, and the number of requests in each."""

    seen: list[tuple[str, int]] = field(default_factory=list)

    @property
    def batches(self) -> list[int]:
        """The sizes of batches that came as such."""
        return [size for path, size in self.seen if path == "/gnomon/batch"]


@pytest.fixture
def pods(knative_kinds: Cluster, knative: PlayedKnative, tmp_path: Path) -> Pods:
    """Pods that echo, with a token; the namespace has the Secret with it."""
    (tmp_path / "handler.py").write_text(HANDLER)
    made = Pods()
    knative.begins = lambda _, address: Pod(address, tmp_path, made.seen, token=TOKEN)
    secret = {"metadata": {"name": SECRET}, "stringData": {SECRET: TOKEN}}
    knative_kinds.core.create_namespaced_secret(knative.namespace, secret)
    return made
