"""HTTP framing, bodies that nobody reads, slow clients."""

from __future__ import annotations

import time

import pytest

from tests.integration.hostile.conftest import (
    ASYNC,
    CHUNKED,
    CHUNKS,
    CONTROL,
    HOST,
    HOT,
    SECOND,
    THREE,
    Answer,
    Attacked,
    SlowClients,
    check_error,
    check_refused,
    post,
    read_answers,
    targets,
)
from tests.waiting import eventually

ACCEPTED: dict[str, tuple[bytes, bytes]] = {
    "a length": (THREE, b"abc"),
    "a length with zeros": (b"Content-Length: 0003\r\n", b"abc"),
    "a length between tabs": (b"Content-Length:\t3\t\r\n", b"abc"),
    "chunks": (CHUNKED, CHUNKS),
    "chunks, shouted": (b"TRANSFER-ENCODING: CHUNKED\r\n", CHUNKS),
    "chunks behind a tab": (b"Transfer-Encoding:\tchunked\r\n", CHUNKS),
    "a chunk with an extension": (CHUNKED, b"3;name=value\r\nabc\r\n0\r\n\r\n"),
    "a chunk with a quoted extension": (CHUNKED, b'3;name="a;b"\r\nabc\r\n0\r\n\r\n'),
    "a chunk's size with zeros": (CHUNKED, b"00000000000000000003\r\nabc\r\n0\r\n\r\n"),
    "a trailer": (CHUNKED, b"3\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n"),
    "a trailer with a name of ours": (CHUNKED, b"3\r\nabc\r\n0\r\nX-Gnomon-Deadline-Ms: -1\r\n\r\n"),
    "a length that is expected to continue": (b"Expect: 100-continue\r\n" + THREE, b"abc"),
    "an unknown expectation": (b"Expect: the unexpected\r\n" + THREE, b"abc"),
    "bytes above 127 in a value": (b"X-Name: \xff\xfe\r\n" + THREE, b"abc"),
}
REFUSED_HEADS: dict[str, bytes] = {
    "a length and chunks": THREE + CHUNKED,
    "chunks and a length": CHUNKED + THREE,
    "a length twice": THREE + THREE,
    "two lengths": THREE + b"Content-Length: 4\r\n",
    "a list of lengths": b"Content-Length: 3, 3\r\n",
    "a negative length": b"Content-Length: -3\r\n",
    "a length with a sign": b"Content-Length: +3\r\n",
    "a length in hex": b"Content-Length: 0x3\r\n",
    "a length with a space in it": b"Content-Length: 1 0\r\n",
    "a length with an underscore": b"Content-Length: 1_0\r\n",
    "a length of other digits": "Content-Length: ٣\r\n".encode(),
    "a length with a fraction": b"Content-Length: 3.0\r\n",
    "an empty length": b"Content-Length: \r\n",
    "a length beyond 64 bits": b"Content-Length: 99999999999999999999999\r\n",
    "a space before the colon of a length": b"Content-Length : 3\r\n",
    "a space before the colon of an encoding": b"Transfer-Encoding : chunked\r\n",
    "a length on a folded line": b"Content-Length:\r\n 3\r\n",
    "an encoding on a folded line": b"Transfer-Encoding:\r\n chunked\r\n",
    "a folded line": b"X-Name: a\r\n b\r\n" + THREE,
    "a line folded by a tab": b"X-Name: a\r\n\tb\r\n" + THREE,
    "a bare line feed": b"X-Name: a\nContent-Length: 3\r\n",
    "a bare carriage return": b"X-Name: a\rX-Other: b\r\n" + THREE,
    "a NUL in a value": b"X-Name: a\0b\r\n" + THREE,
    "a NUL in a name": b"X-\0Name: a\r\n" + THREE,
    "control characters in a value": b"X-Name: \x01\x1f\x7f\r\n" + THREE,
    "no name": b": a\r\n" + THREE,
    "no colon": b"X-Name\r\n" + THREE,
    "a space in a name": b"X Name: a\r\n" + THREE,
    "a space before the first header": b" X-Name: a\r\n" + THREE,
    "a second host": b"Host: example.com\r\n" + THREE,
    "the same host again": HOST + THREE,
}
REFUSED_ENCODINGS: dict[str, bytes] = {
    "an unknown encoding": b"xchunked",
    "no encoding at all": b"identity",
    "chunks inside of something": b"chunked, identity",
    "chunks twice in a line": b"chunked, chunked",
    "something inside of chunks": b"gzip, chunked",
    "a quoted name": b'"chunked"',
    "a semicolon": b"chunked;",
    "a vertical tab": b"\x0bchunked",
    "chunks twice": b"chunked\r\nTransfer-Encoding: chunked",
    "chunks, then none": b"chunked\r\nTransfer-Encoding: identity",
    "none, then chunks": b"identity\r\nTransfer-Encoding: chunked",
}
REFUSED_CHUNKS: dict[str, bytes] = {
    "a carriage return in an extension": b"3;a=\rb\r\nabc\r\n0\r\n\r\n",
    "a line feed behind an extension": b"3;a\nabc\r\n0\r\n\r\n",
    "a line feed behind a size": b"3\nabc\r\n0\r\n\r\n",
    "a line feed behind the data": b"3\r\nabc\n0\r\n\r\n",
    "a line feed behind the last size": b"3\r\nabc\r\n0\n\r\n",
    "a line feed at the end": b"3\r\nabc\r\n0\r\n\n",
    "carriage returns only": b"3\rabc\r0\r\r",
    "a negative size": b"-3\r\nabc\r\n0\r\n\r\n",
    "a size with a sign": b"+3\r\nabc\r\n0\r\n\r\n",
    "a size with 0x": b"0x3\r\nabc\r\n0\r\n\r\n",
    "a size with an underscore": b"1_0\r\nabcdefghijklmnop\r\n0\r\n\r\n",
    "an empty size": b"\r\nabc\r\n0\r\n\r\n",
    "a space before a size": b" 3\r\nabc\r\n0\r\n\r\n",
    "a space behind a size": b"3 \r\nabc\r\n0\r\n\r\n",
    "a size that is no number": b"zz\r\nabc\r\n0\r\n\r\n",
    "a size beyond 64 bits": b"FFFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n",
    "more data than the size": b"3\r\nabcd\r\n0\r\n\r\n",
    "less data than the size": b"4\r\nabc\r\n0\r\n\r\n",
    "a length in the trailer": b"3\r\nabc\r\n0\r\nContent-Length: 50\r\n\r\n",
    "an encoding in the trailer": b"3\r\nabc\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a trailer with a space in its name": b"3\r\nabc\r\n0\r\nX T: 1\r\n\r\n",
}
REFUSED_LINES: dict[str, bytes] = {
    "an unknown method": b"FOO %b HTTP/1.1\r\n",
    "a method in small letters": b"post %b HTTP/1.1\r\n",
    "a space in the path": b"POST %b x HTTP/1.1\r\n",
    "a tab in the path": b"POST %b\tx HTTP/1.1\r\n",
    "a NUL in the path": b"POST %b\0x HTTP/1.1\r\n",
    "bytes above 127 in the path": b"POST %b/\xff HTTP/1.1\r\n",
    "a version in small letters": b"POST %b http/1.1\r\n",
    "a version that is no number": b"POST %b HTTP/1.x\r\n",
    "version 1.2": b"POST %b HTTP/1.2\r\n",
    "a tunnel": b"CONNECT %b HTTP/1.1\r\n",
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "every byte": bytes(range(256)) * 4,
}


