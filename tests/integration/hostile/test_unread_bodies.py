"""Bodies that nobody reads, because the answer does not depend on them: their sender gets it, and we keep nothing of them."""

from __future__ import annotations

from tests.integration.hostile.conftest import Attacked, read_answers
from tests.integration.hostile.raw_requests import ASYNC, CHUNKED, CONTROL, HOT, SECOND, THREE, post, targets
from tests.waiting import eventually


def test_a_refused_client_that_stays_keeps_no_socket_of_ours(gateway: Attacked) -> None:
    attacks = [
        post(HOT, b"X-Name: " + b"a" * 200_000 + b"\r\n"),
        post(HOT, b"X-Name: a\r\n" * 5000),
        post(CONTROL, b"X-Name: a\r\n" * 5000),
        post(CONTROL, CHUNKED, b"zz\r\n"),
        post(ASYNC, CHUNKED, b"zz\r\n"),
        post(HOT, b"Content-Length: 99999999999\r\n", b"a" * 100_000),
        post(CONTROL, b"Content-Length: 99999999999\r\n", b"a" * 100_000),
        post("/nothing", b"Content-Length: 99999999999\r\n", b"a" * 100_000),
        post(HOT, CHUNKED, b"10\r\n"),
    ]
    before = gateway.connections()
    connections = [gateway.connect() for _ in attacks * 3]
    for connection, attack in zip(connections, attacks * 3, strict=True):
        connection.sendall(attack)
    # The last one may still send its body; the others have been refused.
    eventually(lambda: gateway.connections() <= before + 3, "refused connections stay open", 5)
    for connection in connections:
        connection.close()
    eventually(lambda: gateway.connections() <= before, "closed connections stay open", 5)


def test_answers_that_cannot_leave_a_body_unread_end_the_connection(gateway: Attacked) -> None:
    """What the answer does not depend on is not read on and on: neither 64 MiB nor the gigabytes that a length promises."""
    for target in ("/nothing", "/function/nothing", CONTROL):
        with gateway.connect() as connection:
            connection.sendall(post(target, b"Content-Length: 9999999999\r\n"))
            sent = 0
            try:
                while sent < 64 << 20:
                    sent += connection.send(b"a" * 65536)
            except (BrokenPipeError, ConnectionResetError):
                pass
            assert sent < 16 << 20, target
    with gateway.connect() as connection:
        connection.sendall(post("/nothing", THREE))
        connection.sendall(b"abc" + SECOND)
        assert [answer.status for answer in read_answers(connection)] == [404, 404], (
            "a small body is read and the connection kept"
        )


def test_who_is_answered_before_his_body_is_told_that_the_connection_ends(gateway: Attacked) -> None:
    """A client, or a gateway before this one, that keeps connections would send its next request on one that is closed."""
    for target in ("/nothing", "/function/nothing", CONTROL):
        with gateway.connect() as connection:
            connection.sendall(post(target, b"Origin: http://evil.example\r\nTransfer-Encoding: chunked\r\n"))
            (answer,) = read_answers(connection)
            assert (answer.status in (403, 404), answer.headers.get("connection")) == (True, "close"), target


@targets
def test_the_answer_reaches_a_client_whose_body_nobody_read(gateway: Attacked, target: str) -> None:
    """Closing with something unread resets the connection, and the reset may overtake the answer on its way."""
    request = post(f"{target}/nothing", b"Connection: close\r\nContent-Length: 300000\r\n", bytes(300_000))
    for _ in range(20):
        (answer,) = gateway.exchange(request.replace(b"POST", b"PUT", 1))
        assert (answer.status in (200, 404, 405), answer.headers["connection"]) == (True, "close")
