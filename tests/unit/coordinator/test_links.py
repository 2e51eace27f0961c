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


def test_what_is_not_taken_now_is_sent_later_with_descriptors_of_its_own(ends: Ends) -> None:
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


def test_one_that_never_listens_is_given_up_and_costs_no_descriptors(ends: Ends) -> None:
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


def test_one_that_never_stops_is_given_up(ends: Ends) -> None:
    link, theirs = ends
    for number in range(BURST):
        packets.send(theirs, {"number": number})
        assert link.receive(1000.0) is not None
    packets.send(theirs, {})
    with pytest.raises(LinkBrokenError, match="rate limit"):
        link.receive(1000.0)


def test_one_that_speaks_now_and_then_may_speak_for_ever(ends: Ends) -> None:
    link, theirs = ends
    for number in range(10 * BURST):
        packets.send(theirs, {"number": number})
        assert link.receive(1000.0 + number * 0.05) is not None


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"[1]", b"{", b"7", b"null", b"[" * 60_000, b'{"a": ' + b"9" * 9000 + b"}", b"x" * 70_000]
)
def test_what_is_no_message_breaks_it_and_leaves_no_descriptor(ends: Ends, data: bytes) -> None:
    link, theirs = ends
    nothing = os.open(os.devnull, os.O_RDONLY)
    before = open_descriptors()
    socket.send_fds(theirs, [data], [nothing] * 3)
    with pytest.raises(LinkBrokenError):
        link.receive(0.0)
    assert open_descriptors() == before
    os.close(nothing)


@pytest.mark.parametrize("count", [9, 64, 253])
def test_too_many_descriptors_break_it_and_leave_none(ends: Ends, count: int) -> None:
    link, theirs = ends
    nothing = os.open(os.devnull, os.O_RDONLY)
    before = open_descriptors()
    socket.send_fds(theirs, [b"{}"], [nothing] * count)
    with pytest.raises(LinkBrokenError, match="too many"):
        link.receive(0.0)
    assert open_descriptors() == before
    os.close(nothing)


def test_an_end_is_no_break(ends: Ends) -> None:
    link, theirs = ends
    assert link.receive(0.0) is None
    theirs.close()
    with pytest.raises(LinkEndedError):
        link.receive(0.0)
    with pytest.raises(LinkEndedError):
        link.send({})
