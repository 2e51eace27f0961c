"""Progress of a long run on stderr: a bar on a terminal, a line every few seconds elsewhere.

    simulate [##########..............]  41 %   9 of 23 h   12 s, about 17 s left

The remaining time assumes the mean speed so far. Runs shorter than `QUIET_S` write nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

QUIET_S = 2.0
TERMINAL_S = 0.2
LINES_S = 10.0
CELLS = 24
MINUTE_S, HOUR_S = 60.0, 3600.0


class Progress:
    """The progress of one run; `unit` says what is counted, seconds of virtual time where it is empty."""

    def __init__(self, name: str, unit: str = "", out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._unit, self._clock = name, unit, clock
        self._out = sys.stderr if out is None else out
        self._every_s = TERMINAL_S if self._out.isatty() else LINES_S
        self._begun_s = clock()
        self._next_s = self._begun_s + max(QUIET_S, self._every_s)
        self._shown = False

    def at(self, done: float, total: float) -> None:
        """Report `done` of `total`; rate-limited to one line an interval."""
        now_s = self._clock()
        if now_s < self._next_s or total <= 0.0:
            return
        self._next_s, self._shown = now_s + self._every_s, True
        text = progress_text(self._name, self._unit, done, total, now_s - self._begun_s)
        self._out.write(f"\r\x1b[K{text}" if self._out.isatty() else f"{text}\n")
        self._out.flush()

    def end(self) -> None:
        """Clear a terminal's bar at the end of the run; lines elsewhere stay."""
        if self._shown and self._out.isatty():
            self._out.write("\r\x1b[K")
            self._out.flush()


def progress_text(name: str, unit: str, done: float, total: float, spent_s: float) -> str:
    """Format the progress line after `spent_s` seconds."""
    share = min(1.0, done / total)
    bar = "#" * int(share * CELLS)
    remaining = f", about {span(spent_s * (1 - share) / share)} left" if share > 0.0 else ""
    position = f"{done:g} of {total:g} {unit}" if unit else f"{span(done)} of {span(total)} simulated"
    return f"{name} [{bar.ljust(CELLS, '.')}] {share:4.0%}   {position}   {span(spent_s)}{remaining}"


def span(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours: 12 s, 3.4 min, 23.5 h."""
    if seconds < 2 * MINUTE_S:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE_S:.1f} min" if seconds < 2 * HOUR_S else f"{seconds / HOUR_S:.1f} h"
