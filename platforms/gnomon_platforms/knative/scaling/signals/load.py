"""One Revision's load: what pods and activators told, as cumulative counters.

A pod tells means of its last second, so a second that is not asked for is lost: it is taken to have been like the one that is.
What waits at activators is a number now, taken to hold until the next look. Between two looks the counters go on rising as they
did, and where they turn out to have risen too far they stand still until the truth has caught up: policies see a steady line,
nothing is counted twice, and nothing comes late.

Requests that pods hold and those that wait are added: a request leaves the activator's queue when a pod takes it.
"""

from __future__ import annotations

import math
from collections import deque

from gnomon_core.scaling import LoadCounters
from gnomon_platforms.knative.scaling.signals.stat import PodStat

AHEAD_S = 3.0
"""How far the counters go on without news."""
LONGEST_GAP_S = 5.0
"""A second is taken for no more than this many."""
NOISE = 1e-9


class RevisionLoad:
    """Counters of one Revision. Every method takes the time; nothing here reads a clock."""

    def __init__(self, now_s: float, *, keep_s: float = 60.0) -> None:
        self._keep_s = keep_s
        self._pods_at_s = self._waiting_at_s = now_s
        self._concurrency = self._rps = self._waiting = 0.0
        self._pods_s = self._waiting_s = self._arrivals = 0.0
        self._shown_s = self._shown_arrivals = 0.0
        self._last_request_s = 0.0
        self._points: deque[tuple[float, float, float]] = deque()

    def pods(self, now_s: float, all_pods: PodStat) -> None:
        """What all pods together have had in their last second."""
        gap_s = min(LONGEST_GAP_S, max(0.0, now_s - self._pods_at_s))
        self._pods_at_s = now_s
        self._concurrency = all_pods.concurrency
        self._rps = all_pods.rps
        self._pods_s += self._concurrency * gap_s
        self._arrivals += self._rps * gap_s
        if self._concurrency > NOISE or self._rps > NOISE:
            self._last_request_s = now_s
        self._remember(now_s)

    def beside(self, requests: float) -> None:
        """So many requests more have come than pods have counted."""
        self._arrivals += requests

    def waits(self, now_s: float, requests: float) -> bool:
        """So many wait at activators now; whether some do and none did before."""
        first = requests > 0.0 >= self._waiting
        self._waiting_s += self._waiting * min(LONGEST_GAP_S, max(0.0, now_s - self._waiting_at_s))
        self._waiting_at_s = now_s
        self._waiting = requests
        if requests:
            self._last_request_s = now_s
            self._remember(now_s)
        return first

    def counters(self, now_s: float) -> LoadCounters:
        """The counters now. Neither of them ever falls."""
        ahead_s = min(AHEAD_S, max(0.0, now_s - self._pods_at_s))
        waited_s = min(AHEAD_S, max(0.0, now_s - self._waiting_at_s))
        total_s = self._pods_s + self._waiting_s + self._concurrency * ahead_s + self._waiting * waited_s
        self._shown_s = max(self._shown_s, total_s)
        self._shown_arrivals = max(self._shown_arrivals, self._arrivals + self._rps * ahead_s)
        arrivals = round(self._shown_arrivals)
        return LoadCounters(
            arrivals=arrivals,
            successes=arrivals,
            concurrency_s=self._shown_s,
            queued=math.ceil(self._waiting),
            executing=math.ceil(self._concurrency - NOISE),
            last_request_s=self._last_request_s,
        )

    def recent(self, now_s: float, window_s: float, *, by_rps: bool) -> float:
        """The mean load of the last seconds: requests a second, or requests in the system."""
        begin = next((point for point in self._points if point[0] >= now_s - window_s), None)
        if begin is None or not self._points:
            return 0.0
        end = self._points[-1]
        past_s = max(end[0] - begin[0], 1.0)
        return (end[2] - begin[2] if by_rps else end[1] - begin[1]) / max(past_s, min(window_s, now_s - begin[0]))

    def busy(self, now_s: float, window_s: float) -> bool:
        """Whether a request came within the last seconds."""
        return self._last_request_s > 0.0 and now_s - self._last_request_s <= window_s

    def _remember(self, now_s: float) -> None:
        self._points.append((now_s, self._pods_s + self._waiting_s, self._arrivals))
        while self._points and self._points[0][0] < now_s - self._keep_s:
            self._points.popleft()
