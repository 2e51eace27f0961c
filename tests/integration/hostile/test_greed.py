"""One client must not take what belongs to all: the loop's time, the gateway's memory, its sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from tests.integration.hostile.conftest import Attacked, read_answers
from tests.integration.hostile.test_framing import ASYNC, CHUNKED, CHUNKS, CONTROL, HOST, HOT, SECOND, THREE, post

ATTACK_S = 0.7
# One each 23 ms, on cores that other tests share; alone it is one each 4 ms. Without portions it was one each 400 ms, or 4 s.
ENOUGH = 30
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


def pour(gateway: Attacked, data: bytes, piece: bytes, *, read: bool, for_s: float = ATTACK_S) -> int:
    """Send `data`, then `piece` over and over, for this long; how many bytes the gateway has taken."""
    big = piece * max(1, 262_144 // len(piece))
    sent = 0
    with gateway.connect(0.5) as connection:
        connection.sendall(data)
        if read:
            threading.Thread(target=_swallow, args=(connection.dup(),)).start()
        end_s = time.monotonic() + for_s
        try:
            while time.monotonic() < end_s:
                sent += connection.send(big)
        except (TimeoutError, ConnectionError):
            pass
        if read:
            connection.shutdown(socket.SHUT_RDWR)
    return sent


def _swallow(connection: socket.socket) -> None:
    with connection:
        try:
            while connection.recv(1 << 20):
                pass
        except OSError:
            return


def served(gateway: Attacked, attack: Callable[[], object]) -> int:
    """How many answers a good client gets, one after the other, while the attack goes on."""
    attacker = threading.Thread(target=attack)
    count, request = 0, b"GET /v2 HTTP/1.1\r\n" + HOST + b"\r\n"
    with gateway.connect() as connection:
        attacker.start()
        while attacker.is_alive():
            connection.sendall(request)
            assert connection.recv(4096).endswith(b"}")
            count += 1
            time.sleep(0.002)
    attacker.join()
    return count


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
def test_a_flood_of_requests_keeps_nobody_waiting(gateway: Attacked, flood: str, read: bool) -> None:  # noqa: FBT001 - a parameter
    before_bytes = gateway.resident_bytes()
    assert served(gateway, lambda: pour(gateway, b"", FLOODS[flood], read=read)) > ENOUGH
    assert gateway.resident_bytes() - before_bytes < 32 << 20, "answers that nobody takes pile up"


@pytest.mark.parametrize("flood", CHUNK_FLOODS)
@pytest.mark.parametrize("target", [HOT, ASYNC, CONTROL])
def test_a_flood_of_chunks_keeps_nobody_waiting(gateway: Attacked, target: str, flood: str) -> None:
    assert served(gateway, lambda: pour(gateway, post(target, CHUNKED), CHUNK_FLOODS[flood], read=False)) > ENOUGH


@pytest.mark.parametrize("target", [HOT, ASYNC, CONTROL])
def test_a_thousand_requests_in_one_breath_are_all_answered(gateway: Attacked, target: str) -> None:
    count = 300 if target == HOT else 1000
    answers = gateway.exchange(post(target, THREE, b"abc") * (count // 2) + post(target, CHUNKED, CHUNKS) * (count // 2) + SECOND)
    assert len(answers) == count + 1
    assert {answer.status for answer in answers[:-1]} == {{HOT: 200, ASYNC: 202, CONTROL: 400}[target]}
    assert answers[-1].status == 404


@pytest.mark.parametrize("target", [HOT, ASYNC, CONTROL])
def test_the_body_of_a_request_may_come_after_the_answer_to_the_one_before(gateway: Attacked, target: str) -> None:
    with gateway.connect() as connection:
        connection.sendall(post(HOT, THREE, b"abc") + post(target, THREE))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"abc" + SECOND)
        assert len(read_answers(connection)) == 2