def check_answered(target: str, answer: Answer) -> None:
    """The three bytes have arrived, whole and alone."""
    if target == HOT:
        assert (answer.status, answer.body) == (200, b"abc")
    elif target == ASYNC:
        assert answer.status == 202
    else:
        # They are no JSON, which it can only say after it has read them.
        assert answer.status == 400
        assert check_error(answer)["code"] == "invalid_json"


@targets
@pytest.mark.parametrize("case", ACCEPTED)
def test_unambiguous_framing_is_accepted(gateway: Attacked, target: str, case: str) -> None:
    head, body = ACCEPTED[case]
    first, second = gateway.exchange(post(target, head, body) + SECOND)
    check_answered(target, first)
    assert second.status == 404
    assert check_error(second)["code"] == "route_not_found"


@pytest.mark.parametrize("before", [b"", post(HOT, THREE, b"abc")], ids=["alone", "pipelined"])
@pytest.mark.parametrize("trailer", [b"X-Gnomon-Deadline-Ms: -1", b"X-Call-Id: forged", b"X-Callback-Url: http://example.com/"])
@pytest.mark.parametrize("target", [HOT, ASYNC])
def test_a_trailer_is_no_header(gateway: Attacked, target: str, trailer: bytes, before: bytes) -> None:
    *_, answer, _ = gateway.exchange(before + post(target, CHUNKED, b"3\r\nabc\r\n0\r\n" + trailer + b"\r\n\r\n") + SECOND)
    check_answered(target, answer)
    assert answer.headers["x-call-id"] != "forged"


