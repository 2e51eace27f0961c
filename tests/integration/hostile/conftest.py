"""A `gnomon serve` for every attack, functions that misbehave, and requests as bytes on a socket."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import json
import os
import re
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
import urllib3

from tests.integration.serve.conftest import GNOMON, START_LIMIT_S, Serving
from tests.waiting import TIMEOUT_S, eventually

IMAGE = "hostile/villain:1"
DEADLINE_S, HASTE_S = 2.0, 0.5
ANNOTATIONS = {"gnomon/deadline-ms": "2000", "gnomon/autoscaler": "fixed"}
_numbers = itertools.count(1)


@dataclass
class Function:
    gateway: Attacked
    name: str

    def call(self, deed: str, argument: object = "", body: bytes = b"x", **headers: str) -> urllib3.BaseHTTPResponse:
        return self.gateway.call("POST", f"/function/{self.name}/{quote(deed)}/{argument}", body, **headers)

    def shell(self, script: str) -> str:
        answer = self.call("shell", body=script.encode())
        assert answer.status == 200, answer.data
        return answer.data.decode(errors="replace")

    def python(self, code: str) -> dict[str, Any]:
        answer = self.call("python", body=code.encode())
        assert answer.status == 200, answer.data
        found: dict[str, Any] = answer.json()
        return found

    def works(self) -> bool:
        return self.call("echo", body=b"well").data == b"well"


@contextmanager
def deployed(gateway: Attacked, image: str, deadline_s: float = DEADLINE_S) -> Iterator[Function]:
    """A function of the villain's image, for as long as it is needed."""
    name = f"villain-{next(_numbers)}"
    annotations = ANNOTATIONS | {"gnomon/deadline-ms": str(round(deadline_s * 1e3))}
    gateway.deploy(name, image=image, annotations=annotations, limits={"memory": "192Mi"})
    function = Function(gateway, name)
    eventually(function.works, "the villain never began")
    yield function
    gateway.call("DELETE", "/system/functions", {"functionName": name})


INTERNAL = "X-OpenFaaS-Internal"
MODEL = "efficientnet-lite0"
LISTENS = "0A"
CAPTURE_LIMIT_S = 300.0
MARKER = "a-value-of-the-gateway-alone"


class Answer(NamedTuple):
    """An HTTP answer as it came over a socket."""

    status: int
    headers: dict[str, str]
    body: bytes


