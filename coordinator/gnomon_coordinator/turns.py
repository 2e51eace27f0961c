"""Whose load is next: Shadows that share a CPU load their blocks one after another, in the order in which they were wished for.

Side by side all of them are there when the last one is; in turn the first is there as if it were alone, and the last no later.
Example: three loads that cost 11 ms each on one CPU, together: 33, 33 and 33 ms; in turn: 11, 22 and 33 ms.

A turn is short: a load that holds it for longer, because it is large or its process is stuck, goes on beside the next ones. Loads
on different CPUs do not wait for each other. A container that is forked for a Shadow does not wait either: it cannot begin before
it is there, and when it is, whoever was ready has long had its turn.
"""

from __future__ import annotations

from collections.abc import Mapping

from gnomon_coordinator.work import Step, Work

TURN_S = 0.05


class Turns:
    """Who loads, and until when others wait for it. `works` are in the order of their wishes."""

    def __init__(self, works: Mapping[str, Work]) -> None:
        self._works = works
        self._until_s: dict[str, float] = {}

    def take(self, now_s: float) -> list[Work]:
        """Those of the waiting Shadows that load from now on."""
        self._until_s = {shadow: until_s for shadow, until_s in self._until_s.items() if until_s > now_s and self._loads(shadow)}
        taken = {cpu for shadow in self._until_s for cpu in _cpus(self._works[shadow])}
        found: list[Work] = []
        for work in self._waiting():
            if taken.isdisjoint(_cpus(work)):
                found.append(work)
                self._until_s[work.shadow] = now_s + TURN_S
            # Who waits for one of several CPUs is not overtaken on the others.
            taken |= _cpus(work)
        return found

    def due_s(self) -> float | None:
        """When the next turn ends by time; None where nobody waits for it."""
        return min(self._until_s.values(), default=None) if self._waiting() else None

    def _waiting(self) -> list[Work]:
        return [work for work in self._works.values() if work.step is Step.TURN]

    def _loads(self, shadow: str) -> bool:
        work = self._works.get(shadow)
        return work is not None and work.step is Step.LOAD


def _cpus(work: Work) -> frozenset[int]:
    return frozenset() if work.task is None else frozenset(work.task.cpus)
