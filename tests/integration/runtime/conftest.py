"""The application of an image under real gunicorn, with a handler that can be held: a test's own, or one for a whole module."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gnomon_runtime.serve import APPLICATION, SETTINGS
from tests.waiting import eventually

GUNICORN = [sys.executable, "-m", "gunicorn", "--config", SETTINGS, APPLICATION, "--bind"]
"""The command; the address follows."""
TOKEN = "of-the-gateway"
HANDLER = """
import pathlib
import time

def handle(event, context):
    if event.path == "/held":
        folder = pathlib.Path(event.body.decode())
        (folder / "begun").touch()
        while not (folder / "released").exists():
            time.sleep(0.001)
    if event.path == "/endless":
        return endless(pathlib.Path(event.body.decode()))
    if event.path == "/stream":
        return pieces(event.body)
    if event.path == "/fail":
        raise RuntimeError("a secret detail")
    return {"statusCode": 200, "body": {"method": event.method, "path": event.path, "q": event.query.get("q"),
            "x": event.headers.get("X-Test"), "body": event.body.decode()}, "headers": {"X-Answer": "1"}}

def handle_batch(events, context):
    time.sleep(0.01)
    return [event.body * 2 for event in events]

def pieces(body):
    yield "data: 1\\n\\n"
    if body == b"break":
        raise RuntimeError("half way")
    yield "data: 2\\n\\n"

def endless(folder):
    try:
        while True:
            yield "data: more\\n\\n"
    finally:
        (folder / "closed").touch()
"""


class Served:
    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    def request(self, method: str, path: str, body: bytes | Iterator[bytes] = b"", **headers: str) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def batch(self, data: bytes, token: str | None = TOKEN) -> tuple[int, bytes]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.request("POST", "/gnomon/batch", data, **headers)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class Held:
    """A request that is being handled until it is released."""

    def __init__(self, served: Served, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(1)
        self._answer = self._pool.submit(served.request, "POST", "/held", str(folder).encode())
        eventually((folder / "begun").exists)

    def release(self) -> int:
        """Let it end, and return its status."""
        (self._folder / "released").touch()
        with self._pool:
            return self._answer.result()[0]


def free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def starting(folder: Path) -> Iterator[Callable[..., Served]]:
    """Starts servers of the handler, which are there when it returns and gone when the block ends."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**variables: str) -> Served:
        (folder / "function").mkdir(exist_ok=True)
        (folder / "function" / "handler.py").write_text(HANDLER)
        port, log = free_port(), folder / "log"
        environment = {"PATH": os.environ["PATH"], "GNOMON_PORT": str(port), "GNOMON_BATCH_TOKEN": TOKEN, **variables}
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*GUNICORN, f"127.0.0.1:{port}"], cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT
            )
        started.append(process)
        served = Served(process, port, log)
        for _ in range(1200):
            try:
                if served.request("GET", "/_/ready")[0] == 200:
                    return served
            except OSError:
                assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        raise AssertionError(log.read_text())

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(10)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    with starting(tmp_path) as start:
        yield start


@pytest.fixture
def alone(serve: Callable[..., Served]) -> Served:
    """A server of the test's own, for tests that end it or leave it as others would not find it."""
    return serve()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with starting(tmp_path_factory.mktemp("served")) as start:
        yield start()
