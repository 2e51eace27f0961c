"""`gnomon serve` with models in a bucket whose server accepts connections and never answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.serve.conftest import Serving, started
from tests.waiting import eventually

pytest.importorskip("boto3", reason="the extra lambda is not installed")


class SilentServer:
    """Accepts connections, reads what comes and answers nothing."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for one in (self._listener, *self.connections):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentServer]:
    server = SilentServer()
    variables = {"ENDPOINT_URL": server.url, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "s", "DEFAULT_REGION": "eu-west-1"}
    # Whoever waited for the last attempt would wait for half an hour.
    for name, value in (variables | {"MAX_ATTEMPTS": "100"}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    yield server
    server.close()


@pytest.fixture
def gateway(bucket: SilentServer, tmp_path: Path) -> Iterator[Serving]:
    del bucket  # before the gateway, which gets its address from the environment
    with started(tmp_path / "state", "--models", "s3://bucket/models", "--pool", "0") as serving:
        yield serving


def test_sigterm_ends_a_gateway_whose_model_store_hangs(gateway: Serving, bucket: SilentServer) -> None:
    gateway.deploy("echo")
    with ThreadPoolExecutor(1) as clients:
        deploying = clients.submit(gateway.deploy, "fn", "", image="gnomon/body", annotations={"gnomon/model": "m@1"})
        eventually(lambda: bucket.connections, "nothing was read from the bucket")
        assert gateway.call("POST", "/function/echo", b"meanwhile").data == b"meanwhile"
        assert gateway.stop() == 0
        answer = deploying.result()
    assert (answer.status, answer.json()["error"]["code"]) == (503, "stopping")
