"""Wrappers of replica policies (decorators): each class is a replica policy around another one.

`standard` applies them in the order of every built-in policy, from the inside out: delayed scale-down (`DownDelay`), the
function's limits (`Bounds`), an operator's number (`OperatorOverride`, which may exceed those limits), scale to zero when idle
(`ScaleToZero`), and at least one instance while a request waits or executes (`WakeOnRequest`). The reasons of this order are in
docs/decisions/0003-count-policies-and-wrappers.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from gnomon_autoscaler.replica_policy import (
    DesiredCount,
    Memory,
    ReplicaPolicy,
    count_in,
    counts_in,
    in_system,
    inner_memory,
    timestamp_in,
    whole,
)
from gnomon_core.scaling import Observation, StateValue
from gnomon_core.settings import Settings


@dataclass(frozen=True, slots=True)
class Wrapper:
    """The base of wrappers, with the name, version, period and scheduler of the wrapped policy."""

    wrapped: ReplicaPolicy

    @property
    def name(self) -> str:
        return self.wrapped.name

    @property
    def version(self) -> int:
        return self.wrapped.version

    @property
    def period_s(self) -> float:
        return self.wrapped.period_s

    @property
    def default_scheduler(self) -> str:
        return self.wrapped.default_scheduler


@dataclass(frozen=True, slots=True)
class Bounds(Wrapper):
    """Bound the count: at least `scale.min`, at most `scale.max`."""

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:
        desired = self.wrapped.desired_count(observation, memory)
        scale = observation.settings.scale
        if desired.count < scale.min:
            return DesiredCount(scale.min, f"{desired.reason}; at least {scale.min} (scale.min)", desired.memory)
        if desired.count > scale.max:
            return DesiredCount(scale.max, f"{desired.reason}; at most {scale.max} (scale.max)", desired.memory)
        return desired


WindowOf: TypeAlias = Callable[[Settings], float]


@dataclass(frozen=True, slots=True)
class DownDelay(Wrapper):
    """Delay scale-down: the count is the highest wanted count of the last `window_s(settings)` seconds."""

    window_s: WindowOf

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:
        desired = self.wrapped.desired_count(observation, inner_memory(memory))
        count, window_s = desired.count, self.window_s(observation.settings)
        if window_s <= 0.0:  # the default: scale-down is not delayed
            return DesiredCount(
                count, desired.reason, {"inner": desired.memory, "wished_at_s": (observation.now_s,), "wished": (count,)}
            )
        since_s = observation.now_s - window_s
        # Monotonic queue: only earlier counts above the present one can become the maximum later.
        recent = [(at_s, earlier) for at_s, earlier in counts_in(memory, "wished") if at_s > since_s and earlier > count]
        recent.append((observation.now_s, count))
        highest = max(earlier for _, earlier in recent)
        reason = desired.reason if highest == count else f"{desired.reason}; still {highest}, wanted within {window_s:g} s"
        remembered: dict[str, StateValue] = {
            "inner": desired.memory,
            "wished_at_s": tuple(at_s for at_s, _ in recent),
            "wished": tuple(earlier for _, earlier in recent),
        }
        return DesiredCount(highest, reason, remembered)


@dataclass(frozen=True, slots=True)
class RateLimit(Wrapper):
    """Limit the change: at most `up` × or `up_by` above the last count, whichever is more, and at least a `down`-th of it.

    Example: up = 2, up_by = 4, down = 2, after a count of 3: at most 7, at least 1. The first count is compared with the live
    instances, later ones with the last count, so that an operator's number does not look like a change of the load.
    """

    up: float
    down: float = float("inf")
    up_by: int = 0

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:
        desired = self.wrapped.desired_count(observation, inner_memory(memory))
        last = count_in(memory, "last")
        base = len(observation.live) if last is None else last
        # From nothing, one instance is the base: no factor would ever lead away from zero.
        most = max(whole(max(base, 1) * self.up), base + self.up_by)
        least = int(base / self.down)
        count = max(least, min(most, desired.count))
        limit = "" if count == desired.count else f"; {'at most' if count == most else 'at least'} {count} at once from {base}"
        return DesiredCount(count, desired.reason + limit, {"inner": desired.memory, "last": count})


@dataclass(frozen=True, slots=True)
class OperatorOverride(Wrapper):
    """Hold the count that an operator requested until the policy's own count changes.

    An operator may leave the bounds. A function that was scaled to zero stays there until a request arrives.
    """

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:
        desired = self.wrapped.desired_count(observation, inner_memory(memory))
        if observation.requested is not None:
            return _hold(observation.requested, desired, desired.count, observation.now_s)
        held, against = count_in(memory, "held"), count_in(memory, "against")
        requested_at_s = timestamp_in(memory, "asked_at_s")
        if held is None or against is None or requested_at_s is None:
            return DesiredCount(desired.count, desired.reason, {"inner": desired.memory})
        woken = held == 0 and (in_system(observation) > 0 or observation.last_request_s > requested_at_s)
        if woken or desired.count != against:
            return DesiredCount(desired.count, desired.reason, {"inner": desired.memory})
        return _hold(held, desired, against, requested_at_s)


def _hold(held: int, desired: DesiredCount, against: int, requested_at_s: float) -> DesiredCount:
    memory: Memory = {"inner": desired.memory, "held": held, "against": against, "asked_at_s": requested_at_s}
    return DesiredCount(held, f"an operator asked for {held}; {desired.reason}", memory)


@dataclass(frozen=True, slots=True)
class ScaleToZero(Wrapper):
    """Scale to zero after `scale.zero-duration` without a request, if the function may.

    It may with `scale.zero`, or with `scale.min` 0. A deployment and an operator's request count as a request.
    """

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:
        desired = self.wrapped.desired_count(observation, inner_memory(memory))
        since_s = timestamp_in(memory, "active_at_s")
        active_s = observation.now_s if since_s is None else since_s
        if observation.last_request_s:  # 0: no request yet. A clock may have started later than the remembered time.
            active_s = max(active_s, observation.last_request_s)
        if in_system(observation) or observation.requested is not None:
            active_s = observation.now_s
        remembered: Memory = {"inner": desired.memory, "active_at_s": active_s}
        scale = observation.settings.scale
        idle_s = observation.now_s - active_s
        if (scale.zero or scale.min == 0) and idle_s >= scale.zero_duration_s and desired.count > 0:
            reason = f"no request for {idle_s:.0f} s (scale.zero-duration is {scale.zero_duration_s:g} s)"
            return DesiredCount(0, reason, remembered)
        return DesiredCount(desired.count, desired.reason, remembered)


@dataclass(frozen=True, slots=True)
class WakeOnRequest(Wrapper):
    """Keep at least one instance while a request waits or executes: a request at zero wakes the function at once."""

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:
        desired = self.wrapped.desired_count(observation, memory)
        if desired.count > 0 or not in_system(observation):
            return desired
        cause = "a request waits" if observation.queued else "a request executes"
        return DesiredCount(1, f"{cause}: 1 instance; {desired.reason}", desired.memory)


def standard(policy: ReplicaPolicy) -> ReplicaPolicy:
    """Wrap the policy by everything that a function's owner can rely on with any policy."""
    delayed = DownDelay(policy, lambda settings: settings.scale.down_window_s)
    return WakeOnRequest(ScaleToZero(OperatorOverride(Bounds(delayed))))
