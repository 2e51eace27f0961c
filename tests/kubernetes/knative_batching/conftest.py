"""A control plane with Knative's kinds, played Knative, and pods of Revisions that run what images run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.wire import FrameReader
from tests.cluster.client import Cluster
from tests.integration.kubernetes_platform.instance_server import Application, Served, application_of
from tests.kubernetes.knative_autoscaler.conftest import knative, knative_kinds, played_as
from tests.kubernetes.knative_autoscaler.played_knative import PlayedKnative

TOKEN = "batches-please"
QUEUE_PORT = 8012


class QueueProxy(Served):
    """Counts requests as queue-proxy does, a batch as one, and passes them on to an application."""

    def __init__(self, address: str, app: Application) -> None:
        self._app, self._lock = app, threading.Lock()
        self._inside, self._came, self._asked_s = 0, 0, time.monotonic()
        super().__init__(address, QUEUE_PORT, self._counted)

    def stat(self) -> tuple[float, float]:
        """Requests in it, and how many came a second since it was asked last."""
        with self._lock:
            now_s, came = time.monotonic(), self._came
            seconds, self._asked_s, self._came = max(now_s - self._asked_s, 1e-3), now_s, 0
            return float(self._inside), came / seconds

    def _counted(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        with self._lock:
            self._inside, self._came = self._inside + 1, self._came + 1
        try:
            return list(self._app(environ, start))
        finally:
            with self._lock:
                self._inside -= 1


class Pod(QueueProxy):
    """The application of an image at an address; what came to it is noted in `seen`, with its members."""

    def __init__(self, address: str, handler: Path, seen: list[tuple[str, int]], *, token: str) -> None:
        app = application_of(handler, token)

        def noted(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
            path, body = environ["PATH_INFO"], environ["wsgi.input"]
            batch = path == "/gnomon/batch"
            [size] = [len(frame.members) for frame in FrameReader().feed(body.read())] if batch else [1]
            body.seek(0)
            seen.append((path, size))
            return app(environ, start)

        super().__init__(address, noted)


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