class Attacked(Serving):
    """The gateway under attack. Its log is a file beside the state folder. `wrapped` is the command that `serve` is one of."""

    wrapped: Sequence[str] = GNOMON

    @property
    def log(self) -> str:
        return self._log_file.read_text()

    @property
    def _log_file(self) -> Path:
        return self.state.with_suffix(".log")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, *options: str) -> None:
        command = [*self.wrapped, "serve", "--port", "0", "--state", str(self.state), "--cores", "64", *options]
        with self._log_file.open("w") as log:
            environment = {**os.environ, "SOMETHING_PRIVATE": MARKER}
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.state.parent, env=environment
            )
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_LIMIT_S)
        found = re.search(r"http://[0-9a-f.:\[\]]*\d", self.process.stdout.readline()) if readable else None
        assert found, self.log
        self.url = found[0]

    def build(self, archive: bytes) -> None:
        """Build a handler as faas-cli does."""
        secret = (self.state / "payload-secret").read_bytes()
        signature = "sha256=" + hmac.new(secret, archive, hashlib.sha256).hexdigest()
        answer = self.call("POST", "/build", archive, X_Build_Signature=signature, Accept="application/x-ndjson")
        last = json.loads(answer.data.splitlines()[-1])
        assert last["status"] == "success", last

    def metric(self, name: str, function: str) -> float:
        """A number that it shows of a function."""
        begin = f'{name}{{function_name="{function}.openfaas-fn"}}'
        lines = self.call("GET", "/metrics").data.decode().splitlines()
        return float(next(line for line in lines if line.startswith(begin)).split()[-1])

    def connections(self) -> int:
        """How many clients' sockets the gateway process holds. The kernel's table gives no inode to those it has closed."""
        port = f":{int(self.url.rpartition(':')[2]):04X}"
        lines = [line.split() for line in Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]]
        return sum(line[1].endswith(port) and line[3] != LISTENS and line[9] != "0" for line in lines)

    def resident_bytes(self) -> int:
        """The memory that the gateway process holds."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * 4096

    def connect(self, timeout_s: float = 10.0) -> socket.socket:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)

    def exchange(self, data: bytes) -> list[Answer]:
        """Send these bytes and read answers until the gateway closes the connection."""
        with self.connect() as connection:
            connection.sendall(data)
            return read_answers(connection)


def read_answers(connection: socket.socket) -> list[Answer]:
    """Every answer up to the end of the stream, and nothing else must be on it."""
    stream = connection.makefile("rb")
    answers: list[Answer] = []
    while line := stream.readline():
        assert line.startswith(b"HTTP/1.1 "), f"not an answer: {line[:100]!r}"
        headers: dict[str, str] = {}
        status = int(line.split()[1])
        while (header := stream.readline().strip()) != b"":
            name, _, value = header.decode("latin-1").partition(": ")
            headers[name.lower()] = value
        if "chunked" in headers.get("transfer-encoding", ""):
            body = b""
            while size := int(stream.readline(), 16):
                body += stream.read(size)
                stream.readline()
            stream.readline()
        else:
            body = stream.read(int(headers.get("content-length", "0")))
        if status != 100:
            answers.append(Answer(status, headers, body))
    return answers


def check_error(answer: Answer | urllib3.BaseHTTPResponse) -> dict[str, str]:
    """The error document of an answer, which must be ours, say what to do, and give nothing of ours away."""
    body = answer.body if isinstance(answer, Answer) else answer.data
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert headers[INTERNAL.lower()] == "gnomon"
    assert headers["content-type"] == "application/json"
    error: dict[str, str] = json.loads(body)["error"]
    assert set(error) <= {"code", "message", "hint"}
    assert re.fullmatch(r"[a-z][a-z0-9_]*", error["code"]), error
    assert len(error["message"]) < 1000
    # The table of images is for users to extend, and named where one is missing.
    text = re.sub(r"\S*/images\.yml", "", json.dumps(error))
    for private in ("Traceback", 'File \\"', ".py\\", str(Path(__file__).parents[3]), "site-packages", "0x7f", "200000"):
        assert private not in text, error
    return error


class SlowClients:
    """Clients that send a byte now and then, from the first test on, because patience is what they are made of.

    `ended` says, by what they pretend to send, what each of them was answered and after how many seconds.
    """

    PREFIXES: Mapping[str, bytes] = {
        "head": b"GET /",
        "function": b"POST /function/echo HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n",
        "control": b"POST /system/secrets HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n",
        "asynchronous": b"POST /async-function/echo HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n",
    }

    def __init__(self, gateway: Attacked) -> None:
        self.ended: dict[str, tuple[list[Answer], float]] = {}
        self._clients = [threading.Thread(target=self._drip, args=(gateway, kind), daemon=True) for kind in self.PREFIXES]
        for client in self._clients:
            client.start()

    def _drip(self, gateway: Attacked, kind: str) -> None:
        began_s = time.monotonic()
        with gateway.connect() as connection:
            connection.sendall(self.PREFIXES[kind])
            while not select.select([connection], [], [], 0.25)[0]:
                connection.send(b"x")
            self.ended[kind] = read_answers(connection), time.monotonic() - began_s

    def wait(self) -> None:
        for client in self._clients:
            client.join(60)


@pytest.fixture(scope="session")
def slow_clients(gateway: Attacked) -> SlowClients:
    return SlowClients(gateway)


@pytest.fixture(scope="session", autouse=True)
def _slow_clients_are_there_all_the_time(slow_clients: SlowClients) -> None:
    """Slow clients cost nobody else anything, and waiting for their end costs no time of its own."""


@pytest.fixture(scope="session")
def model(gateway: Attacked) -> str:
    """The name of a function that serves a real network."""
    ready = f"/v2/models/{MODEL}/ready"
    eventually(lambda: gateway.call("GET", ready).status == 200, "the model was never captured", CAPTURE_LIMIT_S)
    return MODEL


def _capture_model(gateway: Attacked) -> None:
    """Deploy the model behind the tests that need none: capturing it takes ten seconds."""
    annotations = {"gnomon/model": MODEL, "gnomon/max-batch": "8", "gnomon/scheduler": "fixed", "gnomon/max-wait-ms": "30"}
    document = {"service": MODEL, "image": "gnomon/body", "annotations": annotations}
    url = f"{gateway.url}/system/functions"

    def deploy() -> None:
        # The gateway answers once the model is captured. Whether it was, the fixture `model` asks the gateway; here an error
        # would be reported for whichever test runs at that moment.
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            urllib3.request("POST", url, json=document, timeout=CAPTURE_LIMIT_S, retries=False)

    threading.Thread(target=deploy, daemon=True).start()


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Attacked]:
    attacked = Attacked(tmp_path_factory.mktemp("hostile") / "state")
    attacked.start()
    assert attacked.deploy("echo").status == 202
    eventually(lambda: attacked.status("echo")["availableReplicas"] == 1, "the echo function never began")
    if any("model" in item.fixturenames for item in request.session.items if isinstance(item, pytest.Function)):
        _capture_model(attacked)
    yield attacked
    assert attacked.process is not None
    try:
        assert attacked.process.poll() is None, attacked.log
        assert attacked.call("POST", "/function/echo", b"alive").data == b"alive"
        # A traceback of the gateway begins a line. Those of functions end the lines that say why an instance has ended.
        assert "\nTraceback" not in f"\n{attacked.log}", attacked.log
    finally:
        attacked.client.clear()
        code = attacked.stop()
    assert code == 0


@pytest.fixture(scope="session")
def image(gateway: Attacked, build_archive: Callable[..., bytes]) -> str:
    code = (Path(__file__).parent / "handlers" / "villain.py").read_text()
    gateway.build(build_archive(code, image=IMAGE))
    return IMAGE


@pytest.fixture(scope="session")
def bystander(gateway: Attacked, image: str) -> Function:
    """Another function with a secret, which must not notice anything."""
    gateway.call("POST", "/system/secrets", {"name": "theirs", "value": "a-secret-of-theirs"})
    answer = gateway.deploy("bystander", image=image, secrets=["theirs"], annotations=ANNOTATIONS)
    assert answer.status == 202, answer.data
    function = Function(gateway, "bystander")
    eventually(function.works, "the bystander never began")
    return function


@pytest.fixture
def villain(gateway: Attacked, bystander: Function, image: str) -> Iterator[Function]:
    """A function of its own for each deed: one that crashes again and again is started ever more slowly."""
    del bystander
    with deployed(gateway, image) as function:
        yield function


@pytest.fixture
def patient(gateway: Attacked, bystander: Function, image: str) -> Iterator[Function]:
    """A function whose callers wait as long as a busy machine needs."""
    del bystander
    with deployed(gateway, image, TIMEOUT_S) as function:
        yield function


@pytest.fixture
def dawdler(gateway: Attacked, bystander: Function, image: str) -> Iterator[Function]:
    """A function that makes its callers wait, who have less patience, so that the tests need not have it."""
    del bystander
    with deployed(gateway, image, HASTE_S) as function:
        yield function


@pytest.fixture(scope="session")
def survivor(gateway: Attacked, bystander: Function, image: str) -> Iterator[Function]:
    """A function for all the deeds that no instance ends by."""
    del bystander
    with deployed(gateway, image) as function:
        yield function


HOST = b"Host: 127.0.0.1\r\n"
SECOND = b"GET /second HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
THREE = b"Content-Length: 3\r\n"
CHUNKS = b"3\r\nabc\r\n0\r\n\r\n"
HOT, ASYNC, CONTROL = "/function/echo", "/async-function/echo", "/system/secrets"
targets = pytest.mark.parametrize("target", [HOT, ASYNC, CONTROL])


def post(target: str, head: bytes, body: bytes = b"") -> bytes:
    return f"POST {target} HTTP/1.1\r\n".encode() + HOST + head + b"\r\n" + body


def check_refused(answers: list[Answer], *statuses: int) -> None:
    assert [answer.status for answer in answers] in [[status] for status in statuses]
    check_error(answers[0])
    assert answers[0].headers["connection"] == "close"
