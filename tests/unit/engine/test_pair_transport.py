"""Tensors and messages of a pair, through shared memory or a stream: whole, bit by bit, and nothing of a peer is believed."""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gnomon_core import packets, shared_memory
from gnomon_core.program import Program
from gnomon_runtime.engine.segments import Flow, Segment
from gnomon_runtime.pair.headers import (
    DATATYPES,
    HEADER,
    MAX_TENSORS,
    Kind,
    Message,
    NonsenseError,
    Row,
    decode,
    encode,
    message_bytes,
    tensor_bytes,
)
from gnomon_runtime.pair.link import HINT_S, Link, Outcome, OwnBuffer, SharedBuffer, joined, memory_order
from gnomon_runtime.pair.remote_link import Incoming, Outgoing, address, prepare

pytestmark = pytest.mark.torch
SIZE = 1 << 20


@pytest.fixture
def both() -> Iterator[tuple[SharedBuffer, SharedBuffer]]:
    """The writer's and the reader's mapping of one buffer."""
    descriptor = shared_memory.make("test", SIZE)
    other = shared_memory.reader(descriptor)
    writer, reader = SharedBuffer(descriptor, writable=True), SharedBuffer(other, writable=False)
    os.close(descriptor)
    os.close(other)
    yield writer, reader
    writer.close()
    reader.close()


def through(both: tuple[SharedBuffer, SharedBuffer], tensors: list[Tensor], begin: int = 0) -> list[Tensor]:
    """Written, described by a message, and read."""
    writer, reader = both
    rows = writer.write(tensors, begin)
    assert rows is not None
    message = Message(Kind.COMPUTE, 1, 0, 1, len(tensors[0]) - begin, rows)
    return reader.read(decode(encode(message), reader.size_bytes).rows)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


