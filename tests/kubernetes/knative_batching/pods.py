"""Pods of Revisions, as processes of this one: what an image runs, behind a small queue-proxy's two ports.

ADDRESS:8012  requests, as queue-proxy takes them, straight to the application
ADDRESS:9090  what it has seen in the last second (`PlayedKnative` serves that page)
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from werkzeug.serving import make_server

from gnomon_core.wire import FrameReader
from tests.integration.kubernetes_platform.instance_server import Quiet, application_of

TOKEN = "batches-please"
QUEUE_PORT = 8012


class Pod:
    """The application of an image at an address; what came to it is noted in `seen`."""

    def __init__(self, address: str, handler: Path, seen: list[tuple[str, int]], *, token: str) -> None:
        app = application_of(handler, token)
        self._lock = threading.Lock()
        self._inside, self._came, self._asked_s = 0, 0, time.monotonic()

        def counted(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = io.BytesIO(body)
            path = environ["PATH_INFO"]
            [size] = [len(frame.members) for frame in FrameReader().feed(body)] if path == "/gnomon/batch" else [1]
            with self._lock:
                seen.append((path, size))
                self._inside, self._came = self._inside + 1, self._came + 1
            try:
                return list(app(environ, start))
            finally:
                with self._lock:
                    self._inside -= 1

        self._server = make_server(address, QUEUE_PORT, counted, threaded=True, request_handler=Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def stat(self) -> tuple[float, float]:
        """Requests in it, and how many came a second, as queue-proxy counts them: a batch is one."""
        with self._lock:
            now_s, came = time.monotonic(), self._came
            seconds, self._asked_s, self._came = max(now_s - self._asked_s, 1e-3), now_s, 0
            return float(self._inside), came / seconds

    def end(self) -> None:
        """Answer what is in flight, and stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
