"""What a function's load was, kept exactly: counters and integrals over time.

The integrals move at every event, so that any two readings give the true mean of the time between them.
"""

from __future__ import annotations

from gnomon_core.scaling import LoadCounters


class Counting:
    """The counters behind a `LoadCounters`.

    `in_system` is requests waiting or executing whose client still waits; `busy_cores` the cores of executing instances.
    """

    __slots__ = (
        "_busy_core_s",
        "_concurrency_s",
        "_last_s",
        "arrivals",
        "busy_cores",
        "in_system",
        "last_request_s",
        "successes",
    )

    def __init__(self, now_s: float) -> None:
        self.arrivals = 0
        self.successes = 0
        self.in_system = 0
        self.busy_cores = 0
        self.last_request_s = 0.0
        self._concurrency_s = 0.0
        self._busy_core_s = 0.0
        self._last_s = now_s

    def advance(self, now_s: float) -> None:
        """Account for the time since the last event. Called before anything changes."""
        elapsed_s = now_s - self._last_s
        if elapsed_s > 0:
            self._concurrency_s += self.in_system * elapsed_s
            self._busy_core_s += self.busy_cores * elapsed_s
            self._last_s = now_s

    def read(self, now_s: float, *, queued: int, oldest_wait_s: float) -> LoadCounters:
        """The counters at this moment."""
        self.advance(now_s)
        return LoadCounters(
            arrivals=self.arrivals,
            successes=self.successes,
            concurrency_s=self._concurrency_s,
            busy_core_s=self._busy_core_s,
            queued=queued,
            executing=self.in_system - queued,
            oldest_wait_s=oldest_wait_s,
            last_request_s=self.last_request_s,
        )
