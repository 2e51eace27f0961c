"""One client must not take what belongs to all: the loop's time, the gateway's memory, its sockets."""

from __future__ import annotations

import gzip
import resource
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.hostile.conftest import Attacked, check_error, read_answers
from tests.integration.hostile.raw_requests import ASYNC, CHUNKED, CHUNKS, CONTROL, HOST, HOT, SECOND, THREE, post, targets
from tests.waiting import eventually

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
        connection.settimeout(5)
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
