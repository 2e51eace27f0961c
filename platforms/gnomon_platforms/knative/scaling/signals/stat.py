"""What queue-proxy tells of the last second, at port 9090: one protobuf message `Stat` of `pkg/autoscaler/metrics/stat.proto`.

The message has seven fields, of which four are doubles that matter here, so it is read without a protobuf library: a tag says
the field's number and how it is written, and what is not known is stepped over.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

PAGE = "/metrics"
MOST_BYTES = 4096
"""A pod's name has 253 bytes at most, and all else is 50."""
MOST = 1e6
"""No pod holds, or is sent in a second, more requests."""

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_DOUBLE = struct.Struct("<d")
_MAX_VARINT_BYTES = 10


@dataclass(frozen=True, slots=True)
class PodStat:
    """One pod's last second: requests in it on average, and how many came; `proxied_…` is the part that came by an activator."""

    concurrency: float = 0.0
    proxied_concurrency: float = 0.0
    rps: float = 0.0
    proxied_rps: float = 0.0


_FIELDS = {2: "concurrency", 3: "proxied_concurrency", 4: "rps", 5: "proxied_rps"}


def read_stat(data: bytes) -> PodStat:
    """The statistics in a message.

    Raises ValueError for what is none.
    """
    values: dict[str, float] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_EIGHT, _FOUR):
            size = 8 if kind == _EIGHT else 4
        else:
            msg = f"a field of kind {kind}"
            raise ValueError(msg)
        if at + size > len(data):
            msg = "a message that breaks off"
            raise ValueError(msg)
        if kind == _EIGHT and number in _FIELDS:
            (value,) = _DOUBLE.unpack_from(data, at)
            if not 0.0 <= value <= MOST:
                msg = f"field {number} is {value}"
                raise ValueError(msg)
            values[_FIELDS[number]] = value
        at += size
    return PodStat(**values)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where what follows begins."""
    value = 0
    for shift in range(_MAX_VARINT_BYTES):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:  # noqa: PLR2004 - the highest bit says that more follows
            return value, at
    msg = "a number that does not end"
    raise ValueError(msg)
