"""Clocks and calendar times.

Loops take a `Clock`; pure code takes `now_s`. `WallClock` is the monotonic clock of the machine. Seconds of a clock have no
epoch: only differences mean something. `utc_now_s` is for date stamps alone, because that clock is set, also back.

A calendar time is seconds since 1970 inside Gnomon, and RFC 3339 in every document:

    rfc3339(1795305600.5)                        2026-11-22T00:00:00.500000Z
    parse_time_s("2026-11-22T01:00:00.5+01:00")      1795305600.5
    seconds_of("not a moment")                   0.0

`parse_time_s` reads ISO 8601 as Python knows it, which is more than RFC 3339: any number of digits after the second, of which six
count, a comma before them, a blank for the T, a date alone. A caller for whom the zone must be explicit passes `zone_needed`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, Protocol

utc_now_s: Callable[[], float] = time.time  # noqa: TID251 - for date stamps only, which is what the rule asks for
"""Seconds since 1970, for date stamps only."""


class Clock(Protocol):
    """Now, and a pause."""

    def now_s(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    async def sleep(self, duration_s: float) -> None:
        """Return after `duration_s` seconds of this clock."""
        ...


class WallClock:
    """The monotonic clock of the machine."""

    now_s = staticmethod(time.monotonic)
    """The monotonic time in seconds. Read for every log line and request, so without a call in between."""

    async def sleep(self, duration_s: float) -> None:
        """Return after `duration_s` seconds, never before: an event loop's timer may round 1.4 ms to 1."""
        end_s = self.now_s() + duration_s
        await asyncio.sleep(duration_s)
        while (early_s := end_s - self.now_s()) > 0.0:  # noqa: ASYNC110 - it waits for nothing but the time
            await asyncio.sleep(early_s)


EARLIEST_S = datetime(1, 1, 1, tzinfo=UTC).timestamp()
LATEST_S = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
"""The bounds of a year of four digits. The time that Go calls zero, 0001-01-01T00:00:00Z, is the earliest."""


def rfc3339(at_s: float, digits: Literal["auto", "seconds", "microseconds"] = "auto") -> str:
    """RFC 3339 of seconds since 1970, in UTC: `2026-11-22T00:00:00.500000Z`, or in whole seconds, or always with six digits.

    One before the year 1 or after 9999 becomes the nearest that can be written.
    """
    moment = datetime.fromtimestamp(min(max(at_s, EARLIEST_S), LATEST_S), UTC)
    return moment.replace(tzinfo=None).isoformat(timespec=digits) + "Z"


def parse_time_s(text: str, *, zone_needed: bool = False) -> float:
    """Parse a calendar time to seconds since 1970, in UTC unless it names a zone.

    Raises:
        ValueError: the text is not a time, or names no zone although `zone_needed`.

    """
    # A `z` may be small (RFC 3339, 5.6), which Python does not read.
    moment = datetime.fromisoformat(text.strip().upper())
    if moment.tzinfo is None:
        if zone_needed:
            msg = f"{text[:100]!r} names no zone"
            raise ValueError(msg)
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


def seconds_of(text: object) -> float:
    """Like `parse_time_s` for a value of a foreign document; 0 if the value is not a time."""
    try:
        return parse_time_s(str(text))
    except ValueError:
        return 0.0
