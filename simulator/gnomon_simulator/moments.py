"""What a time stamp in a file means: seconds from some beginning, or a moment of the calendar.

    12.5                            12.5 seconds from the beginning
    1700158546.68, 1700158546680    a moment since 1970, in s, ms, µs or ns, told by its size
    2023-11-16 18:15:46.6805900     a moment (ISO 8601), UTC unless it says otherwise

Moments become seconds from the earliest one of the file, so that "from the second hour on" means the same in every file.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnomon_core.dates import moment_s

SINCE_1970_S = 1e8
"""Three years. No recording is as long, and none is from before 1973."""
_PER_SECOND = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""From which size on a number since 1970 is in so many parts of a second: 1e11 seconds would be the year 5138."""


def seconds(text: str, unit_s: float | None = None) -> float:
    """The seconds that a stamp says, from its own beginning. `unit_s` is the unit of a plain number, where it is known.

    Raises:
        ValueError: it is neither a number nor a date with a time.

    """
    try:
        value = float(text)
    except ValueError:
        return moment_s(text)
    if unit_s is not None:
        return value * unit_s
    return next((value / parts for least, parts in _PER_SECOND if value >= least), value)


def from_the_first(times_s: Sequence[float]) -> list[float]:
    """Moments as seconds from the earliest; times that are no moments stay what they are."""
    first_s = min(times_s, default=0.0)
    return [time_s - first_s for time_s in times_s] if first_s >= SINCE_1970_S else list(times_s)
