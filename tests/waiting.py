"""Waiting for what nobody announces. What is slow on a busy machine is no failure, what never comes is.

A condition must stay true once it is: one that holds for a moment may be over before anybody looks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 60.0
EVERY_S = 0.01
T = TypeVar("T")


def eventually(holds: Callable[[], T], why: str = "it never did", limit_s: float = PATIENCE_S) -> T:
    """What `holds` answers once that is true."""
    end_s = time.monotonic() + limit_s
    while not (answer := holds()):
        assert time.monotonic() < end_s, why
        time.sleep(EVERY_S)
    return answer


async def until(holds: Callable[[], T], why: str = "it never did", limit_s: float = PATIENCE_S) -> T:
    """The same on an event loop, whose own state `holds` may look at."""
    end_s = time.monotonic() + limit_s
    while not (answer := holds()):
        assert time.monotonic() < end_s, why
        await asyncio.sleep(EVERY_S)
    return answer
