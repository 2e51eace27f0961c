"""An API server that answers by a script: what a real one does only on a bad day.

Each request takes the next step that its script has for lists, for watches or for writes, and the last step stays. A watch's
step is a list of what it sends, one after the other; it is held open at the end unless it says `CLOSE`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

from gnomon_platforms.kubernetes.client import Api
from gnomon_platforms.kubernetes.connections import through

CLOSE = b""
"""In a watch's step: end the answer here, as a server does whose time for the watch is over."""


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    document: Mapping[str, Any] | bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any


def pod(name: str, version: str, *, uid: str | None = None, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "fn", "uid": uid or f"uid-{name}", "resourceVersion": version, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def listed(version: str, *pods: Mapping[str, Any], following: str = "") -> Answer:
    metadata = {"resourceVersion": version} | ({"continue": following} if following else {})
    return Answer({"kind": "PodList", "metadata": metadata, "items": list(pods)})


def refusal(status: int, reason: str, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer({"kind": "Status", "code": status, "reason": reason, "message": f"{reason}!"}, status, headers or {})


def event(kind: str, document: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": document}).encode() + b"\n"


def bookmark(version: str) -> bytes:
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": version}})


class Script:
    """The scripted answers, and the requests that were received."""

    def __init__(
        self, lists: list[Answer], watches: list[Answer | list[bytes]] | None = None, writes: list[Answer] | None = None
    ) -> None:
        self.steps: dict[str, list[Any]] = {"list": lists, "watch": watches or [[]], "write": writes or []}
        self.asked: list[Asked] = []
        self.over = threading.Event()
        self._changed = threading.Condition()

    def next(self, request: Asked) -> Any:
        kind = "write" if request.method != "GET" else "watch" if "watch" in request.query else "list"
        with self._changed:
            self.asked.append(request)
            self._changed.notify_all()
            steps = self.steps[kind]
            return steps.pop(0) if len(steps) > 1 else steps[0]

    def watches(self) -> list[Asked]:
        return [request for request in self.asked if "watch" in request.query]

    def lists(self) -> list[Asked]:
        return [request for request in self.asked if request.method == "GET" and "watch" not in request.query]

    def writes(self) -> list[Asked]:
        return [request for request in self.asked if request.method != "GET"]


class Handler(BaseHTTPRequestHandler):
    """A connection."""

    script: Script
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        step = self.script.next(Asked(self.command, path, {name: values[0] for name, values in query.items()}, body))
        if isinstance(step, Answer):
            self._whole(step)
        else:
            self._parts(step)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the server's names

    def _whole(self, step: Answer) -> None:
        data = step.document if isinstance(step.document, bytes) else json.dumps(step.document).encode()
        self.send_response(step.status)
        for name, value in {"Content-Length": str(len(data)), **step.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _parts(self, parts: list[bytes]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in parts:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            if part == CLOSE:
                return
        self.close_connection = True
        self.script.over.wait(60.0)

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            self.close_connection = True


@contextmanager
def serving(script: Script) -> Iterator[Api]:
    """The server, and a client of it."""

    handler = type("Scripted", (Handler,), {"script": script})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    settings = client.Configuration()
    settings.host, settings.retries = f"http://127.0.0.1:{server.server_port}", False
    api = Api(through(client.ApiClient(settings)))
    try:
        yield api
    finally:
        script.over.set()
        server.shutdown()
        server.server_close()
        api.close()
        thread.join()
