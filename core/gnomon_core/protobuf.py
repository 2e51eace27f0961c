"""Protocol buffers' wire format, as far as the kubelet's and Knative's messages need it, without a compiler and a runtime.

    message      (key value)*                key     field number × 8 + wire type, a varint
    varint (0)   7 bits a byte, lowest first; the highest bit says that another byte follows
    fixed (1, 5) 8 or 4 bytes, lowest first: a double
    length (2)   a varint, then so many bytes: a text, a message, or an entry of a map, {1: key, 2: value}

Fields that are not asked for are skipped, as every reader has to: newer versions send more. https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeAlias

_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED_64: 8, _FIXED_32: 4}
_MOST_SHIFT = 63
_DOUBLE = struct.Struct("<d")
Fields: TypeAlias = dict[int, list[int | bytes]]
"""A message that was read: the values of each field, in their order."""


class WireFormatError(ValueError):
    """The bytes are no message."""


def read(data: bytes) -> Fields:
    """Take a message apart.

    Raises:
        WireFormatError: it is cut off, or has a wire type that there is not.

    """
    found: Fields = {}
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
            raise WireFormatError(f"wire type {wire_type}")
        found.setdefault(number, []).append(value)
    return found


def text(found: Fields, number: int) -> str:
    """A field of type string; empty where it was left out.

    Raises:
        WireFormatError: it is no text.

    """
    value = found.get(number, [b""])[-1]
    if not isinstance(value, bytes):
        raise WireFormatError(f"field {number} is no text")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise WireFormatError(f"field {number} is no UTF-8") from None


def flag(found: Fields, number: int) -> bool:
    """A field of type bool; false where it was left out."""
    return bool(found.get(number, [0])[-1])


def double(found: Fields, number: int) -> float:
    """A field of type double; 0 where it was left out.

    Raises:
        WireFormatError: it is none.

    """
    value = found.get(number, [bytes(_DOUBLE.size)])[-1]
    if not isinstance(value, bytes) or len(value) != _DOUBLE.size:
        raise WireFormatError(f"field {number} is no double")
    return float(_DOUBLE.unpack(value)[0])


def texts(found: Fields, number: int) -> dict[str, str]:
    """A field of type map<string, string>.

    Raises:
        WireFormatError: it is none.

    """
    entries: dict[str, str] = {}
    for value in found.get(number, []):
        if not isinstance(value, bytes):
            raise WireFormatError(f"field {number} is no map")
        entry = read(value)
        entries[text(entry, 1)] = text(entry, 2)
    return entries


def written(fields: Mapping[int, str | bool | bytes | Mapping[str, str]]) -> bytes:
    """A message with these fields: texts, truth values, messages as bytes, and maps of texts. What is empty is left out."""
    parts: list[bytes] = []
    for number, value in fields.items():
        if isinstance(value, bool):
            parts += [_number(number << 3 | _VARINT), b"\x01"] if value else []
        elif isinstance(value, Mapping):
            parts += [_long(number, _long(1, key.encode()) + _long(2, entry.encode())) for key, entry in value.items()]
        else:
            data = value.encode() if isinstance(value, str) else value
            # An empty message says something: that it is there.
            parts += [_long(number, data)] if data or isinstance(value, bytes) else []
    return b"".join(parts)


def _long(number: int, data: bytes) -> bytes:
    return _number(number << 3 | _LENGTH) + _number(len(data)) + data


def _number(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > _MOST_SHIFT:
            raise WireFormatError("a number without an end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 - no byte follows
            return value, at


def _bytes(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    if length > len(data) - at:
        raise WireFormatError("it is cut off")
    return data[at : at + length], at + length
