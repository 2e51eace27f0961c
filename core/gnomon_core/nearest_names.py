"""The known name that a misspelt one was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST_CHARACTERS = 200
"""The most characters that are compared: the cost is the product of both lengths, and a client chooses the name."""
_SLIP_CHARACTERS = 2
"""The most characters that only one of the two names has: two for `mim` and `min`, one for `gnomo/` and `gnomon/`."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like `name`; empty where none is like it."""
    if len(name) > _MOST_CHARACTERS:
        return ""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), "")


def misspelt(name: str, known: Iterable[str]) -> str:
    """The known name of which `name` is a probable typing error; empty if there is none, or if `name` is known.

    Stricter than `nearest`, for names that may belong to another system: `com.openfaas.scale.up.window` is not ours.
    """
    suggestion = nearest(name, known)
    if not suggestion or suggestion == name:
        return ""
    matcher = difflib.SequenceMatcher(None, name, suggestion, autojunk=False)
    common = sum(block.size for block in matcher.get_matching_blocks())
    return suggestion if len(name) + len(suggestion) - 2 * common <= _SLIP_CHARACTERS else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`Did you mean X?`, or nothing."""
    suggestion = nearest(name, known)
    return f"Did you mean {suggestion}?" if suggestion else ""
