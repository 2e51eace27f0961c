"""Moments of the calendar: seconds since 1970 in here, RFC 3339 wherever they are written down.

    rfc3339(1795305600.5)                        2026-11-22T00:00:00.500000Z
    moment_s("2026-11-22T01:00:00.5+01:00")      1795305600.5
    seconds_of("whatever Kubernetes says")       0.0

What is read is ISO 8601 as Python knows it, which is more than RFC 3339: any number of digits after the second, of which six
count, a comma before them, a blank for the T, a date alone. Who must know that a moment is the same for everybody asks for its
zone. What time it is now says `gnomon_core.clock.utc_now_s`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

EARLIEST_S = datetime(1, 1, 1, tzinfo=UTC).timestamp()
LATEST_S = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
"""What a year of four digits can say. The time that Go calls zero, 0001-01-01T00:00:00Z, is the earliest."""


def rfc3339(at_s: float, digits: Literal["auto", "seconds", "microseconds"] = "auto") -> str:
    """A moment in UTC: `2026-11-22T00:00:00.500000Z`, or up to its whole second, or always with six digits after it.

    One before the year 1 or after 9999 becomes the nearest that can be written.
    """
    moment = datetime.fromtimestamp(min(max(at_s, EARLIEST_S), LATEST_S), UTC)
    return moment.replace(tzinfo=None).isoformat(timespec=digits) + "Z"


def moment_s(text: str, *, zone_needed: bool = False) -> float:
    """Seconds since 1970 of a moment, in UTC unless it says otherwise.

    Raises:
        ValueError: it is none, or names no zone where one is needed.

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
    """The same of what somebody else's document says, or does not; 0 where that is no moment."""
    try:
        return moment_s(str(text))
    except ValueError:
        return 0.0
