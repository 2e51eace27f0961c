"""Virtual time: events on a heap, and random streams from one seed.

The clock stands still while an event is handled and jumps to the next event. Events at the same time are handled in the order in
which they were scheduled, so that a run is reproducible.

Each purpose (arrivals, noise, sizes) has a random stream of its own, so that turning one on or off changes no other: two runs
that differ only in the policy have exactly the same arrivals.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Events:
    """The event queue and the virtual clock."""

    __slots__ = ("_heap", "_order", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0

    def at(self, time_s: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule a call. A time in the past means now, after the events already scheduled for now."""
        self._order += 1
        heappush(self._heap, (max(time_s, self.now_s), self._order, call, args))

    def run(self) -> None:
        """Handle events until the queue is empty, or until `stop`."""
        heap = self._heap
        while heap:
            self.now_s, _, call, args = heappop(heap)
            call(*args)

    def stop(self) -> None:
        """Drop all events that are still scheduled: the run ends now."""
        self._heap.clear()


def stream(seed: int, purpose: str) -> random.Random:
    """The stream of one purpose: the same seed and purpose give the same numbers on every machine."""
    return random.Random(f"{seed}/{purpose}")  # noqa: S311 - reproducible numbers are wanted, nothing is kept secret by them
