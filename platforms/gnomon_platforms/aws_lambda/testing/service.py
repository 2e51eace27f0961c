"""Lambda's API on this machine: Invoke is answered by sandboxes, everything else by moto's server.

A zip runs under a Python that sees the zip, AWS's runtime client and boto3, as on Lambda's own Python, and nothing that is
installed here besides; an image under this very Python, which stands for one that has Gnomon and torch installed.

`throttle`, `fail` and `delay_s` make trouble; `calls` says what was asked, `sandboxes` which processes there are.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import os
import re
import sys
import threading
import time
import uuid
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import urllib3

from gnomon_platforms.aws_lambda.testing.sandboxes import Sandbox

MAX_REQUEST_BYTES = 6_291_456
IN_THE_RUNTIME = (
    "awslambdaric", "simplejson", "snapshot_restore_py", "runtime_client",
    "boto3", "botocore", "s3transfer", "jmespath", "urllib3", "dateutil", "six",
)  # fmt: skip
"""Packages that Lambda's own Python has installed."""
_INVOKE = re.compile(r"/2015-03-31/functions/([^/?]+)/invocations")
_PASSED_ON = frozenset(
    {"authorization", "content-type", "host", "x-amz-date", "x-amz-target", "x-amz-content-sha256", "x-amz-security-token"}
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error response of Lambda: the Invoke was not begun, or may have been."""

    status: int
    code: str


@dataclass(slots=True)
class _Deployed:
    """A version with its idle sandboxes."""

    configuration: dict[str, Any]
    folder: Path
    idle: list[Sandbox] = field(default_factory=list)


class LambdaService:
    """The server; a context manager. `folder` takes what is unpacked, `backend` is moto's address."""

    def __init__(self, folder: Path, backend: str) -> None:
        self._folder = folder
        self._backend = backend
        self._pool = urllib3.PoolManager(maxsize=32, retries=False)
        self._zips: dict[str, bytes] = {}
        self._versions: dict[tuple[str, str], _Deployed] = {}
        self._lock = threading.Lock()
        self._begun = threading.Condition(self._lock)
        self._finding = threading.Lock()
        self._refusals: list[Refusal] = []
        self.sandboxes: list[Sandbox] = []
        self.calls: list[tuple[str, str]] = []
        """Invokes so far, as (function, invocation type)."""
        self.running = 0
        self.most_running = 0
        self.delay_s = 0.0
        self.environment: dict[str, str] = {}
        """Variables that every sandbox gets, as Lambda gives them the role's credentials."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        for sandbox in self.sandboxes:
            sandbox.close()
        self._pool.clear()

    def throttle(self, count: int) -> None:
        """Refuse the next Invokes as too many."""
        self.fail(count, Refusal(429, "TooManyRequestsException"))

    def fail(self, count: int, refusal: Refusal) -> None:
        """Answer the next Invokes so, without running them."""
        self._refusals += [refusal] * count

    def wait_for_running(self, timeout_s: float = 10.0) -> None:
        """Return when an Invoke is under way."""
        with self._begun:
            assert self._begun.wait_for(lambda: self.running > 0, timeout_s), "nothing was invoked"

    # What the server's threads do

    def invoke(self, name: str, version: str, kind: str, payload: bytes) -> tuple[int, dict[str, str], bytes]:
        """Answer an Invoke: status, headers, body."""
        self.calls.append((name, kind))
        deployed = self._find(name, version)
        if deployed is None:
            return _error(404, "ResourceNotFoundException", f"Function not found: {name}:{version}")
        if kind == "DryRun":
            return 204, {}, b""
        time.sleep(self.delay_s)
        with self._lock:
            refusal = self._refusals.pop(0) if self._refusals else None
        if refusal is not None:
            return _error(refusal.status, refusal.code, "Rate Exceeded.")
        if len(payload) > MAX_REQUEST_BYTES:
            text = f"{len(payload)} byte payload is too large for the RequestResponse invocation type"
            return _error(413, "RequestTooLargeException", text)
        try:
            json.loads(payload)
        except ValueError:
            return _error(400, "InvalidRequestContentException", "Could not parse request body into json")
        return self._run(deployed, version, payload)

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Let moto answer, and keep the zips that it is given."""
        if method in ("POST", "PUT") and "/functions" in path and body.startswith(b"{"):
            document = json.loads(body)
            zipped = document.get("ZipFile") or (document.get("Code") or {}).get("ZipFile")
            if zipped:
                data = base64.b64decode(zipped)
                self._zips[base64.b64encode(hashlib.sha256(data).digest()).decode()] = data
        if method == "DELETE" and "/functions/" in path:
            self.forget(path.rpartition("/functions/")[2].partition("?")[0])
        passed = {name: value for name, value in headers.items() if name.lower() in _PASSED_ON}
        answer = self._pool.request(method, self._backend + path, headers=passed, body=body)
        kept = {name: value for name, value in answer.headers.items() if name.lower().startswith(("x-amz", "content-type"))}
        return answer.status, kept, answer.data

    def _run(self, deployed: _Deployed, version: str, payload: bytes) -> tuple[int, dict[str, str], bytes]:
        with self._lock:
            sandbox = deployed.idle.pop() if deployed.idle else None
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self._begun.notify_all()
        try:
            if sandbox is None or not sandbox.alive:
                sandbox = self._begin(deployed)
            answer = sandbox.invoke(payload, int(deployed.configuration["Timeout"]), version)
        finally:
            with self._lock:
                self.running -= 1
                if sandbox is not None and sandbox.alive:
                    deployed.idle.append(sandbox)
        headers = {"X-Amz-Log-Result": base64.b64encode(answer.log.encode()).decode(), "X-Amz-Executed-Version": version}
        if answer.error is not None:
            headers["X-Amz-Function-Error"] = answer.error
        return 200, headers, answer.payload

    def _find(self, name: str, version: str) -> _Deployed | None:
        with self._finding:
            if (name, version) not in self._versions:
                made = self._unpack(name, version)
                if made is None:
                    return None
                self._versions[name, version] = made
            return self._versions[name, version]

    def _unpack(self, name: str, version: str) -> _Deployed | None:
        answer = self._pool.request("GET", f"{self._backend}/2015-03-31/functions/{name}?Qualifier={version}", headers=_SIGNED)
        if answer.status != 200:  # noqa: PLR2004 - OK
            return None
        configuration = json.loads(answer.data)["Configuration"]
        folder = self._folder / f"{name}-{version}-{len(self.calls)}"
        folder.mkdir(parents=True)
        if configuration["PackageType"] == "Zip":
            with zipfile.ZipFile(io.BytesIO(self._zips[configuration["CodeSha256"]])) as archive:
                archive.extractall(folder)
        return _Deployed(configuration, folder)

    def _begin(self, deployed: _Deployed) -> Sandbox:
        configuration = deployed.configuration
        zipped = configuration["PackageType"] == "Zip"
        handler = configuration["Handler"] if zipped else configuration["ImageConfigResponse"]["ImageConfig"]["Command"][0]
        environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "TZ": ":UTC",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "role",
            "AWS_SECRET_ACCESS_KEY": "role",
            "AWS_LAMBDA_FUNCTION_NAME": configuration["FunctionName"],
            "AWS_LAMBDA_FUNCTION_VERSION": configuration["Version"],
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(configuration["MemorySize"]),
            "AWS_LAMBDA_LOG_STREAM_NAME": f"2026/01/01/[{configuration['Version']}]{len(self.sandboxes)}",
            "LAMBDA_TASK_ROOT": str(deployed.folder),
            **self.environment,
            **configuration.get("Environment", {}).get("Variables", {}),
        }
        own = self._folder / f"tmp-{uuid.uuid4().hex}"
        own.mkdir(parents=True)
        environment["TMPDIR"] = str(own)
        if zipped:
            environment["PYTHONPATH"] = str(self._runtime())
        python = getattr(sys, "_base_executable", sys.executable) if zipped else sys.executable
        command = [python, "-u", "-W", "ignore", "-m", "awslambdaric", handler]
        sandbox = Sandbox(command, deployed.folder, environment, configuration["MemorySize"], configuration["FunctionArn"])
        with self._lock:
            self.sandboxes.append(sandbox)
        return sandbox

    def _runtime(self) -> Path:
        """A folder with the packages of Lambda's Python runtime, as links to those installed here."""
        folder = self._folder / "runtime"
        with self._lock:
            if not folder.exists():
                folder.mkdir(parents=True)
                for name in IN_THE_RUNTIME:
                    spec = importlib.util.find_spec(name)
                    if spec is not None and spec.origin is not None:
                        origin = Path(spec.origin)
                        source = origin.parent if origin.name == "__init__.py" else origin
                        (folder / source.name).symlink_to(source)
        return folder

    def forget(self, name: str) -> None:
        """Forget all versions of a removed function."""
        with self._finding:
            for key in [key for key in self._versions if key[0] == name]:
                del self._versions[key]


_SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/lambda/aws4_request, SignedHeaders=host, Signature=0"
}


def _error(status: int, code: str, text: str) -> tuple[int, dict[str, str], bytes]:
    body = json.dumps({"Type": "User", "Message": text, "message": text}).encode()
    return status, {"x-amzn-ErrorType": code, "Content-Type": "application/json"}, body


def _handler_of(service: LambdaService) -> type[BaseHTTPRequestHandler]:
    class Api(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: two wait for each other's acknowledgement, 40 ms

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            invoked = _INVOKE.fullmatch(parts.path)
            if invoked is not None:
                version = parse_qs(parts.query).get("Qualifier", ["$LATEST"])[0]
                kind = self.headers.get("X-Amz-Invocation-Type") or "RequestResponse"
                status, headers, data = service.invoke(invoked.group(1), version, kind, body)
            else:
                status, headers, data = service.forward(self.command, self.path, dict(self.headers.items()), body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - the names are http.server's

        def log_message(self, *_: Any) -> None:
            """Do nothing: requests are not logged."""

    return Api
