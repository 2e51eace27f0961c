"""What a client has done, asked of the kernel: the event loop tells of it in its turn, which may be too late.

On a busy machine what happened in the last milliseconds waits in the loop behind the result that makes an instance idle. Who left
meanwhile would still be in its next batch; and whose request came meanwhile would find its connection closed.
"""

from __future__ import annotations

import select

_HUNG_UP = getattr(select, "POLLRDHUP", 0)  # Linux; elsewhere only a connection that is closed both ways is told
_poll = select.poll()


def has_hung_up(descriptor: int) -> bool:
    """Whether the other end of this socket sends nothing any more. About a microsecond; nothing is read."""
    return _has(descriptor, _HUNG_UP)


def has_sent(descriptor: int) -> bool:
    """Whether something has come on this socket that was not read, if only its end."""
    return _has(descriptor, select.POLLIN)


def _has(descriptor: int, event: int) -> bool:
    _poll.register(descriptor, event)
    try:
        return bool(_poll.poll(0))
    finally:
        _poll.unregister(descriptor)
