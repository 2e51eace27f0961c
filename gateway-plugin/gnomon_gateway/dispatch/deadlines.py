"""The deadlines of all requests in the system, the earliest first.

Nearly every request is answered long before its deadline. Its entry stays until it comes to the top or until more than half of
the entries are dead, when all dead ones are thrown out at once: each request costs a constant amount of work on average, and
memory is bounded by twice the requests in the system, not by the requests that one deadline's length lets through.
"""

from __future__ import annotations

import heapq

from gnomon_gateway.queueing.request import ANSWERED, Request

_SMALL = 64


class Deadlines:
    """A heap of requests by deadline."""

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._live = 0

    def add(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.deadline_s, request.id, request))
        self._live += 1

    def forget(self) -> None:
        """One of the requests has been answered."""
        self._live -= 1
        heap = self._heap
        if len(heap) > _SMALL and len(heap) > 2 * self._live:
            self._heap = [entry for entry in heap if entry[2].state != ANSWERED]
            heapq.heapify(self._heap)

    def next_s(self) -> float:
        """The earliest deadline that may still matter; infinity if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def due(self, now_s: float) -> list[Request]:
        """Take out the unanswered requests whose deadline has come."""
        late: list[Request] = []
        heap = self._heap
        while heap and heap[0][0] <= now_s:
            request = heapq.heappop(heap)[2]
            # A stream that has begun has had its deadline lifted since it was put here.
            if request.state != ANSWERED and request.deadline_s <= now_s:
                late.append(request)
        return late
