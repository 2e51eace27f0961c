"""Policies over virtual time: a `Timeline` under load, and autoscalers that run for a while."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.testing import Timeline


def play(line: Timeline, duration_s: float, **load: object) -> int:
    """Advance virtual time under this load (fields of the timeline's function), and return the number of live Bodies."""
    for name, value in load.items():
        setattr(line, name, value)
    line.play(duration_s)
    return line.live


@asynccontextmanager
async def running(*autoscalers: Autoscaler) -> AsyncIterator[None]:
    """Run the autoscalers' loops for the length of the block."""
    tasks = [asyncio.create_task(autoscaler.run()) for autoscaler in autoscalers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