@targets
@pytest.mark.parametrize("case", REFUSED_HEADS)
def test_a_head_of_two_meanings_is_refused(gateway: Attacked, target: str, case: str) -> None:
    body = CHUNKS if b"Transfer" in REFUSED_HEADS[case] else b"abc"
    check_refused(gateway.exchange(post(target, REFUSED_HEADS[case], body) + SECOND), 400)


@targets
@pytest.mark.parametrize("case", REFUSED_ENCODINGS)
def test_an_encoding_that_is_not_plain_chunks_is_refused(gateway: Attacked, target: str, case: str) -> None:
    head = b"Transfer-Encoding: " + REFUSED_ENCODINGS[case] + b"\r\n"
    check_refused(gateway.exchange(post(target, head, CHUNKS) + SECOND), 400)


@targets
@pytest.mark.parametrize("case", REFUSED_CHUNKS)
def test_chunks_of_two_meanings_are_refused(gateway: Attacked, target: str, case: str) -> None:
    check_refused(gateway.exchange(post(target, CHUNKED, REFUSED_CHUNKS[case]) + SECOND), 400)


@targets
@pytest.mark.parametrize("case", REFUSED_LINES)
def test_bytes_that_are_not_http_are_refused(gateway: Attacked, target: str, case: str) -> None:
    line = REFUSED_LINES[case].replace(b"%b", target.encode())
    check_refused(gateway.exchange(line + HOST + b"Content-Length: 0\r\n\r\n" + SECOND), 400, 405)


@targets
def test_a_request_without_a_host_is_refused(gateway: Attacked, target: str) -> None:
    check_refused(gateway.exchange(f"POST {target} HTTP/1.1\r\nContent-Length: 0\r\n\r\n".encode() + SECOND), 400)


@targets
@pytest.mark.parametrize("version", [b"0.9", b"2.0"])
def test_another_version_of_http_is_refused(gateway: Attacked, target: str, version: bytes) -> None:
    check_refused(gateway.exchange(post(target, THREE, b"abc").replace(b"HTTP/1.1", b"HTTP/" + version) + SECOND), 505)


@targets
def test_chunks_in_http_1_0_end_the_connection(gateway: Attacked, target: str) -> None:
    request = post(target, b"Connection: keep-alive\r\n" + CHUNKED, CHUNKS).replace(b"HTTP/1.1", b"HTTP/1.0")
    (answer,) = gateway.exchange(request + SECOND)
    check_answered(target, answer)


