"""A timer that is exact to about a tenth of a millisecond.

Event loops count in whole milliseconds, which would make a generator of thousands of requests per second send them in bunches.
Linux offers timers as file descriptors with the kernel's own resolution; Python 3.11 does not wrap them yet, two calls do.
Elsewhere the loop's timer has to be good enough, and the generator's reported lag says what it was.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
import time
from collections.abc import Callable

_ITIMERSPEC = struct.Struct("@qqqq")
_ABSOLUTE = 1
_SOONEST_S = 1e-6


class Alarm:
    """Calls `ring` at or just after the time it was last set to, on `time.monotonic`'s clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._libc: ctypes.CDLL | None = None
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create")
            loop.add_reader(self._fd, self._expired)

    def set(self, at_s: float) -> None:
        """Ring at this time, at once if it has passed; whatever was set before is forgotten."""
        if self._libc is None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(max(0.0, at_s - time.monotonic()), self._ring)
            return
        # All zero would switch the timer off.
        seconds, fraction = divmod(max(at_s, _SOONEST_S), 1.0)
        wanted = _ITIMERSPEC.pack(0, 0, int(seconds), int(fraction * 1e9))
        if self._libc.timerfd_settime(self._fd, _ABSOLUTE, wanted, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        """Never ring again."""
        if self._timer is not None:
            self._timer.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # it was set again between expiring and being read
        self._ring()
