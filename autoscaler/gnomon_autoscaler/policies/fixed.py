"""`fixed`: as many instances as the function's minimum, or as an operator asked for, whatever the load.

It is also what a function falls back to when its own policy fails, because nothing can go wrong in it.
A minimum of 0 means one instance while the function is in use and none after `scale.zero-duration` without a request.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_autoscaler.replica_policy import Memory, Wish
from gnomon_core.scaling import Observation


@dataclass(frozen=True, slots=True)
class Fixed:
    """The minimum."""

    name: str = "fixed"
    version: int = 1
    period_s: float = 5.0
    default_scheduler: str = "immediate"

    def wish(self, seen: Observation, memory: Memory) -> Wish:  # noqa: ARG002 - it remembers nothing
        count = max(1, seen.settings.scale.min)
        return Wish(count, f"fixed at {count}")
