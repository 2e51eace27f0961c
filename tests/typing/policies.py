"""Third-party policies against the seams, which mypy must accept. Checked, never run."""

from __future__ import annotations

from collections.abc import Sequence

from gnomon_core.interfaces import LatencyModel, ScalingPolicy, SchedulingPolicy
from gnomon_core.scaling import CreateBody, Decision, DestroyBody, Observation, PolicyState
from gnomon_core.scheduling import Dispatch, FleetView, QueueView, ScheduleAction, WaitUntil


class OnePerHundred:
    """An instance for each hundred requests that wait."""

    name = "one-per-hundred"
    period_s = 2.0
    default_scheduler = "immediate"

    def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        wanted = max(seen.settings.scale.min, seen.queued // 100)
        if wanted > len(seen.live):
            return Decision((CreateBody(seen.settings.cores),), "more wait", wanted), state
        if wanted < len(seen.live):
            return Decision((DestroyBody(seen.live[-1].id),), "fewer wait", wanted), state
        return Decision((), "as many as needed", wanted), state


class Pairs:
    """Requests leave two by two."""

    name = "pairs"

    def next(self, queue: QueueView, fleet: FleetView, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        waiting = queue.requests
        if not fleet.idle or not waiting:
            return ()
        if len(waiting) < 2 and latency.seconds(queue.variant, fleet.idle[0].cores, 1) is not None:
            return (WaitUntil(now_s + 0.01),)
        return (Dispatch(fleet.idle[0].instance_id, tuple(waiting[:2])),)


scaling: ScalingPolicy = OnePerHundred()
scheduling: SchedulingPolicy = Pairs()
