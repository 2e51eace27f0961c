"""Header lines of requests and answers: what is passed to the function, what comes back, and what the gateway sets.

Hop-by-hop headers belong to one connection and are dropped, with whatever `Connection` names (RFC 9110, 7.6.1). The origin of
a request is set by the gateway and never believed from outside; so is what marks an answer as the gateway's own error.
A function's header lines are validated first, because a line break in one would be a second answer (response splitting).

Call ids are unique, cheap and in the shape of a UUID, as clients of OpenFaaS expect: a random prefix per process and a counter of
48 bits.
"""

from __future__ import annotations

import itertools
import re
import secrets
import time
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus

from gnomon_core.errors import INTERNAL_HEADER, INTERNAL_NAME, GnomonError, bad_request
from gnomon_core.wire import Member, Refusal

HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
        b"trailers", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
_OURS = frozenset({b"content-length", b"date", b"x-openfaas-internal", b"x-call-id", b"x-start-time", b"x-duration-seconds"})
_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+: ?[^\x00-\x08\x0a-\x1f\x7f]*")
_RETRY_AFTER = re.compile(rb"(?im)^retry-after: ?(\d{1,9})$")
_INTERNAL = b"%b: %b\r\n" % (INTERNAL_HEADER.lower().encode(), INTERNAL_NAME.encode())
_CACHED_BYTES = 512


class UnfitHeadersError(ValueError):
    """Header lines that cannot be sent."""


STATUS_LINES = tuple(
    b"HTTP/1.1 %d %s\r\n" % (code, HTTPStatus(code).phrase.encode() if code in list(HTTPStatus) else b"Unknown")
    for code in range(1000)
)


def error_lines(error: GnomonError) -> bytes:
    """The header lines of an error's answer."""
    return b"".join([b"%b: %b\r\n" % (name.lower().encode(), value.encode()) for name, value in error.headers().items()])


def last_response(error: GnomonError, lines: bytes = b"") -> bytes:
    """The whole answer of an error after which the connection is closed. `lines` are further header lines."""
    body = error.body()
    length = b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    return b"".join((STATUS_LINES[error.status], lines, error_lines(error), length, body))


def member_lines(member: Member) -> bytes:
    """The header lines of a response: `response_lines`, plus `refusal_lines` for an error of the gateway.

    Raises:
        UnfitHeadersError: a line is no header.

    """
    lines = response_lines(member.meta)
    return lines + _INTERNAL if isinstance(member, Refusal) else lines


def refusal_lines(member: Member) -> bytes:
    """The header lines of a gateway's error: that it is internal, and Retry-After. Empty for a function's own error."""
    if not isinstance(member, Refusal):
        return b""
    again = _RETRY_AFTER.search(member.meta)
    return _INTERNAL + (b"retry-after: %b\r\n" % again[1] if again else b"")


def response_lines(meta: bytes) -> bytes:
    r"""A function's header lines (`Name: value`, joined by `\n`) as they are sent, without those that the gateway sets.

    Raises:
        UnfitHeadersError: a line is no header.

    """
    return _cached_lines(meta) if len(meta) <= _CACHED_BYTES else _lines(meta)


@lru_cache(maxsize=512)
def _cached_lines(meta: bytes) -> bytes:
    # Most functions answer with the same few header blocks.
    return _lines(meta)


def _lines(meta: bytes) -> bytes:
    kept: list[bytes] = []
    for line in meta.split(b"\n"):
        if not line:
            continue
        if _LINE.fullmatch(line) is None:
            raise UnfitHeadersError(line[:100].decode("latin-1"))
        name = line.partition(b":")[0].lower()
        if name not in HOP_BY_HOP and name not in _OURS:
            kept.append(line + b"\r\n")
    return b"".join(kept)


def named_by_connection(value: bytes) -> frozenset[bytes]:
    """The header names that a `Connection` header adds to the hop-by-hop ones."""
    return frozenset(token.strip().lower() for token in value.split(b","))


DEADLINE_HEADER = b"x-gnomon-deadline-ms"


def read_deadline_s(value: bytes) -> float:
    """The seconds that an `X-Gnomon-Deadline-Ms` header allows.

    Raises:
        GnomonError: 400 `invalid_deadline`.

    """
    try:
        deadline_ms = float(value)
    except ValueError:
        deadline_ms = 0.0
    if not 0 < deadline_ms < float("inf"):
        raise bad_request("invalid_deadline", "X-Gnomon-Deadline-Ms is not a number of milliseconds above 0.", "Send 500, say.")
    return deadline_ms / 1e3


MAX_BYTES = 128
"""The longest call id that is taken from a caller; longer ones are cut."""

_RANDOM = secrets.token_hex(9)
_PREFIX = f"{_RANDOM[:8]}-{_RANDOM[8:12]}-4{_RANDOM[12:15]}-a{_RANDOM[15:18]}".encode()
_COUNTER = itertools.count(secrets.randbits(40))


def new_call_id() -> bytes:
    """A unique call id."""
    return b"%b-%012x" % (_PREFIX, next(_COUNTER))


def call_id_of(headers: Mapping[bytes, bytes]) -> bytes:
    """The caller's own call id, or a new one."""
    return headers.get(b"x-call-id", b"")[:MAX_BYTES] or new_call_id()


def lines_of(call_id: bytes, began_ns: int, began_s: float) -> bytes:
    """An answer's header lines: the call, when it began (ns since 1970), and how long it took by the monotonic clock."""
    return b"x-call-id: %b\r\nx-start-time: %d\r\nx-duration-seconds: %.6f\r\n" % (
        call_id,
        began_ns,
        time.monotonic() - began_s,
    )
