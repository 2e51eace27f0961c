"""Answers with what it was sent: the function that tests of a cluster ask."""

from __future__ import annotations

from typing import Any


def handle(event: Any, _context: Any) -> bytes:
    """The body."""
    body: bytes = event.body
    return body
