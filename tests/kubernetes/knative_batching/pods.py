"""Pods of Revisions, as processes of this one: what an image runs, behind a small queue-proxy's two ports.

ADDRESS:8012  requests, as queue-proxy takes them, straight to the application
ADDRESS:9090  what it has seen in the last second (`PlayedKnative` serves that page)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gnomon_core.wire import FrameReader
from tests.integration.kubernetes_platform.instance_server import Application, Served, application_of

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
