"""Functions that nothing happens to need not be looked at twice a second.

Where hundreds of functions are deployed, most of them have had no request for minutes. A function rests when no request waits or
executes and none came in all that is remembered, when its instances are ready, and when its policy has just answered "as it is".

    its policy has answered ▶ a short rest, until its next turn: nobody would ask it before
                          └─▶ asked as of the end of a long rest, it answers the same ▶ a long rest of up to five minutes

The policy can be asked that because it is a pure function of what is seen, and what is seen then differs from what is seen now by
the time alone. One that is about to let an idle function go to zero says so, and is asked at its own rhythm. Long rests of
several functions have different lengths, so that those that began together do not end together.

Of one that has requests only the counters are taken between two turns of its policy, where nothing else of it has changed
(`Counting`): its bins are as exact, for a tenth of the work.

A function at rest is known by a stamp that its fleet gives it, a value that changes with whatever concerns it. It is looked at
again as soon as the stamp is another one, when it is poked, and when its rest is over.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from gnomon_autoscaler.runner import Question
from gnomon_core.fleet import InstanceState
from gnomon_core.scaling import Decision, FunctionLoad, LoadCounters, Observation, PolicyState

RESTS_S = (300.0, 30.0)
"""The long rests, those that are tried first before the others."""
TOLERANCE_S = 1e-6
GOLDEN = 0.6180339887
"""Its multiples without their whole parts lie evenly between 0 and 1, however many there are."""


@runtime_checkable
class Stamping(Protocol):
    """A `ScaledFleet` that can tell cheaply whether anything is new."""

    def stamp(self, function: str) -> object:
        """A value that equals the last one only while nothing has happened to the function's settings, instances and requests.

        It is quick to make and to compare.
        """
        ...


@runtime_checkable
class Counting(Protocol):
    """A `ScaledFleet` that can tell a function's counters without its instances, and whether those are as they were."""

    def standing(self, function: str) -> object:
        """A value that equals the last one only while nothing has happened to the function's settings and instances."""
        ...

    def counters(self, function: str) -> LoadCounters | None:
        """What its `load` has of them; None when it has been removed."""
        ...


@dataclass(slots=True)
class Rest:
    """One function that rests: until when, how it was seen last, and what it is known by. `asked` is for the long rest."""

    stamp: object
    load: FunctionLoad
    since_s: float
    until_s: float
    asked: Question | None


class Resting:
    """Which functions rest. Without a fleet that stamps, none does."""

    def __init__(self, fleet: object) -> None:
        self._fleet = fleet if isinstance(fleet, Stamping) else None
        self._rests: dict[str, Rest] = {}
        self._short: list[str] = []
        self._numbers = itertools.count()

    def rests(self, function: str, now_s: float) -> bool:
        """Whether there is nothing to look at."""
        rest = self._rests.get(function)
        if rest is None or self._fleet is None:
            return False
        return now_s < rest.until_s - TOLERANCE_S and rest.stamp == self._fleet.stamp(function)

    def has(self, function: str) -> bool:
        """Whether it rests, or did until something happened to it."""
        return function in self._rests

    def wake(self, function: str) -> FunctionLoad | None:
        """It is looked at now; its load in all of its rest, None if it did not rest."""
        rest = self._rests.pop(function, None)
        return None if rest is None else rest.load

    def look(self, function: str) -> object:
        """What it is known by now. Asked before it is looked at, so that what happens between the two is seen as new."""
        return None if self._fleet is None else self._fleet.stamp(function)

    def lay(self, function: str, stamp: object, load: FunctionLoad, asked: Question, until_s: float) -> None:
        """It rests until then, as it was when it was seen with this stamp; longer if its policy says so."""
        if self._fleet is not None and self._fleet.stamp(function) == stamp:
            self._rests[function] = Rest(stamp, load, asked.seen.now_s, until_s, asked)
            self._short.append(function)

    def short(self) -> list[tuple[str, Rest]]:
        """Those that have begun a short rest since this was asked last, and still have it."""
        names, self._short = self._short, []
        return [(name, rest) for name in names if (rest := self._rests.get(name)) is not None and rest.asked is not None]

    def lengthen(self, function: str, rest: Rest, longer_s: float) -> None:
        """Its policy would answer the same after so long: it rests until a turn of its policy in the second half of that."""
        if self._rests.get(function) is rest and rest.asked is not None:
            share = 0.5 + 0.5 * (next(self._numbers) * GOLDEN % 1.0)
            period_s = rest.asked.policy.period_s
            turns = math.floor((rest.since_s + longer_s * share - rest.until_s) / period_s)
            rest.until_s += max(0, turns) * period_s
            rest.asked = None

    def forget(self, function: str) -> None:
        """It is gone."""
        self._rests.pop(function, None)


def calm(seen: Observation, decision: Decision) -> bool:
    """Whether nothing happens to a function, and its policy leaves it as it is."""
    history = seen.history
    return (
        not decision.actions
        and not (seen.queued or seen.executing)
        and seen.requested is None
        and (decision.desired is None or decision.desired == len(seen.live))
        and all(instance.state is InstanceState.READY for instance in seen.instances)
        and not (any(history.arrivals) or any(history.successes) or any(history.concurrency) or any(history.busy_cores))
    )


def longest_rest_s(asked: Question, state: PolicyState, desired: int | None) -> float:
    """For how long the policy would say the same if nothing happened; 0 where it is not even half a minute. Pure, as it is."""
    for rest_s in RESTS_S:
        then, _ = Question(asked.policy, replace(asked.seen, now_s=asked.seen.now_s + rest_s), state).answer()
        if not then.actions and then.desired == desired:
            return rest_s
    return 0.0
