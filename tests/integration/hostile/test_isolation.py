"""Resources that a function cannot reach or exhaust."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.hostile.conftest import (
    ASYNC,
    CHUNKED,
    CHUNKS,
    CONTROL,
    HOST,
    HOT,
    MARKER,
    SECOND,
    THREE,
    Attacked,
    Function,
    check_error,
    post,
    read_answers,
    targets,
)
from tests.waiting import eventually

REQUESTS = 5000
CLIENTS = 24
FUNCTIONS = ("cross-one", "cross-two", "cross-three")


@dataclass
class Client:
    """A client of its own connection, which asks one thing after the other and breaks some of them off."""

    port: int
    rng: random.Random
    seen: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    async def run(self, tokens: range) -> None:
        reader, writer = await self._connect()
        for number in tokens:
            kind = self.rng.choices(["ask", "leave", "poison"], [88, 9, 3])[0]
            await self._send(writer, number, kind)
            if kind == "leave":
                await asyncio.sleep(self.rng.random() * 0.004)
                writer.transport.abort()
                self.seen["left"] += 1
                reader, writer = await self._connect()
            else:
                await self._check(reader, number, kind)
        writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    def _body(self, number: int) -> bytes:
        return f"{number};".encode() * (number % 97 + 1)

    async def _send(self, writer: asyncio.StreamWriter, number: int, kind: str) -> None:
        function = FUNCTIONS[number % len(FUNCTIONS)]
        path = "/poison" if kind == "poison" else f"/{number}"
        body = self._body(number)
        head = (
            f"POST /function/{function}{path}?n={number} HTTP/1.1\r\nHost: a\r\nX-Token: {number}\r\nX-Call-Id: call-{number}\r\n"
        )
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def _check(self, reader: asyncio.StreamReader, number: int, kind: str) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n")[1:])}
        body = await reader.readexactly(int(headers["content-length"]))
        status = int(head.split()[1])
        self.seen[f"{kind} {status}"] += 1
        found = (headers["x-call-id"], headers.get("x-token"), headers.get("x-path"), headers.get("x-query"), body)
        expected = (f"call-{number}", str(number), f"/{number}", f"n={number}", self._body(number))
        if found[0] != expected[0] or (status == 200 and found != expected):
            self.wrong.append(f"{expected} got {found}")


@pytest.fixture(scope="module")
def functions(gateway: Attacked, build_archive: Callable[..., bytes]) -> None:
    code = (Path(__file__).parent / "handlers" / "batching.py").read_text()
    gateway.build(build_archive(code, image="hostile/batching:1"))
    for name in FUNCTIONS:
        annotations = {"gnomon/max-batch": "8", "gnomon/autoscaler": "fixed"}
        gateway.deploy(name, image="hostile/batching:1", annotations=annotations, labels={"com.openfaas.scale.min": "2"})
    eventually(lambda: all(gateway.status(name)["availableReplicas"] == 2 for name in FUNCTIONS), "they never began")


def test_five_thousand_answers_and_each_to_its_own_request(gateway: Attacked, functions: None) -> None:
    port = int(gateway.url.rpartition(":")[2])
    clients = [Client(port, random.Random(seed)) for seed in range(CLIENTS)]

    async def run() -> None:
        await asyncio.gather(*(client.run(range(seed, REQUESTS, CLIENTS)) for seed, client in enumerate(clients)))

    asyncio.run(run())
    wrong = [mistake for client in clients for mistake in client.wrong]
    seen = sum((client.seen for client in clients), Counter())
    assert wrong == []
    assert seen.total() == REQUESTS
    assert set(seen) == {"ask 200", "poison 500", "left"}
    assert seen["ask 200"] > 4000
    batches, members = (sum(gateway.metric(f"gnomon_batch_size_{kind}", name) for name in FUNCTIONS) for kind in ("count", "sum"))
    assert members > 1.2 * batches, "they were not batched, so that this shows nothing"


ENOUGH = 50
# One takes 4 ms on cores that nobody else uses. Without portions it took 400 ms, or 4 s: 20 s for all at the least.
ENOUGH_S = 10.0
MIB = 1 << 20
LIMITS = {HOT: 64 * MIB, ASYNC: MIB, CONTROL: MIB}
# What the kernel holds of both sockets on loopback, at most.
IN_SOCKETS_BYTES = 12 * MIB
FLOODS: dict[str, bytes] = {
    "requests to no function": b"GET /function/nothing HTTP/1.1\r\nHost:a\r\n\r\n",
    "requests that are answered at once": b"GET /v2 HTTP/1.1\r\nHost:a\r\n\r\n",
    "control requests": b"GET /healthz HTTP/1.1\r\nHost:a\r\n\r\n",
    "empty lines": b"\r\n",
}
CHUNK_FLOODS: dict[str, bytes] = {
    "chunks of one byte": b"1\r\nx\r\n",
    "chunks that are mostly extensions": b"1;" + b"e" * 4000 + b"\r\nx\r\n",
}


def pour(gateway: Attacked, data: bytes, piece: bytes, enough: threading.Event, *, read: bool) -> None:
    """Send `data`, then `piece` over and over, until it is enough or nobody takes it any more."""
    big = piece * max(1, 262_144 // len(piece))
    with gateway.connect() as connection:
        connection.sendall(data)
        connection.settimeout(0.1)
        if read:
            threading.Thread(target=_swallow, args=(connection.dup(),)).start()
        try:
            while not enough.is_set():
                connection.send(big)
        except (TimeoutError, ConnectionError):
            enough.wait()
        if read:
            connection.shutdown(socket.SHUT_RDWR)


def _swallow(connection: socket.socket) -> None:
    with connection:
        try:
            while connection.recv(1 << 20):
                pass
        except OSError:
            return


def check_served(gateway: Attacked, attack: Callable[[threading.Event], object], count: int = ENOUGH) -> None:
    """A good client gets this many answers, one after the other, before long, while an attack goes on that ends when told so."""
    enough, request = threading.Event(), b"GET /v2 HTTP/1.1\r\n" + HOST + b"\r\n"
    with ThreadPoolExecutor(1) as pool, gateway.connect() as connection:
        attacking = pool.submit(attack, enough)
        try:
            begun_s = time.monotonic()
            for _ in range(count):
                connection.sendall(request)
                assert connection.recv(4096).endswith(b"}")
                enough.wait(0.002)
            assert time.monotonic() - begun_s < ENOUGH_S
        finally:
            enough.set()
        attacking.result()


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
def test_a_flood_of_requests_keeps_nobody_waiting(gateway: Attacked, flood: str, read: bool) -> None:  # noqa: FBT001 - a parameter
    before_bytes = gateway.resident_bytes()
    check_served(gateway, lambda enough: pour(gateway, b"", FLOODS[flood], enough, read=read))
    assert gateway.resident_bytes() - before_bytes < 32 << 20, "answers that nobody takes pile up"


@pytest.mark.parametrize("flood", CHUNK_FLOODS)
@targets
def test_a_flood_of_chunks_keeps_nobody_waiting(gateway: Attacked, target: str, flood: str) -> None:
    check_served(gateway, lambda enough: pour(gateway, post(target, CHUNKED), CHUNK_FLOODS[flood], enough, read=False))


@targets
def test_three_hundred_requests_in_one_breath_are_all_answered(gateway: Attacked, target: str) -> None:
    count = 300
    answers = gateway.exchange(post(target, THREE, b"abc") * (count // 2) + post(target, CHUNKED, CHUNKS) * (count // 2) + SECOND)
    assert len(answers) == count + 1
    assert {answer.status for answer in answers[:-1]} == {{HOT: 200, ASYNC: 202, CONTROL: 400}[target]}
    assert answers[-1].status == 404


@targets
def test_the_body_of_a_request_may_come_after_the_answer_to_the_one_before(gateway: Attacked, target: str) -> None:
    with gateway.connect() as connection:
        connection.sendall(post(HOT, THREE, b"abc") + post(target, THREE))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"abc" + SECOND)
        assert len(read_answers(connection)) == 2


@pytest.mark.parametrize(("target", "piece"), [(HOT, 1000), (HOT, MIB), (ASYNC, 1), (ASYNC, MIB), (CONTROL, 1), (CONTROL, MIB)])
def test_a_body_over_the_limit_is_a_413_and_is_not_read_whole(gateway: Attacked, target: str, piece: int) -> None:
    limit_bytes = LIMITS[target]
    before_bytes = gateway.resident_bytes()
    chunk = f"{piece:x}\r\n".encode() + b"x" * piece + b"\r\n"
    overhead = len(chunk) / piece
    chunks = chunk * max(1, 65536 // piece)
    sent = 0
    with gateway.connect() as connection:
        connection.sendall(post(target, CHUNKED))
        try:
            while sent < 3 * limit_bytes * overhead + 2 * IN_SOCKETS_BYTES:
                sent += connection.send(chunks)
        except ConnectionError:
            pass
        connection.settimeout(60)
        (answer,) = read_answers(connection)
    assert answer.status == 413
    assert check_error(answer)["code"] == "body_too_large"
    assert sent <= limit_bytes * overhead + IN_SOCKETS_BYTES
    assert gateway.resident_bytes() - before_bytes < limit_bytes + 32 * MIB


@targets
def test_a_body_that_says_it_is_over_the_limit_is_a_413_before_any_of_it(gateway: Attacked, target: str) -> None:
    (answer,) = gateway.exchange(post(target, b"Content-Length: %d\r\n" % (LIMITS[target] + 1)))
    assert answer.status == 413
    assert check_error(answer)["code"] == "body_too_large"


def test_a_packed_body_may_not_be_larger_than_a_plain_one(gateway: Attacked) -> None:
    """Control routes do not unpack; what unpacks, inference, is tested with the models."""
    packed = gzip.compress(bytes(64 * MIB), 9)
    answer = gateway.call("POST", CONTROL, packed, Content_Encoding="gzip")
    assert answer.status == 400
    assert check_error(answer)["code"] == "invalid_json"


def test_many_large_bodies_together_are_bounded_and_small_ones_pass(gateway: Attacked) -> None:
    size = 60 * MIB
    head = post(HOT, b"Content-Length: %d\r\n" % size)

    def nearly(_: int) -> socket.socket:
        connection = gateway.connect()
        connection.sendall(head)
        sent = 0
        try:
            while sent < size - 1:
                sent += connection.send(bytes(min(MIB, size - 1 - sent)))
        except ConnectionError:
            pass
        return connection

    for _ in range(2):
        before_bytes = gateway.resident_bytes()
        with ThreadPoolExecutor(10) as pool:
            connections = list(pool.map(nearly, range(10)))
        refused = 0
        for connection in connections:
            connection.settimeout(0.05)
            try:
                refused += connection.recv(64).startswith(b"HTTP/1.1 503")
            except TimeoutError:
                continue
        # 512 MiB are room for eight of them, whether or not another eight have been there before.
        assert refused >= 2
        assert gateway.resident_bytes() - before_bytes < 700 * MIB
        assert gateway.call("POST", HOT, b"small").data == b"small"
        for connection in connections:
            connection.close()


def test_a_thousand_idle_connections_keep_nobody_waiting(gateway: Attacked) -> None:
    before = gateway.connections()
    soft, hard = resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE)
    assert soft == min(hard, 1 << 16), "it uses the open files that it may"
    idle = [gateway.connect() for _ in range(1000)]
    try:
        for number, connection in enumerate(idle):
            # Silent ones, and ones that stop in the middle of a head or of a body.
            connection.sendall((b"", b"GET /function/ec", post(HOT, THREE, b"a"), post(CONTROL, CHUNKED, b"5\r\nab"))[number % 4])
        assert all(gateway.call("POST", HOT, b"%d" % number).data == b"%d" % number for number in range(50))
    finally:
        for connection in idle:
            connection.close()
    eventually(lambda: gateway.connections() <= before, "closed connections stay open", 10)


# What a function reaches beyond itself: nothing of ours, nothing of others.


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give functions users of their own")


@needs_root
def test_function_cannot_read_the_server_s_files(survivor: Function) -> None:
    gateway = survivor.gateway
    seen = survivor.shell(
        f"ls -laR {gateway.state} {gateway.state}/platform; cat {gateway.state}/functions.db {gateway.state}/payload-secret;"
        f"cat /proc/{gateway.pid}/environ /proc/{gateway.pid}/cmdline; ls /proc/{gateway.pid}/fd; env; set"
    )
    assert (gateway.state / "payload-secret").read_text() not in seen
    for ours in ("SQLite", "gnomon_cli", "users.json", MARKER):
        assert ours not in seen


@needs_root
def test_function_cannot_get_secrets_of_others(villain: Function, bystander: Function) -> None:
    gateway = villain.gateway
    assert bystander.shell("cat /var/openfaas/secrets/theirs") == "a-secret-of-theirs"
    pid = bystander.python("import os; out['pid'] = os.getpid()")["pid"]
    seen = villain.shell(
        f"cat /var/openfaas/secrets/*; cat /proc/{pid}/root/var/openfaas/secrets/theirs /proc/{pid}/environ;"
        "unshare -rm sh -c 'umount -l /var/openfaas/secrets; cat /var/openfaas/secrets/*'; ls /proc"
    )
    assert "a-secret-of-theirs" not in seen
    assert str(pid) not in seen.split()
    request = '{"service":"spy","image":"functions/alpine","envProcess":"cat /var/openfaas/secrets/theirs","secrets":["theirs"]}'
    for forged in ("", "-H 'X-Forwarded-For: 192.0.2.1'"):
        asked = villain.shell(f"curl -s -m 5 {forged} -d '{request}' {gateway.url}/system/functions")
        assert json.loads(asked)["error"]["code"] == "function_refused"
    assert gateway.call("GET", "/system/function/spy").status == 404
    # What is open to everybody is open to functions: they may call each other.
    assert villain.shell(f"curl -s -m 5 -d hello {gateway.url}/function/bystander/echo") == "hello"


@needs_root
def test_function_cannot_touch_other_processes(villain: Function, bystander: Function) -> None:
    gateway = villain.gateway
    pid = bystander.python("import os; out['pid'] = os.getpid()")["pid"]
    targets = [gateway.pid, *gateway.instances()]
    tried = villain.python(
        "import ctypes, os, signal\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"for pid in {targets}:\n"
        "    if pid == os.getpid(): continue\n"
        "    try: os.kill(pid, signal.SIGKILL); out[str(pid)] = 'killed'\n"
        "    except OSError: pass\n"
        "    if libc.ptrace(16, pid, 0, 0) == 0: out[str(pid)] = 'traced'\n"
        "    try: open(f'/proc/{pid}/mem', 'rb'); out[str(pid)] = 'opened'\n"
        "    except OSError: pass\n"
    )
    own = {name for name in tried if tried[name] == "killed"}
    assert not own & {str(gateway.pid), str(pid)}
    assert all(deed == "killed" for deed in tried.values())
    # What it can kill is its own zygote, at most: a new one is there when it is needed.
    assert len(own) <= 2
    assert bystander.python("import os; out['pid'] = os.getpid()")["pid"] == pid
    villain.call("shell", body=b"kill -9 -1")
    assert bystander.python("import os; out['pid'] = os.getpid()")["pid"] == pid
    eventually(villain.works, "it was not replaced")


@needs_root
def test_function_writes_to_its_own_tmp_only_and_binds_no_low_port(survivor: Function) -> None:
    ports = survivor.python(
        "import socket\n"
        "for port in (0, 80, 443):\n"
        "    with socket.socket() as s:\n"
        "        try: s.bind(('127.0.0.1', port)); out[str(port)] = True\n"
        "        except OSError: out[str(port)] = False\n"
    )
    assert ports == {"0": True, "80": False, "443": False}
    seen = survivor.shell(
        "for d in / /etc /usr /var /opt /home /root /bin; do touch $d/x 2>/dev/null && echo wrote $d; done; id -u; umask"
    )
    assert "wrote" not in seen
    assert int(seen.split()[0]) >= 200_000
