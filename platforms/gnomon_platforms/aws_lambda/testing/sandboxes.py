r"""A sandbox: a process that runs `python -m awslambdaric HANDLER`, and the Runtime API that it asks for work.

    GET  /2018-06-01/runtime/invocation/next            waits for an Invoke
    POST /2018-06-01/runtime/invocation/ID/response     its answer
    POST /2018-06-01/runtime/invocation/ID/error        what the handler raised
    POST /2018-06-01/runtime/init/error                 what importing it raised

What the process writes becomes the log's tail, with the lines that Lambda itself writes around it.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gnomon_core.process_memory import peak_bytes

MAX_RESPONSE_BYTES = 6_291_556
"""Lambda's limit of a response, as its refusal of a larger one states it: 6 MB and 100 bytes."""
TAIL_BYTES = 4096
_NEXT = "/2018-06-01/runtime/invocation/next"
_LONGEST_S = 900


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of an Invoke: a payload, the kind of its failure, and the log's tail."""

    payload: bytes
    error: str | None
    log: str


@dataclass(slots=True)
class _Work:
    id: str
    payload: bytes
    deadline_ms: int


class Sandbox:
    """A process and its Runtime API. Executes one Invoke at a time."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], memory_mb: int, arn: str) -> None:
        self._memory_mb = memory_mb
        self._arn = arn
        self._begun_s: float | None = time.monotonic()
        self._init_ms = 0.0
        self._work: queue.Queue[_Work] = queue.Queue()
        self._answers: queue.Queue[tuple[str | None, bytes]] = queue.Queue()
        self._output: list[bytes] = []
        self._api = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._api.daemon_threads = True
        threading.Thread(target=self._api.serve_forever, args=(0.05,), daemon=True).start()
        address = f"127.0.0.1:{self._api.server_address[1]}"
        self.process = subprocess.Popen(
            list(command),
            cwd=folder,
            env={**environment, "AWS_LAMBDA_RUNTIME_API": address},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def invoke(self, payload: bytes, timeout_s: int, version: str) -> Answer:
        """Run the handler once."""
        work = _Work(str(uuid.uuid4()), payload, int(1000 * (time.time() + timeout_s)))  # noqa: TID251 - the Runtime API states deadlines by the calendar
        self._output = []
        began_s = time.monotonic()
        self._work.put(work)
        try:
            error, body = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self.process.kill()
            text = f"Task timed out after {timeout_s:.2f} seconds"
            error, body = (
                "Unhandled",
                json.dumps({"errorType": "Sandbox.Timedout", "errorMessage": f"RequestId: {work.id} Error: {text}"}).encode(),
            )
            self._output.append(f"{work.id} {text}\n\n".encode())
        if len(body) > MAX_RESPONSE_BYTES:
            text = f"Response payload size exceeded maximum allowed payload size ({MAX_RESPONSE_BYTES} bytes)."
            error, body = "Unhandled", json.dumps({"errorType": "Function.ResponseSizeTooLarge", "errorMessage": text}).encode()
        if error == "Exited":
            self._reader.join(5)
            error, text = "Unhandled", f"RequestId: {work.id} Error: Runtime exited with error: exit status {self.process.wait()}"
            body = json.dumps({"errorType": "Runtime.ExitError", "errorMessage": text}).encode()
        duration_ms = 1000 * (time.monotonic() - began_s)
        return Answer(body, error, self._log(work.id, version, duration_ms))

    def close(self) -> None:
        """End the sandbox's process and its Runtime API."""
        self.process.kill()
        self.process.wait()
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._api.shutdown()
        self._api.server_close()

    def next(self) -> _Work | None:
        """The next invocation for the process; None after a long time without any."""
        if self._begun_s is not None:
            self._init_ms, self._begun_s = 1000 * (time.monotonic() - self._begun_s), None
        try:
            return self._work.get(timeout=_LONGEST_S)
        except queue.Empty:
            return None

    def answered(self, error: str | None, body: bytes) -> None:
        """Record the process's response to the invocation."""
        self._answers.put((error, body))

    @property
    def arn(self) -> str:
        return self._arn

    def _watch(self) -> None:
        self.process.wait()
        self._answers.put(("Exited", b""))

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in iter(self.process.stdout.readline, b""):
            self._output.append(line)

    def _log(self, request_id: str, version: str, duration_ms: float) -> str:
        time.sleep(0.01)  # the last lines are on their way through the pipe
        own = b"".join(self._output).decode(errors="replace")
        init_ms, self._init_ms = self._init_ms, 0.0
        duration_ms = max(0.01, duration_ms - init_ms)
        numbers = [
            f"REPORT RequestId: {request_id}",
            f"Duration: {duration_ms:.2f} ms",
            f"Billed Duration: {-int(-(duration_ms + init_ms) // 1)} ms",
            f"Memory Size: {self._memory_mb} MB",
            f"Max Memory Used: {self._used_mb()} MB",
            *([f"Init Duration: {init_ms:.2f} ms"] if init_ms else []),
        ]
        start, end = f"START RequestId: {request_id} Version: {version}\n", f"END RequestId: {request_id}\n"
        return (start + own + end + "\t".join(numbers) + "\t\n")[-TAIL_BYTES:]

    def _used_mb(self) -> int:
        try:
            return peak_bytes(self.process.pid) >> 20
        except OSError:
            return 1  # the process has ended: Lambda reports a used memory all the same


def _handler_of(sandbox: Sandbox) -> type[BaseHTTPRequestHandler]:
    class RuntimeApi(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: two wait for each other's acknowledgement, 40 ms

        def do_GET(self) -> None:
            work = sandbox.next() if self.path == _NEXT else None
            if work is None:
                self._say(404, b"")
                return
            headers = {
                "Lambda-Runtime-Aws-Request-Id": work.id,
                "Lambda-Runtime-Deadline-Ms": str(work.deadline_ms),
                "Lambda-Runtime-Invoked-Function-Arn": sandbox.arn,
                "Content-Type": "application/json",
            }
            self._say(200, work.payload, headers)

        def do_POST(self) -> None:
            body = _body(self)
            self._say(202, b'{"status":"OK"}\n')
            sandbox.answered(None if self.path.endswith("/response") else "Unhandled", body)

        def _say(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Do nothing: requests are not logged."""

    return RuntimeApi


def _body(request: BaseHTTPRequestHandler) -> bytes:
    """The body, chunked or not."""
    if request.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    parts: list[bytes] = []
    while size := int(request.rfile.readline().split(b";")[0], 16):
        parts.append(request.rfile.read(size))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(parts)
