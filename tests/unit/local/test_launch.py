import os
import socket

import pytest

from gnomon_core import packets
from gnomon_core.launch import Launch, Limits, Order, Sandbox


def test_an_order_reads_back_as_it_was_written() -> None:
    launch = Launch("model", "f.ns", "f-1", 2, 8, {"A": "b"}, {"program": "/p"})
    sandbox = Sandbox(7, ("/r",), ("/w",), ("/h",), read_only_root=True, secrets={"s": b"\x00\xff"}, limits=Limits(1, 2, 3, 4.5))
    order = Order(launch, sandbox, entered=True, cpus=(0, 3))
    assert Order.from_json(order.to_json()) == order


def test_a_sandbox_may_be_described_by_what_differs_from_the_usual() -> None:
    assert Sandbox.from_json('{"uid": 5, "hidden": ["/x"]}') == Sandbox(uid=5, hidden=("/x",))


def test_a_message_brings_its_descriptors_and_they_are_not_inherited() -> None:
    left, right = packets.socket_pair()
    with left, right:
        file = packets.sealed_file("test", b"content")
        packets.send(left, {"do": "it"}, [file, file])
        os.close(file)
        message, descriptors = packets.receive(right)
        assert message == {"do": "it"}
        assert [packets.read_file(descriptor) for descriptor in descriptors] == [b"content"] * 2
        assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
        with pytest.raises(PermissionError):
            os.write(descriptors[0], b"x")
        for descriptor in descriptors:
            os.close(descriptor)


def test_the_end_of_the_other_side_is_told() -> None:
    left, right = packets.socket_pair()
    with right:
        left.close()
        with pytest.raises(packets.PeerGoneError):
            packets.receive(right)
        with pytest.raises(packets.PeerGoneError):
            packets.send(right, {})


def test_a_message_that_does_not_fit_is_refused_where_it_is_made() -> None:
    left, right = packets.socket_pair()
    with left, right, pytest.raises(ValueError, match="at most"):
        packets.send(left, {"text": "x" * packets.MAX_PACKET_BYTES})
    assert isinstance(left, socket.socket)
