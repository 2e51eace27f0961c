"""Where instances tell what they begin to execute: a line a batch over a connection, which they wait to see noted."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from typing import Any

from tests.integration.faults.history import Execution, History

HANDLER = """
import json
import os
import socket
import time

time.sleep(float(os.environ.get("START_S", "0")))
if os.environ.get("BROKEN"):
    raise RuntimeError("this version never starts")

VERSION = os.environ.get("VERSION", "1")
ledger = socket.create_connection(("127.0.0.1", int(os.environ["LEDGER"])))
batches = 0


def begin(events, context):
    global batches
    batches += 1
    known = {"instance": context.instance_id, "pid": os.getpid(), "batch": batches, "at_s": time.monotonic()}
    lines = [{"token": token_of(event), **known} for event in events]
    ledger.sendall(json.dumps(lines).encode() + b"\\n")
    ledger.recv(1)


def token_of(event):
    return event.body[:64].split(b";")[0].decode()


def answer(event, context):
    return {"body": token_of(event), "headers": {"X-Instance": context.instance_id, "X-Version": VERSION}}


def handle(event, context):
    begin([event], context)
    time.sleep(float(event.query.get("sleep", "0")))
    return answer(event, context)


def handle_batch(events, context):
    begin(events, context)
    time.sleep(max(float(event.query.get("sleep", "0")) for event in events))
    return [answer(event, context) for event in events]
"""
"""Echoes the token at the head of the body. `?sleep=` is how long it works; LEDGER is the ledger's port."""


class Ledger:
    """Listens on `port` and writes what it hears to `history`, which a test may replace by a new one."""

    def __init__(self) -> None:
        self.history = History()
        ledger = self

        class Listener(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                # An instance that is killed with our answer unread resets the connection.
                with contextlib.suppress(ConnectionError):
                    while (line := self.rfile.readline()).endswith(b"\n"):
                        documents: list[dict[str, Any]] = json.loads(line)
                        ledger.history.executed(*(Execution(**document) for document in documents))
                        self.wfile.write(b"k")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Listener)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
