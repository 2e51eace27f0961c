"""Names for calls: unique, cheap, and in the shape of a UUID, which is what clients of OpenFaaS expect.

The first part is drawn once per process, the last is a counter: 48 bits of it are used up after 280 million million calls.
"""

from __future__ import annotations

import itertools
import secrets

_RANDOM = secrets.token_hex(9)
_PREFIX = f"{_RANDOM[:8]}-{_RANDOM[8:12]}-4{_RANDOM[12:15]}-a{_RANDOM[15:18]}".encode()
_COUNTER = itertools.count(secrets.randbits(40))


def new_call_id() -> bytes:
    """A name that no other call has."""
    return b"%b-%012x" % (_PREFIX, next(_COUNTER))
