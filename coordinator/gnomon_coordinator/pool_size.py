"""The target size of the node's pool of empty containers, and the time of the next fork.

A fork would compete for cores with the Shadow that has just taken a container and is loading; so the pool is refilled after a
short delay. If containers end before they are ready, the delay backs off exponentially up to a bound: constant retries would only
take cores from the Bodies.

AsyFunc, section 3.4: one empty container on each node. Shadows are created in bursts: after several were created together, as
many containers are kept, up to `most`, until no such burst has happened for a while.

    size 1, most 4    three Shadows at once: one finds a container, two wait for forks; from now on three are kept
                      ten minutes without such a burst: one again
"""

from __future__ import annotations

from collections import deque

REFILL_AFTER_S = 0.15
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0
BURST_S = 0.2
"""Shadows that are created within this time are one burst: no container that is forked in between is ready by then."""
REMEMBERED_S = 600.0


class PoolSize:
    """Counts containers; the containers themselves are rows of the table."""

    def __init__(self) -> None:
        self.size = 0
        self.most = 0
        self._due_s = 0.0
        self._failures = 0
        self._recent_s: deque[float] = deque()
        self._burst = 0
        self._until_s = 0.0
        """The largest burst lately, and how long it is remembered."""

    def resize(self, size: int, now_s: float, most: int | None = None) -> None:
        """Keep `size` containers, and up to `most` after bursts; without `most` no more than `size`."""
        self.size, self.most = size, size if most is None else most
        self._failures, self._due_s = 0, now_s

    def taken(self, now_s: float) -> None:
        """Count a container that has become a Shadow, or a fork that was requested directly."""
        self._due_s = max(self._due_s, now_s + REFILL_AFTER_S)
        self._forget(now_s)
        self._recent_s.append(now_s)
        while self._recent_s[0] < now_s - BURST_S:
            self._recent_s.popleft()
        if len(self._recent_s) >= self._burst:
            self._burst, self._until_s = len(self._recent_s), now_s + REMEMBERED_S

    def filled(self) -> None:
        """Record that a container has become ready."""
        self._failures = 0

    def failed(self, now_s: float) -> None:
        """Record that a container has ended before it was ready, or could not be made."""
        backoff_s = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        self._due_s = max(self._due_s, now_s + backoff_s)

    @property
    def target(self) -> int:
        """The number of containers to keep. A pool of size 0 stays empty."""
        return max(self.size, min(self._burst, self.most)) if self.size else 0

    def missing(self, existing: int, now_s: float) -> int:
        """The number of containers to fork now if `existing` are ready or being forked; negative if there are too many."""
        self._forget(now_s)
        missing = self.target - existing
        return missing if missing <= 0 or now_s >= self._due_s else 0

    def due_s(self, existing: int) -> float | None:
        """The time of the next fork or removal; None if the pool has its size."""
        if existing < self.target:
            return self._due_s
        return self._until_s if self.target > self.size else None

    def _forget(self, now_s: float) -> None:
        if now_s >= self._until_s:
            self._burst = 0
