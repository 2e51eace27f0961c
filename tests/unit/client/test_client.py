"""The client: connections after an interrupted request or a fork of the process, and tensors that numpy has no type for."""

from __future__ import annotations

import http.server
import json
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gnomon


class Gateway(http.server.ThreadingHTTPServer):
    """A server that describes each application, with the client's port as its endpoint; `interrupted` first raises a signal."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Description)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.main = threading.get_ident()
        self.release = threading.Event()


class Description(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if name == "interrupted":
            signal.pthread_kill(self.server.main, signal.SIGUSR1)
            self.server.release.wait(60)
        body = json.dumps({"name": name, "endpoint": str(self.client_address[1]), "models": [], "variants": []}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Interruption(BaseException):
    """An interruption as of the keyboard."""


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    def interrupt(*_: object) -> None:
        raise Interruption

    before = signal.signal(signal.SIGUSR1, interrupt)
    with Gateway() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.release.set()
        made.shutdown()
        thread.join()
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("connected", [False, True])
def test_request_after_an_interrupted_one_gets_its_own_answer(gateway: Gateway, *, connected: bool) -> None:
    client = gnomon.Client(gateway.url)
    if connected:
        assert client.model_info("first").name == "first"
    with pytest.raises(Interruption):
        client.model_info("interrupted")
    gateway.release.set()
    assert client.model_info("next").name == "next"


FORKS = """
import os, sys
import gnomon

client = gnomon.Client(sys.argv[1])
ports = [client.model_info("a").endpoint]
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, client.model_info("b").endpoint.encode())
    os._exit(0)
os.wait()
ports.append(client.model_info("a").endpoint)
print(*ports, os.read(read, 10).decode())
"""


def test_fork_of_the_process_does_not_read_the_answers_of_its_parent(gateway: Gateway) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS, gateway.url], capture_output=True, text=True, timeout=60, check=True)
    first, second, forked = done.stdout.split()
    assert first == second, "the connection is kept"
    assert forked != first


ASKED: list[Any] = []


class Half(http.server.BaseHTTPRequestHandler):
    """A model whose input and output are BF16."""

    def do_GET(self) -> None:
        self._answer(json.dumps({"inputs": [{"name": "x", "datatype": "BF16", "shape": [-1, 2]}]}).encode())

    def do_POST(self) -> None:
        ASKED.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["inputs"])
        output = {"name": "y", "datatype": "BF16", "shape": [1, 2], "parameters": {"binary_data_size": 4}}
        head = json.dumps({"outputs": [output]}).encode()
        self._answer(head + struct.pack("<2H", 0x3F80, 0x4049), {"Inference-Header-Content-Length": str(len(head))})

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(200)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def test_arrays_are_sent_to_a_model_of_bfloats_and_its_answers_are_read() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Half) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            client = gnomon.Client(f"http://127.0.0.1:{server.server_port}")
            output = client.inference_query(np.array([[1.0, 2.0]], np.float32), app="half").output
        finally:
            server.shutdown()
            thread.join()
    assert output.tolist() == [[1.0, 3.140625]]
    assert ASKED == [[{"name": "x", "datatype": "BF16", "shape": [1, 2], "data": [[1.0, 2.0]]}]]
