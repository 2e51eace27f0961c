"""What a client has done, asked of the kernel: the event loop tells of it in its turn, which may be too late.

On a busy machine what happened in the last milliseconds waits in the loop behind the result that makes an instance idle. Who left
meanwhile would still be in its next batch; and whose request came meanwhile would find its connection closed.
"""

from __future__ import annotations

import select

_HUNG_UP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
"""Linux has the first; elsewhere only a connection that is closed both ways is told."""
_ASKED = getattr(select, "POLLRDHUP", 0) | select.POLLIN
_poll = select.poll()


def has_hung_up(descriptor: int) -> bool:
    """Whether the other end of this socket sends nothing any more. About a microsecond; nothing is read."""
    return sent_and_hung_up(descriptor)[1]


def has_sent(descriptor: int) -> bool:
    """Whether something has come on this socket that was not read, if only its end."""
    return sent_and_hung_up(descriptor)[0]


def sent_and_hung_up(descriptor: int) -> tuple[bool, bool]:
    """Both, by one system call."""
    _poll.register(descriptor, _ASKED)
    try:
        found = _poll.poll(0)
    finally:
        _poll.unregister(descriptor)
    if not found:
        return False, False
    events = found[0][1]
    return bool(events & select.POLLIN), bool(events & _HUNG_UP)
