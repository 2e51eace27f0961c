"""`target-tracking`: Amazon SageMaker's autoscaling of an endpoint, by invocations per instance and minute.

The metric is the number of requests in a minute, divided by the ready instances. After three minutes in a row above the target
the number grows, after fifteen below 90 % of the target it shrinks, both to instances × metric / target: the alarms that AWS
creates. The target is 60 × `gnomon/target-rps`; without that setting, half of the rate that one instance sustains, the safety
factor with which AWS's guide to load tests begins.

For `gnomon/scale-out-cooldown` after a growth by n, the number grows only by more than n, instances that are still starting
included. For `gnomon/scale-in-cooldown` after shrinking it shrinks no further; growing ends this cooldown. Both are 300 s.

Example: 2 instances with a target of 600 get 1,800 requests a minute, 900 each: after three minutes there are 2 × 900 / 600 = 3.
docs/decisions/0023-baselines-of-batch.md has more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gnomon_autoscaler.policies.rates import capacity
from gnomon_autoscaler.replica_policy import DesiredCount, Memory, count_in, timestamp_in, whole, within_period
from gnomon_core.scaling import Observation

MINUTE_S = 60.0
# The two CloudWatch alarms that target tracking creates: 3 datapoints of a minute above the target, 15 below 90 % of it.
ABOVE = 3
BELOW = 15
SLACK = 0.9
"""The share of the target below which the number may shrink; between it and the target nothing changes."""
SAFETY = 0.5
"""The default target as a share of an instance's capacity: the safety factor of AWS's guide to load tests."""


@dataclass(frozen=True, slots=True)
class _State:
    """Desired count; consecutive minutes above and below the target; times of the last minute, growth and shrinking."""

    count: int
    above: int = 0
    below: int = 0
    minute_at_s: float | None = None
    grown_at_s: float | None = None
    step: int = 0
    shrunk_at_s: float | None = None

    @staticmethod
    def of(observation: Observation, memory: Memory) -> _State:
        """Parse the memory, within the bounds; an operator's number is the new start."""
        count, minute_at_s, scale = count_in(memory, "count"), timestamp_in(memory, "minute_at_s"), observation.settings.scale
        if count is None or observation.requested is not None:
            count = len(observation.live) if observation.requested is None else observation.requested
            return _State(max(1, count), minute_at_s=observation.now_s if minute_at_s is None else minute_at_s)
        return _State(
            min(max(1, scale.min, count), scale.max),
            count_in(memory, "above") or 0,
            count_in(memory, "below") or 0,
            minute_at_s,
            timestamp_in(memory, "grown_at_s"),
            count_in(memory, "step") or 0,
            timestamp_in(memory, "shrunk_at_s"),
        )

    def desired_count(self, reason: str) -> DesiredCount:
        memory: Memory = {
            "count": self.count, "above": self.above, "below": self.below, "minute_at_s": self.minute_at_s,
            "grown_at_s": self.grown_at_s, "step": self.step, "shrunk_at_s": self.shrunk_at_s,
        }  # fmt: skip
        return DesiredCount(self.count, f"{reason}: {self.count}", memory)


@dataclass(frozen=True, slots=True)
class TargetTracking:
    """Invocations per instance and minute against a target. With the same memory, more load never results in fewer instances."""

    name: str = "target-tracking"
    version: int = 1
    period_s: float = MINUTE_S
    default_scheduler: str = "immediate"

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:
        state = _State.of(observation, memory)
        if within_period(state.minute_at_s, MINUTE_S, observation.now_s):
            return state.desired_count("within the minute")
        target = _target(observation)
        if target is None:
            return replace(state, minute_at_s=observation.now_s).desired_count(
                "no gnomon/target-rps, and latency is not known yet"
            )
        return _by_metric(state, target, observation)


def _by_metric(state: _State, target: float, observation: Observation) -> DesiredCount:
    """The replica count that follows from the metric of the last full minute."""
    ready_count = max(1, len(observation.ready))
    each = observation.history.rate_rps(observation.history.arrivals, MINUTE_S) * MINUTE_S / ready_count
    state = replace(
        state,
        above=state.above + 1 if each > target else 0,
        below=state.below + 1 if each < SLACK * target else 0,
        minute_at_s=observation.now_s,
    )
    reason = f"{each:.0f} a minute to each of {ready_count}, target {target:.0f}"
    desired = max(1, whole(ready_count * each / target))
    if state.above >= ABOVE:
        return _grown(state, desired, ready_count, observation, reason)
    if state.below >= BELOW and desired < state.count:
        return _shrunk(state, desired, observation, reason)
    if state.above:
        return state.desired_count(f"{reason}, above it {state.above} of {ABOVE} times")
    if state.below and desired < state.count:
        return state.desired_count(f"{reason}, below {SLACK:.0%} of it {state.below} of {BELOW} times")
    return state.desired_count(reason)


def _target(observation: Observation) -> float | None:
    """Target invocations per instance and minute; None while an instance's capacity is unknown."""
    if observation.settings.target_rps is not None:
        return observation.settings.target_rps * MINUTE_S
    per_instance = capacity(
        observation.latency_s, observation.settings.slo_s, observation.history.rate_rps(observation.history.arrivals, MINUTE_S)
    )
    return None if per_instance is None else SAFETY * per_instance.rate_rps * MINUTE_S


def _grown(state: _State, desired: int, ready_count: int, observation: Observation, reason: str) -> DesiredCount:
    if desired <= state.count:
        return state.desired_count(f"{reason}, and as many are coming")
    left_s = _left_s(state.grown_at_s, observation.settings.scale_out_cooldown_s, observation.now_s)
    step = desired - ready_count
    # Instances of the last growth may still be starting: the metric does not reflect them yet.
    if left_s > 0.0 and step <= state.step:
        return state.desired_count(f"{reason}, {desired} after {left_s:.0f} s of scale-out cooldown")
    grown = replace(state, count=desired, grown_at_s=observation.now_s, step=step, shrunk_at_s=None)
    return grown.desired_count(f"{reason}, above it {state.above} times")


def _shrunk(state: _State, desired: int, observation: Observation, reason: str) -> DesiredCount:
    left_s = _left_s(state.shrunk_at_s, observation.settings.scale_in_cooldown_s, observation.now_s)
    if left_s > 0.0:
        return state.desired_count(f"{reason}, {desired} after {left_s:.0f} s of scale-in cooldown")
    return replace(state, count=desired, shrunk_at_s=observation.now_s).desired_count(
        f"{reason}, below {SLACK:.0%} of it {state.below} times"
    )


def _left_s(since_s: float | None, cooldown_s: float, now_s: float) -> float:
    return 0.0 if since_s is None else since_s + cooldown_s - now_s
