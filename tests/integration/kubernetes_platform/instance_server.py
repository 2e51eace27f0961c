"""The application that images run, behind a small HTTP server of this process."""

from __future__ import annotations

import io
import math
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from flask import Flask
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wsgi import ClosingIterator

from gnomon_runtime.http_app import create_app
from tests.unit.runtime.conftest import forget_handlers

Application: TypeAlias = Callable[[dict[str, Any], Any], Iterable[bytes]]
QUIET_S, DRAIN_S = 0.5, 10.0
_LOADING = threading.Lock()
"""Nodes that are played load handlers in threads of their own, and each forgets what was loaded before."""


class Quiet(WSGIRequestHandler):
    """A connection whose requests nobody reads about."""

    def log_request(self, *_: object) -> None:
        pass


def application_of(handler: Path, token: str) -> Flask:
    """The application of a handler image. A process has one handler for its life; ours may have had other tests'."""
    with _LOADING:
        forget_handlers()
        return create_app({"GNOMON_HANDLER_FOLDER": str(handler), "GNOMON_BATCH_TOKEN": token, "GNOMON_CORES": "1"})


class Served:
    """An application at an address of its own, on threads of this process. `address` is its URL."""

    def __init__(self, host: str, port: int, app: Application) -> None:
        # When the last request came. Not a field that `bounded` sets: server and application would hold each other, and only the
        # garbage collector could free them.
        requested_s = [-math.inf]
        in_flight: list[None] = []

        def bounded(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
            requested_s[:] = [time.monotonic()]
            in_flight.append(None)
            try:
                # gunicorn ends a body where its length says; this server would wait for more.
                length = int(environ.get("CONTENT_LENGTH") or 0)
                environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
                return ClosingIterator(app(environ, start), in_flight.pop)
            except BaseException:
                in_flight.pop()
                raise

        self._requested_s, self._in_flight = requested_s, in_flight
        self._server = make_server(host, port, bounded, threaded=True, request_handler=Quiet)
        self.address = f"http://{host}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop once no request has come for a while, as gunicorn's worker of an image does, and answer what is in flight."""
        ends_s = time.monotonic() + DRAIN_S
        # On a busy machine a request may take longer than the pause: a pod that is gone before its answer has lost it.
        while (now_s := time.monotonic()) < ends_s and (self._in_flight or now_s < self._requested_s[0] + QUIET_S):
            time.sleep(0.02)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class InstanceServer(Served):
    """An instance of a handler's folder."""

    def __init__(self, host: str, port: int, handler: Path, token: str) -> None:
        super().__init__(host, port, application_of(handler, token))
