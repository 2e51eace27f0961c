"""A reader of protocol buffers' wire format, for one message: Knative's Stat, two doubles for each pod and second.

    message      (key value)*                key     field number × 8 + wire type, a varint
    varint (0)   7 bits a byte, lowest first; the highest bit says that another byte follows
    fixed (1, 5) 8 or 4 bytes, lowest first: a double
    length (2)   a varint, then so many bytes

The caller picks the fields that it knows; others are skipped, since newer versions send more. The node plugin's messages are read
by the `protobuf` library (docs/decisions/0055). https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from typing import TypeAlias

_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED_64: 8, _FIXED_32: 4}
_MOST_SHIFT = 63
_DOUBLE = struct.Struct("<d")
Fields: TypeAlias = dict[int, list[int | bytes]]
"""A message that was read: the values of each field, in their order."""


class WireFormatError(ValueError):
    """The bytes are not a valid message."""


def read(data: bytes) -> Fields:
    """The values of each field.

    Raises:
        WireFormatError: it is truncated, or has an unknown wire type.

    """
    fields: Fields = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        value: int | bytes
        if wire_type == _VARINT:
            value, at = _varint(data, at)
        elif wire_type == _LENGTH:
            length, at = _varint(data, at)
            value, at = _bytes(data, at, length)
        elif wire_type in _FIXED_BYTES:
            value, at = _bytes(data, at, _FIXED_BYTES[wire_type])
        else:
            raise WireFormatError(f"unknown wire type {wire_type}")
        fields.setdefault(number, []).append(value)
    return fields


def double(fields: Fields, number: int) -> float:
    """A field of type double; 0 where it was left out.

    Raises:
        WireFormatError: it is not a double.

    """
    value = fields.get(number, [bytes(_DOUBLE.size)])[-1]
    if not isinstance(value, bytes) or len(value) != _DOUBLE.size:
        raise WireFormatError(f"field {number} is not a double")
    return float(_DOUBLE.unpack(value)[0])


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > _MOST_SHIFT:
            raise WireFormatError("a varint does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 - no byte follows
            return value, at


def _bytes(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    if length > len(data) - at:
        raise WireFormatError("truncated")
    return data[at : at + length], at + length
