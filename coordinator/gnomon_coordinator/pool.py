"""How many empty containers the node keeps in reserve, and when to ask for the next one.

A fork costs the cores that the Shadow which just took a container needs to load; so the pool is filled again when it has been
left alone for a moment. Containers that end before they are ready make the pool wait longer and longer, up to a bound: where none
can be made, trying all the time would only cost the Bodies their cores.

AsyFunc, section 3.4: one empty container on each node. Bursts come in flocks: where several Shadows began together, so many
containers are kept for the next time, as far as `most` allows, until that has not happened for a while.

    size 1, most 4    three Shadows at once: one finds a container, two wait for forks; from now on three are kept
                      ten minutes without as many: one again
"""

from __future__ import annotations

from collections import deque

REFILL_AFTER_S = 0.15
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
TOGETHER_S = 0.2
"""Shadows that are wanted within this time are one burst: no container that is forked in between is ready by then."""
REMEMBERED_S = 600.0


class Pool:
    """Counts only: the containers themselves are rows of the table."""

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
        """Keep so many, and up to `most` after bursts; no more than `size` unless told otherwise."""
        self.size, self.most = size, size if most is None else most
        self._failures, self._due_s = 0, now_s

    def taken(self, now_s: float) -> None:
        """A container has become a Shadow, or a fork was asked for directly."""
        self._due_s = max(self._due_s, now_s + REFILL_AFTER_S)
        self._forget(now_s)
        self._recent_s.append(now_s)
        while self._recent_s[0] < now_s - TOGETHER_S:
            self._recent_s.popleft()
        if len(self._recent_s) >= self._burst:
            self._burst, self._until_s = len(self._recent_s), now_s + REMEMBERED_S

    def filled(self) -> None:
        """A container has become ready."""
        self._failures = 0

    def failed(self, now_s: float) -> None:
        """A container has ended before it was ready, or could not be made."""
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        self._due_s = max(self._due_s, now_s + pause_s)

    @property
    def wanted(self) -> int:
        """How many to keep. A pool of none stays empty, whatever comes."""
        return max(self.size, min(self._burst, self.most)) if self.size else 0

    def missing(self, there: int, now_s: float) -> int:
        """How many to ask for now, when so many are there or on their way. Negative: so many too many."""
        self._forget(now_s)
        missing = self.wanted - there
        return missing if missing <= 0 or now_s >= self._due_s else 0

    def due_s(self, there: int) -> float | None:
        """When to ask again; None where nothing is missing, and nothing will be too much."""
        if there < self.wanted:
            return self._due_s
        return self._until_s if self.wanted > self.size else None

    def _forget(self, now_s: float) -> None:
        if now_s >= self._until_s:
            self._burst = 0
