"""The reader of Knative's Stat message: bytes worked out by hand from the documentation of protocol buffers."""

import pytest

from gnomon_core import protobuf


def test_a_string_is_its_number_its_length_and_its_bytes() -> None:
    # Field 2, wire type 2: 2·8 + 2 = 0x12, then 7 bytes. The documentation's own example.
    assert protobuf.read(b"\x12\x07testing") == {2: [b"testing"]}


def test_a_varint_takes_seven_bits_a_byte() -> None:
    # 150 = 1·128 + 22: the lowest seven bits first. The documentation's own example.
    assert protobuf.read(b"\x08\x96\x01") == {1: [150]}
    assert protobuf.read(b"\x0a\x96\x01" + b"x" * 150) == {1: [b"x" * 150]}


def test_fields_of_other_types_are_skipped() -> None:
    # A fixed 64-bit number, a fixed 32-bit one and a message, before the double.
    data = b"\x09" + bytes(8) + b"\x15" + bytes(4) + b"\x1a\x00" + b"\x21" + bytes(6) + b"\x04\x40"

    assert protobuf.double(protobuf.read(data), 4) == 2.5


@pytest.mark.parametrize("data", [b"\x12", b"\x12\x07test", b"\x08", b"\x08" + b"\xff" * 11, b"\x0b", b"\x09\x00"])
def test_truncated_and_endless_data_is_not_a_message(data: bytes) -> None:
    with pytest.raises(protobuf.WireFormatError):
        protobuf.read(data)


def test_a_double_is_eight_bytes_and_0_where_it_is_left_out() -> None:
    # Field 2, wire type 1: 2·8 + 1 = 0x11; 2.5 is 0x4004000000000000, the lowest byte first.
    assert protobuf.double(protobuf.read(b"\x11" + bytes(6) + b"\x04\x40"), 2) == 2.5
    assert protobuf.double(protobuf.read(b""), 2) == 0.0
    for other in (b"\x10\x01", b"\x15" + bytes(4)):
        with pytest.raises(protobuf.WireFormatError):
            protobuf.double(protobuf.read(other), 2)
