"""The application that images run, behind a small HTTP server of this process."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from flask import Flask
from werkzeug.serving import WSGIRequestHandler, make_server

from gnomon_runtime.http_app import create_app
from tests.unit.runtime.conftest import forget_handlers

Application: TypeAlias = Callable[[dict[str, Any], Any], Iterable[bytes]]
_LOADING = threading.Lock()
"""Nodes that are played load handlers in threads of their own, and each forgets what was loaded before."""


class Quiet(WSGIRequestHandler):
    """A connection whose requests nobody reads about."""

    def log_request(self, *_: object) -> None:
        pass


def application_of(handler: Path, token: str) -> Flask:
    """What an image of a handler's folder runs. A process has one handler for its life; ours may have had other tests'."""
    with _LOADING:
        forget_handlers()
        return create_app({"GNOMON_HANDLER_FOLDER": str(handler), "GNOMON_BATCH_TOKEN": token, "GNOMON_CORES": "1"})


class Served:
    """An application at an address of its own, on threads of this process. `address` is its URL."""

    def __init__(self, host: str, port: int, app: Application) -> None:
        def bounded(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
            # gunicorn ends a body where its length says; this server would wait for more.
            length = int(environ.get("CONTENT_LENGTH") or 0)
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
            return app(environ, start)

        self._server = make_server(host, port, bounded, threaded=True, request_handler=Quiet)
        self.address = f"http://{host}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Answer what is in flight, and stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class InstanceServer(Served):
    """An instance of a handler's folder."""

    def __init__(self, host: str, port: int, handler: Path, token: str) -> None:
        super().__init__(host, port, application_of(handler, token))
