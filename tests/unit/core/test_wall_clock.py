"""A sleeper of the machine's clock never wakes early: whoever sleeps until a bin ends must find it ended."""

import asyncio
import time

import pytest
import uvloop

from gnomon_core.clock import WallClock

SLEEPS_S = (0.0, -1.0, 0.0001, 0.0004, 0.0006, 0.0012, 0.0014, 0.0024, 0.0034)
"""uvloop's timers count whole milliseconds and round: 1.4 ms would end after 1."""


async def earliest_s() -> float:
    clock, late_s = WallClock(), []
    for duration_s in SLEEPS_S * 3:
        begin_s = time.monotonic()
        await clock.sleep(duration_s)
        late_s.append(time.monotonic() - begin_s - duration_s)
    return min(late_s)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_sleeper_does_not_wake_early(loop: type[asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(earliest_s()) >= 0.0
