"""How the text of an annotation or a label becomes a value: a reader takes a text, and raises ValueError or KeyError for others.

What is allowed is said to the user by the setting, not by the error here: `gnomon_core.settings` puts the two together.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gnomon_core.units import parse_duration_s

MAX_NAME_LENGTH = 253


def integer(low: int, high: int) -> Callable[[str], int]:
    """A whole number from `low` to `high`, both included."""

    def read(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return read


def number(low: float, high: float, *, scale: float = 1.0) -> Callable[[str], float]:
    """A number from `low` to `high`, both included, in the unit that is `scale` of the value's: 1e-3 for milliseconds."""

    def read(text: str) -> float:
        value = float(text)
        if not (math.isfinite(value) and low <= value <= high):
            raise ValueError(text)
        return value * scale

    return read


def duration_s(low_s: float, high_s: float) -> Callable[[str], float]:
    """A duration such as 1h30m, in seconds, both bounds included."""

    def read(text: str) -> float:
        seconds = parse_duration_s(text)
        if not low_s <= seconds <= high_s:
            raise ValueError(text)
        return seconds

    return read


def name(text: str) -> str:
    """A name as it is: not empty, without blanks, not longer than a Kubernetes name."""
    if not text or any(character.isspace() for character in text) or len(text) > MAX_NAME_LENGTH:
        raise ValueError(text)
    return text


def flag(text: str) -> bool:
    """True or false, in any case; 1 and 0 say the same."""
    return {"true": True, "false": False, "1": True, "0": False}[text.lower()]


def several(*names: str) -> Callable[[str], tuple[str, ...]]:
    """Some of these, with commas between them, in any order."""

    def read(text: str) -> tuple[str, ...]:
        asked = {one.strip() for one in text.split(",")}
        if not asked <= set(names):
            raise ValueError(text)
        return tuple(one for one in names if one in asked)

    return read


def choice(*names: str) -> Callable[[str], str]:
    """One of these."""

    def read(text: str) -> str:
        if text not in names:
            raise ValueError(text)
        return text

    return read
