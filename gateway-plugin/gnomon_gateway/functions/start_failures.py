"""Why a function has fewer instances than it should: starts that failed, and instances that were refused room.

    a start fails ─▶ retried at once, calls wait ─┬─ ready ─▶ forgotten
                                                  └─ fails again ─▶ calls get 503 `function_cannot_start` until one is ready
    no node has room ─▶ while the function has no instance at all, calls get that refusal

Calls are refused while a retry starts or its back-off lasts. After that one is let in, so that a function which is started by its
requests is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_core.errors import GnomonError

FINAL_FAILURES = 2
"""A single failed start may be an accident, and its retry begins at once; from the second in a row on, callers are told."""
RETRY_S = 1.0
"""Until the next attempt is worth it, at the least."""
SHOWN_CHARACTERS = 600
LOG_ENDS = "; its log ends: "


@dataclass(slots=True)
class StartFailures:
    """Of one function, since an instance was last ready or the function was last deployed."""

    failures: int = 0
    reason: str = ""
    shortage: GnomonError | None = None
    """The last refusal of an instance; None after one was made."""
    at_s: float = float("-inf")
    logged: str = ""

    def failed(self, now_s: float, reason: str) -> None:
        """An instance has ended before it was ready."""
        self.failures += 1
        self.reason, self.at_s = summary(reason), now_s

    def refused(self, now_s: float, refusal: GnomonError) -> bool:
        """No instance could be made. Whether this is news for the function's log."""
        self.shortage, self.at_s = refusal, now_s
        news, self.logged = self.logged != refusal.code, refusal.code
        return news

    def created(self) -> None:
        """There was room."""
        self.shortage = None

    def ready(self) -> None:
        """An instance is ready: the function does start."""
        self.failures, self.reason = 0, ""

    @property
    def problem(self) -> GnomonError | None:
        """What is wrong, as one error; None where nothing is known to be."""
        if self.failures:
            return GnomonError(
                503,
                "function_cannot_start",
                f"The function cannot start: {self.reason}",
                "Fix it and deploy it again; `gnomon logs NAME` has the rest.",
                retry_after_s=RETRY_S,
            )
        return self.shortage

    def final(self, instances: int) -> bool:
        """Whether a retry at once is not expected to help a function of so many instances: one that ends makes room."""
        return self.failures >= FINAL_FAILURES if self.failures else self.shortage is not None and not instances

    def refusal(self, now_s: float, *, starting: int, instances: int, backoff_s: float) -> GnomonError | None:
        """What a call is answered while no instance is ready; None where it is worth waiting.

        `starting` of the function's `instances` may be ready soon; `backoff_s` is how long the autoscaler waits before it starts
        the next.
        """
        problem, retry_s = self.problem, max(backoff_s, self.at_s + RETRY_S - now_s)
        if problem is None or not self.final(instances) or (retry_s <= 0 and not starting):
            return None
        after_s = max(RETRY_S, retry_s)
        return GnomonError(problem.status, problem.code, problem.message, problem.hint, retry_after_s=after_s)


def summary(reason: str) -> str:
    """How an instance ended, with the last line of its log only: the log itself has the rest."""
    how, ends, log = reason.partition(LOG_ENDS)
    last = log.rpartition(" | ")[2]
    return (f"{last} ({how})" if ends and last else how)[:SHOWN_CHARACTERS]