LAYOUTS = {
    "rows": numbers(4, 3, 5, 7),
    "channels last": numbers(4, 3, 5, 7).to(memory_format=torch.channels_last),
    "other order": numbers(4, 7, 3, 5).permute(0, 2, 3, 1),
    "every second": numbers(4, 3, 5, 14)[..., ::2],
    "batch is not slowest": numbers(3, 4, 5, 7).permute(1, 0, 2, 3),
    "expanded": numbers(4, 1, 5, 7).expand(4, 3, 5, 7),
    "one axis": numbers(4),
    "a column, whose last row is one element with any stride": numbers(4, 5)[:, 2],
    "a column of columns": numbers(4, 5, 3)[:, 2:3, 1],
    "with a gradient": numbers(4, 3).requires_grad_(),
    "its sign kept aside": torch._neg_view(numbers(4, 3)),
    "no elements": numbers(4, 0, 5),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("begin", [0, 1, 3])
def test_values_and_layouts_arrive(both: tuple[SharedBuffer, SharedBuffer], name: str, begin: int) -> None:
    tensor = LAYOUTS[name]
    [arrived] = through(both, [tensor], begin)
    assert torch.equal(arrived, tensor[begin:])
    if memory_order(tensor) != tuple(range(tensor.dim())):
        assert arrived.stride() == tensor[begin:].clone(memory_format=torch.preserve_format).stride()
    assert arrived.data_ptr() % 64 == 0


def test_every_type_arrives(both: tuple[SharedBuffer, SharedBuffer]) -> None:
    from gnomon_runtime.engine.torch_support import TORCH_DTYPES  # noqa: PLC0415 - imports torch

    tensors = [torch.tensor([[0, 1, 2], [3, 4, 5]]).to(TORCH_DTYPES[name]) for name in DATATYPES]
    arrived = through(both, tensors)
    assert all(torch.equal(first, second) and first.dtype == second.dtype for first, second in zip(arrived, tensors, strict=True))


def test_floats_are_views_and_whole_numbers_copies(both: tuple[SharedBuffer, SharedBuffer]) -> None:
    """A kernel checks an index and then uses it: nobody may change it in between."""
    writer, _ = both
    floats, indices, truths = through(both, [torch.ones(2, 8), torch.ones(2, 8, dtype=torch.int64), torch.ones(2, 8).bool()])
    writer._raw.fill_(255)
    assert torch.isnan(floats).all()
    assert indices.eq(1).all()
    assert truths.all()


def test_a_truth_value_is_0_or_1_whatever_the_peer_wrote(both: tuple[SharedBuffer, SharedBuffer]) -> None:
    writer, reader = both
    writer._raw[:4] = torch.tensor([0, 1, 2, 255], dtype=torch.uint8)
    [truths] = reader.read([Row(0, 4, "BOOL", (4,), (0,))])
    assert truths.view(torch.uint8).tolist() == [0, 1, 1, 1]


def test_oversized_tensor_is_not_written(both: tuple[SharedBuffer, SharedBuffer]) -> None:
    writer, _ = both
    assert writer.write([torch.zeros(1, SIZE // 4)]) is not None
    assert writer.write([torch.zeros(1, SIZE // 4 + 1)]) is None
    assert writer.write([torch.zeros(1, 1), torch.zeros(1, SIZE // 4 - 8)]) is None
    assert writer.write([torch.zeros(1)] * (MAX_TENSORS + 1)) is None
    assert writer.write([torch.zeros([1] * 9)]) is None
    assert writer.write([torch.zeros(())]) is None
    assert writer.write([torch.zeros(2, dtype=torch.complex64)]) is None


def test_closing_unmaps() -> None:
    def mapped() -> int:
        return sum("gone-when-closed" in line for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())

    descriptor = shared_memory.make("gone-when-closed", SIZE)
    buffers = [SharedBuffer(descriptor, writable=True) for _ in range(3)]
    os.close(descriptor)
    assert mapped() == 3
    [kept] = buffers[0].read([Row(0, 4, "FP32", (1,), (0,))])
    for buffer in buffers:
        buffer.close()
    assert mapped() == 1
    del kept, buffers, buffer
    assert mapped() == 0


def test_joined_rows_lie_as_the_whole_would() -> None:
    for tensor in LAYOUTS.values():
        whole = joined(tensor[:3], tensor[3:])
        assert torch.equal(whole, tensor)
        assert memory_order(whole) == memory_order(tensor[:3])


STREAM_BYTES = 1 << 16
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Two ends of a TCP connection, neither of which blocks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    for end in (connection, other):
        prepare(end)
    yield connection, other
    connection.close()
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
    there, here = OwnBuffer(STREAM_BYTES), OwnBuffer(STREAM_BYTES)
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
    assert not incoming.is_partial
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
    there = OwnBuffer(STREAM_BYTES)
    raw = encode(message_of([torch.rand(2, 100)], there))
    ends[0].sendall(raw[: len(raw) // 2])
    incoming = Incoming(OwnBuffer(STREAM_BYTES))
    assert incoming.take(ends[1]) is None
    ends[0].close()
    with pytest.raises(packets.PeerGoneError):
        take(incoming, ends[1])
    assert incoming.is_partial


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
        encode(Message(Kind.DONE, 1, 0, 1, 2, (Row(0, STREAM_BYTES + 64, "UINT8", (2, STREAM_BYTES // 2 + 32), (0, 1)),))),
        encode(Message(Kind.DONE, 1, 0, 1, 2, (Row(STREAM_BYTES, 8, "FP32", (2, 1), (0, 1)),))),
        encode(Message(Kind.DONE, 1, 0, 1, 2, (Row(0, 80, "FP32", (2, 1), (0, 1)),))),
    ],
)
def test_nonsense_is_recognised_before_anything_is_received_after_it(ends: Ends, raw: bytes) -> None:
    ends[0].sendall(raw)
    with pytest.raises(NonsenseError):
        take(Incoming(OwnBuffer(STREAM_BYTES)), ends[1])


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
    there, here = OwnBuffer(STREAM_BYTES), OwnBuffer(STREAM_BYTES)
    message = message_of([torch.rand(2, 9), torch.ones(2, 3, dtype=torch.int64)], there)
    raw = bytearray(encode(message) + bytes(there.view(tensor_bytes(message))))
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    first, second = socket.socketpair()
    with first, second:
        second.settimeout(0)
        first.sendall(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
        first.close()
        incoming = Incoming(here)
        try:
            while (found := incoming.take(second)) is not None:
                assert tensor_bytes(found) <= STREAM_BYTES
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


@pytest.fixture
def links() -> Iterator[tuple[Link, Link]]:
    """A Body's link and its Shadow's."""
    first, second = packets.socket_pair()
    to, back = shared_memory.make("to", STREAM_BYTES), shared_memory.make("back", STREAM_BYTES)
    to_read, back_read = shared_memory.reader(to), shared_memory.reader(back)
    body = Link([first.detach(), to, back_read], body=True)
    shadow = Link([second.detach(), to_read, back], body=False)
    yield body, shadow
    body.close()
    shadow.close()


def answer(shadow: Link, sequence: int) -> None:
    rows = shadow.back.write([torch.ones(2, 4)])
    assert rows is not None
    assert shadow.send(Message(Kind.DONE, sequence, 0, 1, 2, rows))


def test_wake_up_hint_is_no_message(links: tuple[Link, Link]) -> None:
    body, shadow = links
    body.send_hint()
    assert shadow.pending() == []


def test_data_after_a_wake_up_hint_are_read(links: tuple[Link, Link]) -> None:
    body, shadow = links
    body.send_hint()
    assert shadow.pending() == []
    assert body.hand_over(0, 1, [torch.ones(2, 4)], 0) is None
    [message] = shadow.pending()
    assert message.kind is Kind.COMPUTE


def test_reader_does_not_poll_without_a_wake_up_hint(links: tuple[Link, Link]) -> None:
    _, shadow = links
    began_s = time.thread_time()
    assert not shadow.awaited()
    assert time.thread_time() - began_s < HINT_S


def test_wake_up_hint_polls_for_a_moment_only(links: tuple[Link, Link]) -> None:
    body, shadow = links
    body.send_hint()
    assert shadow.pending() == []
    began_s = time.thread_time()
    assert not shadow.awaited()
    assert not shadow.awaited()
    assert time.thread_time() - began_s < 2 * HINT_S


def test_the_end_of_the_path_is_found_too(links: tuple[Link, Link]) -> None:
    body, shadow = links
    body.send_hint()
    assert shadow.pending() == []
    body._socket.close()
    with pytest.raises(packets.PeerGoneError):
        shadow.pending()
    shadow.send_hint()


def test_an_answer_that_was_foretold_is_taken(links: tuple[Link, Link]) -> None:
    body, shadow = links
    assert body.hand_over(0, 1, [torch.zeros(2, 4)], 0) is None
    [asked] = shadow.pending()
    shadow.send_hint()
    answer(shadow, asked.sequence)
    taken = body.take_back(time.monotonic() + 10)
    assert isinstance(taken, Message)
    assert torch.equal(body.back.read(taken.rows)[0], torch.ones(2, 4))


def test_wake_up_hint_without_data_counts_as_late(links: tuple[Link, Link]) -> None:
    body, shadow = links
    assert body.hand_over(0, 1, [torch.zeros(2, 4)], 0) is None
    over = threading.Event()

    def send_hints() -> None:
        while not over.is_set():
            shadow.send_hint()

    thread = threading.Thread(target=send_hints)
    thread.start()
    try:
        assert body.take_back(time.monotonic() + 0.02) is Outcome.LATE
    finally:
        over.set()
        thread.join()


def test_a_segment_says_when_only_its_last_operation_is_missing(program: Callable[..., Program]) -> None:
    made = program([("aten.mul.Tensor", ("%x", 2.0), "a"), ("aten.relu.default", ("%a",), "y")], "y")
    segment = Segment(made, Flow(made).border(0, 2), {})
    x, called = torch.tensor([[1.0, -1.0, 2.0, -2.0]]), []
    for _ in range(3):
        [y] = segment.run(1, [x], lambda: called.append(1))
        assert torch.equal(y, torch.tensor([[2.0, 0.0, 4.0, 0.0]]))
    # The first run makes the plan that the others follow.
    assert len(called) == 2
