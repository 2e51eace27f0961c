"""Tensors that the client sends and reads, of a datatype that numpy does not have."""

from __future__ import annotations

import http.server
import json
import struct
import threading
from typing import Any

import numpy as np

import gnomon

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
