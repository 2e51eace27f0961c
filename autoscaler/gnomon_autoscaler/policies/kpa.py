"""`kpa`: the rule of Knative's pod autoscaler.

The load is averaged over two windows, 60 s (stable) and 6 s (panic), every 2 s. Each window requires load / target instances. The
target is 70 % of the setting: requests in the system (`gnomon/target-concurrency`) or requests per second (`gnomon/target-rps`).
Without a setting it is 70 % of the requests that an instance executes at once, its concurrency × the largest batch, as Knative's
is 70 % of a container's concurrency.

If the panic window requires at least twice the ready instances, the function panics: during that time and for 60 s more the count
only rises. Otherwise the stable window decides. One decision makes at most 1000 × and at least half of the present number (a
`RateLimit` around this policy). On Knative, annotations set other lengths, shares and thresholds.

With `scale.min` 0, a function goes to zero when its stable window is empty and 30 s of grace have passed.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_autoscaler.replica_policy import DesiredCount, Memory, count_in, in_system, timestamp_in, whole
from gnomon_core.scaling import Observation, StateValue

LEAST_PANIC_S = 1.0
"""Knative rounds the panic window to whole seconds and never goes below one."""
# Knative's defaults in config-autoscaler, max-scale-up-rate and max-scale-down-rate.
MAX_SCALE_UP_RATE = 1000.0
MAX_SCALE_DOWN_RATE = 2.0


@dataclass(frozen=True, slots=True)
class _Load:
    """Means of the stable and the panic window, and the target of one instance in the same unit."""

    stable: float
    panic: float
    target: float
    unit: str
    stable_s: float
    panic_s: float


@dataclass(frozen=True, slots=True)
class Kpa:
    """Stable and panic windows. With the same memory, more load never results in fewer instances."""

    name: str = "kpa"
    version: int = 1
    period_s: float = 2.0
    default_scheduler: str = "immediate"

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:
        load = _load(observation)
        stable, panic = whole(load.stable / load.target), whole(load.panic / load.target)
        ready = max(1, len(observation.ready))
        panicking_at_s = _panicking_at_s(panic >= observation.settings.panic_threshold * ready, observation, memory)
        # In panic the count never falls: the stable window has not recorded the burst yet.
        if panicking_at_s is not None:
            return _in_panic(load, max(stable, panic), panicking_at_s, observation, memory)
        reason = f"{load.stable:.2f} {load.unit} in {load.stable_s:g} s / target {load.target:.2f} = {stable}"
        if stable == 0 and observation.live:
            return _to_zero(reason, observation, memory)
        return DesiredCount(stable, reason)


def target_in_system(observation: Observation) -> float:
    """The target of requests in the system per instance: the function's setting, else the requests that it executes at once."""
    settings = observation.settings
    if settings.target_concurrency is not None:
        return settings.target_concurrency
    # Starting instances have not reported their concurrency yet.
    concurrency = max([instance.concurrency for instance in observation.ready], default=settings.expected_concurrency)
    return float(concurrency * settings.max_batch)


def _load(observation: Observation) -> _Load:
    settings, history = observation.settings, observation.history
    stable_s, share = settings.stable_window_s, settings.target_utilization
    windows_s = stable_s, max(LEAST_PANIC_S, float(round(stable_s * settings.panic_share)))
    if settings.target_rps is not None:
        stable, panic = (history.rate_rps(history.arrivals, window_s) for window_s in windows_s)
        return _Load(stable, panic, settings.target_rps * share, "rps", *windows_s)
    stable, panic = (history.mean(history.concurrency, window_s) for window_s in windows_s)
    return _Load(stable, panic, target_in_system(observation) * share, "in the system", *windows_s)


def _panicking_at_s(over: bool, observation: Observation, memory: Memory) -> float | None:  # noqa: FBT001 - private, one caller
    """The time at which the panic was last justified; None without panic."""
    if over:
        return observation.now_s
    at_s = timestamp_in(memory, "panicking_at_s")
    return at_s if at_s is not None and observation.now_s - at_s <= observation.settings.stable_window_s else None


def _in_panic(load: _Load, desired: int, panicking_at_s: float, observation: Observation, memory: Memory) -> DesiredCount:
    count = max(desired, count_in(memory, "most") or 0)
    suffix = "" if count == desired else f"; panic never scales down from {count}"
    reason = f"panic: {load.panic:.2f} {load.unit} in {load.panic_s:g} s / target {load.target:.2f} = {desired}"
    remembered: dict[str, StateValue] = {"panicking_at_s": panicking_at_s, "most": count}
    return DesiredCount(count, f"{reason} for {len(observation.ready)} ready{suffix}", remembered)


def _to_zero(reason: str, observation: Observation, memory: Memory) -> DesiredCount:
    if in_system(observation):
        return DesiredCount(1, f"{reason}, but requests are in the system")
    empty_at_s = timestamp_in(memory, "empty_at_s")
    if empty_at_s is None:
        empty_at_s = observation.now_s
    empty_s, grace_s = observation.now_s - empty_at_s, observation.settings.zero_grace_s
    if empty_s >= grace_s:
        over = f", and {empty_s:g} s of grace are over" if grace_s else ""
        return DesiredCount(0, reason + over, {"empty_at_s": empty_at_s})
    return DesiredCount(1, f"{reason}, 1 for {grace_s:g} s of grace", {"empty_at_s": empty_at_s})
