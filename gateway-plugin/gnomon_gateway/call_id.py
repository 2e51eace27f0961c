"""Names for calls: unique, cheap, and in the shape of a UUID, as clients of OpenFaaS expect; and what answers say of them.

The first part is drawn once per process, the last is a counter: 48 bits of it are used up after 280 million million calls.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Mapping

MAX_BYTES = 128
"""Of a name that the caller has given."""

_RANDOM = secrets.token_hex(9)
_PREFIX = f"{_RANDOM[:8]}-{_RANDOM[8:12]}-4{_RANDOM[12:15]}-a{_RANDOM[15:18]}".encode()
_COUNTER = itertools.count(secrets.randbits(40))


def new_call_id() -> bytes:
    """A name that no other call has."""
    return b"%b-%012x" % (_PREFIX, next(_COUNTER))


def call_id_of(headers: Mapping[bytes, bytes]) -> bytes:
    """The caller's own name for it, where there is one."""
    return headers.get(b"x-call-id", b"")[:MAX_BYTES] or new_call_id()


def lines_of(call_id: bytes, began_ns: int, began_s: float) -> bytes:
    """An answer's header lines: the call, when it began (ns since 1970), and how long it took by the monotonic clock."""
    return b"x-call-id: %b\r\nx-start-time: %d\r\nx-duration-seconds: %.6f\r\n" % (
        call_id,
        began_ns,
        time.monotonic() - began_s,
    )
