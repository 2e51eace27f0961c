"""Messages and tensors over a stream: whole in any pieces, and nothing believed."""

import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnomon_core import packets
from gnomon_runtime.pair.headers import HEADER, Kind, Message, NonsenseError, Row, encode, message_bytes, tensor_bytes
from gnomon_runtime.pair.link import OwnBuffer
from gnomon_runtime.pair.remote_link import Incoming, Outgoing, address, prepare

pytestmark = pytest.mark.torch
SIZE = 1 << 16
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Two ends of a TCP connection, neither of which blocks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    for end in (one, other):
        prepare(end)
    yield one, other
    one.close()
    other.close()


def message_of(tensors: list[torch.Tensor], buffer: OwnBuffer, sequence: int = 1) -> Message:
    rows = buffer.write(tensors)
    assert rows is not None
    return Message(Kind.COMPUTE, sequence, 3, 9, tensors[0].shape[0], rows)


def take(incoming: Incoming, connection: socket.socket) -> Message:
    connection.settimeout(5)
    while True:
        message = incoming.take(connection)
        if message is not None:
            return message


def push_until(outgoing: Outgoing, connection: socket.socket) -> None:
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        outgoing.push(connection)


@given(st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_tensors_arrive_in_whatever_pieces(ends: Ends, data: st.DataObject) -> None:
    there, here = OwnBuffer(SIZE), OwnBuffer(SIZE)
    tensors = [torch.rand(2, data.draw(st.integers(0, 700))) for _ in range(3)]
    tensors.append(torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last))
    messages = [message_of(tensors, there, sequence) for sequence in (1, 2)]
    raw = b"".join(encode(message) + bytes(there.view(tensor_bytes(message))) for message in messages)
    incoming, found = Incoming(here), []
    ends[0].settimeout(10)
    while raw:
        cut = data.draw(st.integers(1, max(1, min(len(raw), 3000))))
        ends[0].sendall(raw[:cut])
        raw = raw[cut:]
        while (message := incoming.take(ends[1])) is not None:
            found.append(message)
    while len(found) < 2:
        found.append(take(incoming, ends[1]))
    ends[1].settimeout(0)
    assert found == messages
    assert not incoming.begun
    for mine, theirs in zip(tensors, here.read(found[-1].rows), strict=True):
        assert torch.equal(mine, theirs)


def test_partial_write_is_completed_later(ends: Ends) -> None:
    there, here = OwnBuffer(64 << 20), OwnBuffer(64 << 20)
    tensor = torch.rand(4, 4 << 20)
    message = message_of([tensor], there)
    outgoing, incoming, found = Outgoing(message, there), Incoming(here), None
    rounds = 0
    while not outgoing.push(ends[0]) or found is None:
        rounds += 1
        found = found or incoming.take(ends[1])
    assert rounds > 1
    assert torch.equal(here.read(found.rows)[0], tensor)


