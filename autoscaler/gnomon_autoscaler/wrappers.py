"""Behaviour that grows by wrapping: each class is a count policy around any other.

`standard` puts them in the order that every built-in policy uses, from the inside out: a lower wish must last
(`DownDelay`), the function's own limits (`Bounds`), what an operator asked for (`Operator`, which may leave those limits),
an idle function goes to zero (`IdleToZero`), and nothing ends under a request (`Awake`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gnomon_autoscaler.replica_policy import CountPolicy, Memory, Wish, count_in, in_system, inner, moment, whole
from gnomon_core.scaling import Observation, StateValue
from gnomon_core.settings import Settings


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """Base of wrappers: name and period are those of the wrapped policy."""

    wrapped: CountPolicy

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
class Bounds(_Wrapper):
    """Never fewer than `scale.min`, never more than `scale.max`."""

    def wish(self, seen: Observation, memory: Memory) -> Wish:
        wish = self.wrapped.wish(seen, memory)
        scale = seen.settings.scale
        if wish.count < scale.min:
            return Wish(scale.min, f"{wish.reason}; at least {scale.min} (scale.min)", wish.memory)
        if wish.count > scale.max:
            return Wish(scale.max, f"{wish.reason}; at most {scale.max} (scale.max)", wish.memory)
        return wish


WindowOf: TypeAlias = Callable[[Settings], float]


@dataclass(frozen=True, slots=True)
class DownDelay(_Wrapper):
    """Delay scale-down: the count is the highest wanted count of the last `window_s(settings)` seconds."""

    window_s: WindowOf

    def wish(self, seen: Observation, memory: Memory) -> Wish:
        wish = self.wrapped.wish(seen, inner(memory))
        since_s = seen.now_s - self.window_s(seen.settings)
        recent = [(at_s, count) for at_s, count in _wishes(memory) if at_s > since_s and count > wish.count]
        # Monotonic queue: only earlier counts above the present one can become the maximum later.
        recent.append((seen.now_s, wish.count))
        count = max(count for _, count in recent)
        remembered: dict[str, StateValue] = {
            "inner": wish.memory,
            "wished_at_s": tuple(at_s for at_s, _ in recent),
            "wished": tuple(count for _, count in recent),
        }
        if count == wish.count:
            return Wish(count, wish.reason, remembered)
        window_s = self.window_s(seen.settings)
        return Wish(count, f"{wish.reason}; still {count}, wished for within {window_s:g} s", remembered)


def _wishes(memory: Memory) -> Sequence[tuple[float, int]]:
    times, counts = memory.get("wished_at_s"), memory.get("wished")
    if not isinstance(times, tuple) or not isinstance(counts, tuple):
        return ()
    return [
        (float(at_s), int(count))
        for at_s, count in zip(times, counts, strict=True)
        if isinstance(at_s, int | float) and isinstance(count, int | float)
    ]


@dataclass(frozen=True, slots=True)
class RateLimit(_Wrapper):
    """Limit the change: at most `up` × or `up_by` above the last count, whichever is more, and at least a `down`-th of it.

    Example: up = 2, up_by = 4, down = 2, after a wish for 3: at most 7, at least 1. The first wish is measured by what lives,
    later ones by the last wish, so that a number which an operator asked for does not look like a change of the load.
    """

    up: float
    down: float = float("inf")
    up_by: int = 0

    def wish(self, seen: Observation, memory: Memory) -> Wish:
        wish = self.wrapped.wish(seen, inner(memory))
        last = count_in(memory, "last")
        base = len(seen.live) if last is None else last
        # From nothing, one instance is the base: no factor would ever lead away from zero.
        most = max(whole(max(base, 1) * self.up), base + self.up_by)
        least = int(base / self.down)
        count = max(least, min(most, wish.count))
        said = "" if count == wish.count else f"; {'at most' if count == most else 'at least'} {count} at once from {base}"
        return Wish(count, wish.reason + said, {"inner": wish.memory, "last": count})


@dataclass(frozen=True, slots=True)
class Operator(_Wrapper):
    """Hold the count that an operator requested until the policy's own count changes.

    An operator may leave the bounds. A function that was asked to zero stays there until a request arrives.
    """

    def wish(self, seen: Observation, memory: Memory) -> Wish:
        wish = self.wrapped.wish(seen, inner(memory))
        if seen.requested is not None:
            return _hold(seen.requested, wish, wish.count, seen.now_s)
        held, against = count_in(memory, "held"), count_in(memory, "against")
        asked_at_s = moment(memory, "asked_at_s")
        if held is None or against is None or asked_at_s is None:
            return Wish(wish.count, wish.reason, {"inner": wish.memory})
        woken = held == 0 and (in_system(seen) > 0 or seen.last_request_s > asked_at_s)
        if woken or wish.count != against:
            return Wish(wish.count, wish.reason, {"inner": wish.memory})
        return _hold(held, wish, against, asked_at_s)


def _hold(held: int, wish: Wish, against: int, asked_at_s: float) -> Wish:
    memory: Memory = {"inner": wish.memory, "held": held, "against": against, "asked_at_s": asked_at_s}
    return Wish(held, f"an operator asked for {held}; {wish.reason}", memory)


@dataclass(frozen=True, slots=True)
class IdleToZero(_Wrapper):
    """Scale to zero after `scale.zero-duration` without a request, if the function may.

    It may with `scale.zero`, or with `scale.min` 0. A deployment and an operator's request count as a request.
    """

    def wish(self, seen: Observation, memory: Memory) -> Wish:
        wish = self.wrapped.wish(seen, inner(memory))
        since_s = moment(memory, "active_at_s")
        active_s = seen.now_s if since_s is None else since_s
        if seen.last_request_s:  # 0 says that there was none yet, and a clock may have begun later than the memory
            active_s = max(active_s, seen.last_request_s)
        if in_system(seen) or seen.requested is not None:
            active_s = seen.now_s
        remembered: Memory = {"inner": wish.memory, "active_at_s": active_s}
        scale = seen.settings.scale
        idle_s = seen.now_s - active_s
        if (scale.zero or scale.min == 0) and idle_s >= scale.zero_duration_s and wish.count > 0:
            return Wish(0, f"no request for {idle_s:.0f} s (scale.zero-duration is {scale.zero_duration_s:g} s)", remembered)
        return Wish(wish.count, wish.reason, remembered)


@dataclass(frozen=True, slots=True)
class Awake(_Wrapper):
    """At least one instance while a request waits or executes: a request at zero wakes the function at once."""

    def wish(self, seen: Observation, memory: Memory) -> Wish:
        wish = self.wrapped.wish(seen, memory)
        if wish.count > 0 or not in_system(seen):
            return wish
        what = "a request waits" if seen.queued else "a request executes"
        return Wish(1, f"{what}: 1 instance; {wish.reason}", wish.memory)


def standard(policy: CountPolicy) -> CountPolicy:
    """The policy within everything that a function's owner may rely on, whichever policy it is."""
    delayed = DownDelay(policy, lambda settings: settings.scale.down_window_s)
    return Awake(IdleToZero(Operator(Bounds(delayed))))
