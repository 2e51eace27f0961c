"""What an instance writes to its standard output and error, line by line.

A pipe brings it; the loop reads it in small portions, so that a function which prints without end delays nobody. Lines are cut at
a length, and beyond a rate they are counted instead of passed on.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable

READ_BYTES = 64 * 1024
MAX_LINE_BYTES = 16 * 1024
LINES_PER_S = 1000
BURST_LINES = 2000
KEPT_LINES = 5
"""The last lines are kept: they say why an instance has ended."""


class LogPipe:
    """The reading end of an instance's log."""

    def __init__(self, descriptor: int, on_line: Callable[[str], None], now_s: Callable[[], float]) -> None:
        self._fd = descriptor
        self._on_line = on_line
        self._now_s = now_s
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._open = True
        self._allowance = float(BURST_LINES)
        self._counted_s = now_s()
        self._left_out = 0
        self.last: deque[str] = deque(maxlen=KEPT_LINES)
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._readable)

    def close(self) -> None:
        """Read what has been written so far and release the pipe."""
        for _ in range(64):
            if not self._open:
                return
            if not self._readable():
                break
        self._end()

    def _readable(self) -> bool:
        """Take one portion; whether there may be more."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._end()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._pass_on(line)
        if len(self._rest) > MAX_LINE_BYTES:
            self._pass_on(self._rest)
            self._rest = b""
        return True

    def _pass_on(self, line: bytes) -> None:
        text = line[:MAX_LINE_BYTES].decode(errors="replace").rstrip("\r")
        self.last.append(text)
        now_s = self._now_s()
        self._allowance = min(BURST_LINES, self._allowance + (now_s - self._counted_s) * LINES_PER_S)
        self._counted_s = now_s
        if self._allowance < 1:
            self._left_out += 1
            return
        self._allowance -= 1
        if self._left_out:
            self._on_line(f"… {self._left_out} lines left out: more than {LINES_PER_S} a second …")
            self._left_out = 0
        self._on_line(text)

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            if self._rest:
                self._pass_on(self._rest)
                self._rest = b""
            # Nothing is passed on any more, and whoever listened need not outlive the instance.
            self._on_line = _ignore


def _ignore(_: str) -> None:
    """Nothing is passed on after the end."""
