"""Patterns of the shell: `*` any characters, `?` one, `[a-c]` one of these, a backslash the next one itself.

`filter_matches` is faas-cli's `--filter`, which knows only `*`.
"""

from __future__ import annotations

import re


def trim_prefix(value: str, pattern: str, *, longest: bool) -> str:
    """The value without the beginning that matches; nothing is taken where nothing matches or the pattern cannot be read."""
    matches = _compile(pattern)
    if matches is None:
        return value
    lengths = range(len(value), 0, -1) if longest else range(1, len(value) + 1)
    for length in lengths:
        if matches.fullmatch(value, 0, length):
            return value[length:]
    return value


def trim_suffix(value: str, pattern: str, *, longest: bool) -> str:
    """The same from the end. Its pattern is turned round, so a set in brackets cannot be read there, as in faas-cli."""
    return trim_prefix(value[::-1], pattern[::-1], longest=longest)[::-1]


def filter_matches(pattern: str, name: str) -> bool:
    """Whether a function's name matches a `--filter`."""
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), name, re.DOTALL) is not None


def _compile(pattern: str) -> re.Pattern[str] | None:
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "*":
            parts.append(".*")
        elif character == "?":
            parts.append(".")
        elif character == "[":
            end = pattern.find("]", at)
            if end <= at:
                return None
            parts.append(f"[{pattern[at:end]}]")
            at = end + 1
        elif character == "\\":
            if at == len(pattern):
                return None
            parts.append(re.escape(pattern[at]))
            at += 1
        else:
            parts.append(re.escape(character))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error:
        return None
