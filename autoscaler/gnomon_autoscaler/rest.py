"""Functions that nothing happens to need not be looked at twice a second.

Where hundreds of functions are deployed, most of them have had no request for minutes. A function rests when no request waits or
executes and none came in all that is remembered, when its instances are ready, when its policy has just been asked and has
answered "as it is", and when the policy says that it would answer the same half a minute later, if nothing happens. It can be
asked that because it is a pure function of what is seen, and what is seen then differs from what is seen now by the time alone.
One that is about to let an idle function go to zero says so, and is asked at its own rhythm.

A function at rest is known by a stamp that its fleet gives it, a value that changes with whatever concerns it. It is looked at
again as soon as the stamp is another one, when it is poked, and each half minute in any case.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from gnomon_autoscaler.runner import Question
from gnomon_core.fleet import InstanceState
from gnomon_core.scaling import Decision, FunctionLoad, Observation, PolicyState

REST_S = 30.0


@runtime_checkable
class Stamping(Protocol):
    """A `ScaledFleet` that can tell cheaply whether anything is new."""

    def stamp(self, function: str) -> object:
        """A value that equals the last one only while nothing has happened to the function's settings, instances and requests.

        It is quick to make and to compare.
        """
        ...


@dataclass(slots=True)
class Rest:
    """One function that rests: since when, how it was seen last, and what it is known by."""

    stamp: object
    load: FunctionLoad
    since_s: float


class Resting:
    """Which functions rest. Without a fleet that stamps, none does."""

    def __init__(self, fleet: object) -> None:
        self._fleet = fleet if isinstance(fleet, Stamping) else None
        self._rests: dict[str, Rest] = {}

    @property
    def possible(self) -> bool:
        """Whether any function can rest."""
        return self._fleet is not None

    def rests(self, function: str, now_s: float) -> bool:
        """Whether there is nothing to look at."""
        rest = self._rests.get(function)
        if rest is None or self._fleet is None:
            return False
        return now_s - rest.since_s < REST_S and rest.stamp == self._fleet.stamp(function)

    def wake(self, function: str) -> FunctionLoad | None:
        """It is looked at now; its load in all of its rest, None if it did not rest."""
        rest = self._rests.pop(function, None)
        return None if rest is None else rest.load

    def look(self, function: str) -> object:
        """What it is known by now. Asked before it is looked at, so that what happens between the two is seen as new."""
        return None if self._fleet is None else self._fleet.stamp(function)

    def lay(self, function: str, stamp: object, load: FunctionLoad, now_s: float) -> None:
        """It rests from now on, as it was when it was seen with this stamp."""
        if self._fleet is not None:
            self._rests[function] = Rest(stamp, load, now_s)

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


def later(asked: Question, state: PolicyState) -> Question:
    """The question that the policy would be asked at the end of a rest in which nothing has happened."""
    return Question(asked.policy, replace(asked.seen, now_s=asked.seen.now_s + REST_S), state)
