"""Whether a client has closed its connection, asked of the kernel: the event loop tells of it in its turn, which may be too late.

On a busy machine what happened in the last milliseconds waits in the loop behind the result that makes an instance idle. Who left
meanwhile would still be in its next batch.
"""

from __future__ import annotations

import select

_HUNG_UP = getattr(select, "POLLRDHUP", 0)  # Linux; elsewhere only a connection that is closed both ways is told
_poll = select.poll()


def has_hung_up(descriptor: int) -> bool:
    """Whether the other end of this socket sends nothing any more. About a microsecond; nothing is read."""
    _poll.register(descriptor, _HUNG_UP)
    try:
        return bool(_poll.poll(0))
    finally:
        _poll.unregister(descriptor)
