"""Quantities as Kubernetes and Go write them, read as seconds, bytes and cores; and counts in words."""

from __future__ import annotations

import re

MEGABYTE = 2**20

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
    # Common user notation that Kubernetes does not know.
    "KB": 10**3, "MB": 10**6, "GB": 10**9,
}  # fmt: skip
_MOST_BYTES = 1 << 60
_MOST_CORES = 1e6
_MOST_SECONDS = 1e9
"""The longest duration, 30 years. A larger number is a mistake, and would overflow somewhere."""
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_duration_s(text: str) -> float:
    """Seconds of a Go duration (`1m30s`, `500ms`) or of a plain number of seconds.

    Raises ValueError for anything else.
    """
    text = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        seconds = float(text)
    else:
        parts = _DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            msg = f"{text[:100]!r} is not a duration: write it as 30s, 500ms or 1m30s"
            raise ValueError(msg)
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return _at_most(_MOST_SECONDS, seconds, text)


def parse_memory_bytes(text: str) -> int:
    """Bytes of a Kubernetes memory quantity (`128Mi`, `1G`, `1048576`).

    Raises ValueError for anything else.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in _BYTES:
        msg = f"{text[:100]!r} is not an amount of memory: write it as 128Mi, 1Gi or a number of bytes"
        raise ValueError(msg)
    return int(_at_most(_MOST_BYTES, float(match[1]) * _BYTES[match[2]], text))


def parse_cores(text: str) -> float:
    """Cores of a Kubernetes CPU quantity (`500m`, `2`, `0.5`).

    Raises ValueError for anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", text.strip())
    if match is None:
        msg = f"{text[:100]!r} is not an amount of CPU: write it as 500m, 0.5 or 2"
        raise ValueError(msg)
    return _at_most(_MOST_CORES, float(match[1]) / (1000 if match[2] else 1), text)


def many(count: float, word: str) -> str:
    """A number of things, in words: `1 core`, `2 cores`, `0.5 cores`."""
    return f"{count:.10g} {word}{'' if count == 1 else 's'}"


def _at_most(bound: float, value: float, text: str) -> float:
    if value > bound:
        msg = f"{text[:100]!r} is more than {bound:g}"
        raise ValueError(msg)
    return value
