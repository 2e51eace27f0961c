"""Polling helpers for tests: wait until a condition holds, with a timeout that a busy machine does not reach.

A condition must stay true once it is: a condition that holds only for a moment may be over between two polls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

TIMEOUT_S = 60.0
POLL_S = 0.01
T = TypeVar("T")


def eventually(condition: Callable[[], T], why: str = "it never did", limit_s: float = TIMEOUT_S) -> T:
    """Poll `condition` until its result is true, and return the result; fails with `why` after `limit_s`."""
    end_s = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < end_s, why
        time.sleep(POLL_S)
    return value


async def until(condition: Callable[[], T], why: str = "it never did", limit_s: float = TIMEOUT_S) -> T:
    """Poll as `eventually` does, on the event loop, so that `condition` may read the loop's own state."""
    end_s = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < end_s, why
        await asyncio.sleep(POLL_S)
    return value
