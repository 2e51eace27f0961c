"""How many empty containers the node keeps in reserve, and when to ask for the next one.

A fork costs the cores that the Shadow which just took a container needs to load; so the pool is filled again when it has been
left alone for a moment. Containers that end before they are ready make the pool wait longer and longer, up to a bound: where none
can be made, trying all the time would only cost the Bodies their cores.

AsyFunc, section 3.4: one empty container on each node.
"""

from __future__ import annotations

REFILL_AFTER_S = 0.05
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


class Pool:
    """Counts only: the containers themselves are rows of the table."""

    def __init__(self) -> None:
        self.size = 0
        self._due_s = 0.0
        self._failures = 0

    def resize(self, size: int, now_s: float) -> None:
        self.size = size
        self._failures, self._due_s = 0, now_s

    def taken(self, now_s: float) -> None:
        """A container has become a Shadow, or a fork was asked for directly."""
        self._due_s = max(self._due_s, now_s + REFILL_AFTER_S)

    def filled(self) -> None:
        """A container has become ready."""
        self._failures = 0

    def failed(self, now_s: float) -> None:
        """A container has ended before it was ready, or could not be made."""
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        self._due_s = max(self._due_s, now_s + pause_s)

    def missing(self, there: int, now_s: float) -> int:
        """How many to ask for now, when so many are there or on their way. Negative: so many too many."""
        if there >= self.size:
            return self.size - there
        return self.size - there if now_s >= self._due_s else 0

    def due_s(self, there: int) -> float | None:
        """When to ask again; None where nothing is missing."""
        return self._due_s if there < self.size else None