def test_the_end_of_the_stream_is_the_end_also_in_the_middle(ends: Ends) -> None:
    there = OwnBuffer(SIZE)
    raw = encode(message_of([torch.rand(2, 100)], there))
    ends[0].sendall(raw[: len(raw) // 2])
    incoming = Incoming(OwnBuffer(SIZE))
    assert incoming.take(ends[1]) is None
    ends[0].close()
    with pytest.raises(packets.PeerGoneError):
        take(incoming, ends[1])
    assert incoming.begun


def test_closed_stream_is_not_read(ends: Ends) -> None:
    buffer = OwnBuffer(64 << 20)
    outgoing = Outgoing(message_of([torch.rand(4, 4 << 20)], buffer), buffer)
    ends[1].close()
    with pytest.raises(packets.PeerGoneError):
        push_until(outgoing, ends[0])


@pytest.mark.parametrize(
    "raw",
    [
        b"\0" * HEADER.size,
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" + b"\0" * 100,
        b"GNP1" + b"\xff" * (HEADER.size - 4),
        encode(Message(Kind.DONE, 1, 0, 1, 2, (Row(0, SIZE + 64, "UINT8", (2, SIZE // 2 + 32), (0, 1)),))),
        encode(Message(Kind.DONE, 1, 0, 1, 2, (Row(SIZE, 8, "FP32", (2, 1), (0, 1)),))),
        encode(Message(Kind.DONE, 1, 0, 1, 2, (Row(0, 80, "FP32", (2, 1), (0, 1)),))),
    ],
)
def test_nonsense_is_recognised_before_anything_is_received_after_it(ends: Ends, raw: bytes) -> None:
    ends[0].sendall(raw)
    with pytest.raises(NonsenseError):
        take(Incoming(OwnBuffer(SIZE)), ends[1])


@given(st.binary(min_size=HEADER.size, max_size=HEADER.size))
def test_a_header_says_a_length_within_bounds_or_nothing(header: bytes) -> None:
    for candidate in (header, b"GNP1" + header[4:]):
        try:
            assert HEADER.size <= message_bytes(candidate) <= HEADER.size + 64 * 64
        except NonsenseError:
            assert candidate[:4] != b"GNP1" or candidate[5] > 64


@given(st.data())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_damaged_stream_is_read_or_refused_and_never_outside_the_buffer(ends: Ends, data: st.DataObject) -> None:
    there, here = OwnBuffer(SIZE), OwnBuffer(SIZE)
    message = message_of([torch.rand(2, 9), torch.ones(2, 3, dtype=torch.int64)], there)
    raw = bytearray(encode(message) + bytes(there.view(tensor_bytes(message))))
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    one, other = socket.socketpair()
    with one, other:
        other.settimeout(0)
        one.sendall(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
        one.close()
        incoming = Incoming(here)
        try:
            while (found := incoming.take(other)) is not None:
                assert tensor_bytes(found) <= SIZE
                here.read(found.rows)
        except (NonsenseError, packets.PeerGoneError):
            pass


def test_a_buffer_of_ones_own_grows_and_keeps_what_was_read() -> None:
    buffer = OwnBuffer(64)
    assert buffer.write([torch.ones(2, 100)]) is None
    buffer.prepare(4096)
    rows = buffer.write([torch.ones(2, 100)])
    assert rows is not None
    (read,) = buffer.read(rows)
    buffer.prepare(1 << 20)
    assert torch.equal(read, torch.ones(2, 100))
    assert buffer.size_bytes == 1 << 20
    buffer.prepare(1)
    assert buffer.size_bytes == 1 << 20
    buffer.close()


def test_a_message_without_tensors_is_followed_by_nothing() -> None:
    assert tensor_bytes(Message(Kind.FAILED, 1, 0, 1, 2)) == 0
    row = Row(128, 8, "FP32", (2, 1), (0, 1))
    assert tensor_bytes(Message(Kind.DONE, 1, 0, 1, 2, (row, replace(row, offset=0)))) == 136
    assert message_bytes(encode(Message(Kind.DONE, 1, 0, 1, 2, (row, row)))) == len(
        encode(Message(Kind.DONE, 1, 0, 1, 2, (row, row)))
    )
    assert struct.calcsize("<4sB") == 5


@pytest.mark.parametrize(
    ("url", "expected"),
    [("http://10.0.0.7:8080", ("10.0.0.7", 8080)), ("http://shadow/", ("shadow", 80)), ("http://[::1]:1", ("::1", 1))],
)
def test_a_shadows_address(url: str, expected: tuple[str, int]) -> None:
    assert address(url) == expected


@pytest.mark.parametrize(
    "url", ["", "10.0.0.7:8080", "https://x", "http://", "http://x:99999", "http://x/path", "http://u@x", "file:///x"]
)
def test_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - urlsplit has words of its own for a wrong port
        address(url)