@targets
@pytest.mark.parametrize("case", ["value", "name", "lines", "path", "trailer"])
def test_a_huge_head_is_refused(gateway: Attacked, target: str, case: str) -> None:
    much = b"a" * 200_000
    data = {
        "value": post(target, b"X-Name: " + much + b"\r\n" + THREE, b"abc"),
        "name": post(target, much + b": a\r\n" + THREE, b"abc"),
        "lines": post(target, b"X-Name: a\r\n" * 5000 + THREE, b"abc"),
        "path": post(f"{target}/{much.decode()}", THREE, b"abc"),
        "trailer": post(target, CHUNKED, b"3\r\nabc\r\n0\r\nX-Name: " + much + b"\r\n\r\n"),
    }[case]
    check_refused(gateway.exchange(data + SECOND), 431)


@targets
def test_pipelined_requests_are_answered_in_order_up_to_the_broken_one(gateway: Attacked, target: str) -> None:
    good = post(HOT, THREE, b"abc") + post(target, THREE, b"abc")
    answers = gateway.exchange(good + post(target, CHUNKED, b"zz\r\n") + SECOND)
    check_answered(HOT, answers[0])
    check_answered(target, answers[1])
    assert all(answer.status == 400 for answer in answers[2:])
    assert len(answers) <= 3


@targets
@pytest.mark.parametrize("body", [THREE, CHUNKED], ids=["length", "chunks"])
@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
def test_an_offer_of_another_protocol_is_declined_and_the_request_taken(
    gateway: Attacked, target: str, upgrade: bytes, body: bytes
) -> None:
    """Java's client offers HTTP/2 with every request, curl --http2 too; neither may lose its body by it."""
    head = b"Connection: Upgrade\r\nUpgrade: " + upgrade + b"\r\nSec-WebSocket-Key: AAAA\r\n" + body
    first, second = gateway.exchange(post(target, head, b"abc" if body == THREE else CHUNKS) + SECOND)
    check_answered(target, first)
    assert second.status == 404


def test_a_connection_that_was_idle_costs_its_next_request_no_time(gateway: Attacked) -> None:
    """Only the first request waits for the connection to be accepted, whatever it asks for."""
    head = b"POST /function/echo HTTP/1.1\r\nHost: a\r\nX-Gnomon-Deadline-Ms: 3000\r\nConnection: close\r\n"
    with gateway.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(3.2)
        connection.sendall(head + b"Content-Length: 5\r\n\r\nalive")
        assert [answer.status for answer in read_answers(connection)] == [200, 200]


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
    # The last one may still send its body; the others have been refused. The limit is below HEAD_S, which ends slow clients.
    eventually(lambda: gateway.connections() <= before + 3, "refused connections stay open", HEAD_S - 1)
    for connection in connections:
        connection.close()
    eventually(lambda: gateway.connections() <= before, "closed connections stay open", HEAD_S - 1)


def test_answers_that_cannot_leave_a_body_unread_end_the_connection(gateway: Attacked) -> None:
    """The gateway stops reading a body that the answer does not depend on: neither 64 MiB nor gigabytes of a stated length."""
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


def test_answer_before_the_body_announces_connection_close(gateway: Attacked) -> None:
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


HEAD_S, BODY_S = 10, 30


@pytest.mark.parametrize("kind", SlowClients.PREFIXES)
def test_a_trickle_is_ended_with_a_408(slow_clients: SlowClients, kind: str) -> None:
    slow_clients.wait()
    answers, after_s = slow_clients.ended[kind]
    assert [answer.status for answer in answers] == [408]
    assert check_error(answers[0])["code"] == "request_too_slow"
    limit_s = HEAD_S if kind == "head" else BODY_S
    # The gateway looks twice a second, and is under attack; a trickle that began its time anew would never be ended.
    assert limit_s - 1 < after_s < limit_s + 10
