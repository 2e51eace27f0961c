"""A small real HTTP server that keeps every request and answers what a test told it to, and `gnomon` run as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

STACK = """
version: 1.0
provider: {name: openfaas, gateway: %s}
functions:
  one: {image: ada/one, fprocess: cat}
  two: {image: ada/two, fprocess: cat, namespace: staging}
"""


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Recorder:
    url: str
    requests: list[Seen] = field(default_factory=list)
    answers: dict[tuple[str, str], list[tuple[int, bytes, dict[str, str]]]] = field(default_factory=dict)

    def answer(self, method: str, path: str, status: int = 200, document: Any = b"", **headers: str) -> None:
        """Answers of a path without its query, in the order they are given; the last one stays."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.answers.setdefault((method, path), []).append((status, body, headers))

    def take(self, method: str, path: str) -> tuple[int, bytes, dict[str, str]]:
        waiting = self.answers.get((method, path), [(200, b"", {})])
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    def calls(self) -> list[str]:
        return [f"{seen.method} {seen.path}" for seen in self.requests]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            recorded.requests.append(Seen(self.command, self.path, dict(self.headers), body))
            status, answer, headers = recorded.take(self.command, self.path.partition("?")[0])
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = handle_any  # noqa: N815 - the server's names

        def log_message(self, *_: Any) -> None:
            """Nothing on the test's standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    recorded = Recorder(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield recorded
    server.shutdown()
    thread.join()
    server.server_close()


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a user who has no logins, and no gateway but the one that a test names."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENFAAS_") and name != "CI"}
    return {**kept, "HOME": str(tmp_path / "home")}


@pytest.fixture
def gnomon(tmp_path: Path, environment: dict[str, str]) -> Run:
    """`gnomon` in an empty folder; standard input is empty unless it is given."""

    def run(*args: str, stdin: str = "", cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from gnomon_cli.main import main; main()", *args]
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            cwd=cwd or tmp_path,
            env=environment | variables,
        )

    return run
