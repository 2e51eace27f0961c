"""A link to somebody who may not listen, may not stop, and may send anything."""

import os
import socket
from collections.abc import Iterator

import pytest

from gnomon_coordinator.links import BURST, Link, LinkBrokenError, LinkEndedError
from gnomon_core import packets

Ends = tuple[Link, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = packets.socket_pair()
    link = Link(ours, max_waiting=4)
    yield link, theirs
    link.close()
    theirs.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_outbox_keeps_messages_with_duplicated_descriptors(ends: Ends) -> None:
    link, theirs = ends
    before = open_descriptors()
    read, write = os.pipe()
    sent = 0
    while not link.wants_to_write:
        link.send({"number": sent, "padding": "x" * 8000})
        sent += 1
    link.send({"last": True}, [write])
    os.close(write)
    for number in range(sent):
        assert packets.receive(theirs)[0]["number"] == number
        link.flush()
    message, descriptors = packets.receive(theirs)
    assert message == {"last": True}
    os.write(descriptors[0], b"x")
    assert os.read(read, 1) == b"x"
    for descriptor in (read, *descriptors):
        os.close(descriptor)
    assert open_descriptors() == before


def test_peer_that_never_reads_breaks_the_link_without_leaking_descriptors(ends: Ends) -> None:
    link, _ = ends
    nothing = os.open(os.devnull, os.O_RDONLY)
    before = open_descriptors()
    for _ in range(1000):
        try:
            link.send({"padding": "x" * 8000}, [nothing])
        except LinkBrokenError as error:
            assert "outbox is full" in str(error)  # noqa: PT017 - how many it takes is the kernel's to say
            break
    else:
        pytest.fail("it was never given up")
    link.close()
    os.close(nothing)
    assert open_descriptors() == before - 2


def test_peer_beyond_its_rate_limit_breaks_the_link(ends: Ends) -> None:
    link, theirs = ends
    for number in range(BURST):
        packets.send(theirs, {"number": number})
        assert link.receive(1000.0) is not None
    packets.send(theirs, {})
    with pytest.raises(LinkBrokenError, match="rate limit"):
        link.receive(1000.0)


def test_peer_within_its_rate_limit_is_never_limited(ends: Ends) -> None:
    link, theirs = ends
    for number in range(10 * BURST):
        packets.send(theirs, {"number": number})
        assert link.receive(1000.0 + number * 0.05) is not None


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"[1]", b"{", b"7", b"null", b"[" * 60_000, b'{"a": ' + b"9" * 9000 + b"}", b"x" * 70_000]
)
def test_invalid_packet_breaks_the_link_without_leaking_descriptors(ends: Ends, data: bytes) -> None:
    link, theirs = ends
    nothing = os.open(os.devnull, os.O_RDONLY)
    before = open_descriptors()
    socket.send_fds(theirs, [data], [nothing] * 3)
    with pytest.raises(LinkBrokenError):
        link.receive(0.0)
    assert open_descriptors() == before
    os.close(nothing)


@pytest.mark.parametrize("count", [9, 64, 253])
def test_too_many_descriptors_break_the_link_without_leaking_any(ends: Ends, count: int) -> None:
    link, theirs = ends
    nothing = os.open(os.devnull, os.O_RDONLY)
    before = open_descriptors()
    socket.send_fds(theirs, [b"{}"], [nothing] * count)
    with pytest.raises(LinkBrokenError, match="too many"):
        link.receive(0.0)
    assert open_descriptors() == before
    os.close(nothing)


def test_closed_socket_is_told_apart_from_a_broken_link(ends: Ends) -> None:
    link, theirs = ends
    assert link.receive(0.0) is None
    theirs.close()
    with pytest.raises(LinkEndedError):
        link.receive(0.0)
    with pytest.raises(LinkEndedError):
        link.send({})
