"""The fields of messages, each read by a function that takes nothing on trust: type, length, bounds.

What does not fit is a `BadMessageError`: an instance may run a user's model, and keep to the protocol or not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

MAX_BLOCKS = 4096
MAX_BATCH = 1024
MAX_PATH = 4096
MAX_CPUS = 4096
MAX_BYTES = 1 << 50
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,299}")
_LETTERS = re.compile(r"[!-~]{1,1000}")


class BadMessageError(ValueError):
    """A message that nobody who keeps to the protocol sends."""


@dataclass(frozen=True, slots=True)
class Way:
    """Where a Body finds its Shadow on another node, and what it shows there."""

    url: str
    token: str = field(repr=False)


def read_id(message: Mapping[str, Any], name: str) -> str:
    """The id under this name.

    Raises:
        BadMessageError: it is none.

    """
    value = message.get(name)
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise BadMessageError(f"{name} is no id")
    return value


def blocks_of(message: Mapping[str, Any]) -> tuple[int, ...]:
    """Block numbers, ascending and each once."""
    blocks = wholes_of(message, "blocks", MAX_BLOCKS, MAX_BLOCKS)
    if any(later <= earlier for earlier, later in pairwise(blocks)):
        raise BadMessageError("blocks are not ascending")
    return blocks


def split_of(message: Mapping[str, Any]) -> tuple[int, ...]:
    """A table from batch to b_S, in which the Body keeps at least one sample of every batch that is split."""
    split = wholes_of(message, "split", MAX_BATCH, MAX_BATCH)
    if any(there > batch for batch, there in enumerate(split)):
        raise BadMessageError("a split leaves the Body nothing")
    return split


def expected_of(message: Mapping[str, Any]) -> tuple[tuple[float, ...], ...]:
    """Milliseconds by run and samples; nothing where nothing is known."""
    rows = list_of(message, "expected_ms", MAX_BLOCKS)
    found: list[tuple[float, ...]] = []
    for row in rows:
        if not isinstance(row, list) or len(row) > MAX_BATCH:
            raise BadMessageError("expected_ms is no table")
        found.append(tuple(_milliseconds(value) for value in row))
    return tuple(found)


def list_of(message: Mapping[str, Any], name: str, most: int) -> list[Any]:
    """A list of so many values at most; of nothing where it is not there.

    Raises:
        BadMessageError: it is none.

    """
    value = message.get(name, [])
    if not isinstance(value, list) or len(value) > most:
        raise BadMessageError(f"{name} is no list, or too long")
    return value


def wholes_of(message: Mapping[str, Any], name: str, most: int, below: int) -> tuple[int, ...]:
    """So many whole numbers at most, from 0 and below a bound.

    Raises:
        BadMessageError: they are none.

    """
    values = list_of(message, name, most)
    if not all(type(value) is int and 0 <= value < below for value in values):
        raise BadMessageError(f"{name} holds something else than small whole numbers")
    return tuple(values)


def whole_of(message: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """A whole number within bounds.

    Raises:
        BadMessageError: it is none.

    """
    value = message.get(name)
    # A truth value is an int to isinstance.
    if type(value) is not int or not least <= value <= most:
        raise BadMessageError(f"{name} is no whole number from {least} to {most}")
    return value


def milliseconds_of(message: Mapping[str, Any], name: str) -> float:
    """A time that is finite and not negative.

    Raises:
        BadMessageError: it is none.

    """
    return _milliseconds(message.get(name))


def _milliseconds(value: object) -> float:
    if type(value) not in (int, float) or not isinstance(value, int | float):
        raise BadMessageError("a time is no number")
    try:
        found = float(value)
    except OverflowError:
        raise BadMessageError("a time has no end") from None
    if not math.isfinite(found) or found < 0:
        raise BadMessageError("a time is negative or has no end")
    return found


def path_of(value: object) -> str:
    """An absolute path.

    Raises:
        BadMessageError: it is none.

    """
    if not isinstance(value, str) or not value.startswith("/") or len(value) > MAX_PATH or "\0" in value:
        raise BadMessageError("a path is none")
    return value


def truth_of(message: Mapping[str, Any], name: str) -> bool:
    """A truth value; false where it is not there.

    Raises:
        BadMessageError: it is none.

    """
    value = message.get(name, False)
    if not isinstance(value, bool):
        raise BadMessageError(f"{name} is no truth value")
    return value


def way_of(message: Mapping[str, Any]) -> Way | None:
    """Where a Shadow on another node is reached, and the token for it; None for one of this node.

    Raises:
        BadMessageError: these are none.

    """
    url, token = message.get("url"), message.get("token")
    if url is None and token is None:
        return None
    if not all(isinstance(text, str) and _LETTERS.fullmatch(text) for text in (url, token)):
        raise BadMessageError("a url or a token is none")
    return Way(str(url), str(token))
