"""What other gateway replicas have of our functions, for the one that leads: it decides by all of their load.

    reporting.py of each replica ─▶ `hear` ─▶ counters, in flight, latencies ─▶ the autoscaler

What a replica has counted is kept when it is gone, so that sums only grow; what it held is gone with it. A process that is alone
leads, and hears nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gnomon_core.scaling import LoadCounters

_NOBODY = LoadCounters()


@dataclass(frozen=True, slots=True)
class Told:
    """A function as one replica tells of it, or as all of them do together.

    `latency_s`, `ratios`, how long batches take against what was foretold by cores, and `spread`, how far they are from it, are
    those of the one that has served last; 0 where it is not known, as of replicas of an earlier version.
    """

    counters: LoadCounters = _NOBODY
    invocations: int = 0
    latency_s: tuple[float, ...] = ()
    ratios: Mapping[int, float] = field(default_factory=dict)
    spread: float = 0.0
    in_flight: Mapping[str, int] = field(default_factory=dict)
    """By instance, where it is not 0."""


@dataclass(frozen=True, slots=True)
class Lost:
    """An instance that has ended, or answers no more, for the replica that sent it batches; whether it had ever answered."""

    reason: str
    served: bool = False


NOTHING = Told()


class Elsewhere:
    """`leads` says whether this process decides; `now_s` is the clock of counters.

    `asked` is False where who decides never asks what was lost here: it is not kept then.
    """

    def __init__(
        self, leads: Callable[[], bool] = lambda: True, now_s: Callable[[], float] = time.monotonic, *, asked: bool = True
    ) -> None:
        self.leads = leads
        self.lost: dict[str, Lost] = {}
        """Instances that were lost here while another process leads: it is to know."""
        self._asked = asked
        self._now_s = now_s
        self._told: dict[str, dict[str, Told]] = {}
        """By replica, then by function."""
        self._gone: dict[str, Told] = {}
        """What those have counted that are gone."""
        self._numbers: dict[str, int] = {}

    def lose(self, instance_id: str, lost: Lost) -> None:
        """An instance was lost here while another process leads."""
        if self._asked:
            self.lost[instance_id] = lost

    def hear(self, replica: str, functions: Mapping[str, Any]) -> None:
        """A replica tells of functions; of others it said what it had to say before.

        Raises:
            KeyError, TypeError, ValueError: this is no report.

        """
        read = {name: self._read(document) for name, document in functions.items()}
        self._told.setdefault(replica, {}).update(read)
        for name in read:
            self._numbers[name] = self._numbers.get(name, 0) + 1

    def keep(self, replicas: Collection[str]) -> None:
        """There are only these."""
        for replica in self._told.keys() - set(replicas):
            for name, told in self._told.pop(replica).items():
                self._numbers[name] = self._numbers.get(name, 0) + 1
                counted = replace(told.counters, queued=0, executing=0, oldest_wait_s=0.0)
                left = replace(told, counters=counted, in_flight={})
                self._gone[name] = _joined([self._gone.get(name, NOTHING), left])

    def forget(self, function: str) -> None:
        """It was removed: one by the same name begins with nothing."""
        for functions in (self._gone, self._numbers, *self._told.values()):
            functions.pop(function, None)  # type: ignore[attr-defined]

    def of(self, function: str) -> Told:
        """What the others have of a function, together."""
        if function not in self._numbers:
            return NOTHING
        parts = [functions[function] for functions in self._told.values() if function in functions]
        return _joined([self._gone.get(function, NOTHING), *parts])

    def in_flight(self, function: str, instance_id: str) -> int:
        """How many requests an instance executes for the others."""
        if function not in self._numbers:
            return 0
        return sum(
            functions[function].in_flight.get(instance_id, 0) for functions in self._told.values() if function in functions
        )

    def stamp(self, function: str) -> int:
        """A number that is another one after anything was told of the function."""
        return self._numbers.get(function, 0)

    def _read(self, document: Mapping[str, Any]) -> Told:
        idle_s = document["idle_s"]
        return Told(
            LoadCounters(
                arrivals=int(document["arrivals"]),
                successes=int(document["successes"]),
                concurrency_s=float(document["concurrency_s"]),
                busy_core_s=float(document["busy_core_s"]),
                queued=int(document["queued"]),
                executing=int(document["executing"]),
                oldest_wait_s=float(document["oldest_wait_s"]),
                last_request_s=0.0 if idle_s is None else self._now_s() - float(idle_s),
            ),
            int(document["invocations"]),
            tuple(map(float, document["latency_s"])),
            {int(cores): float(ratio) for cores, ratio in document["ratios"].items()},
            float(document.get("spread", 0.0)),
            {str(instance): int(count) for instance, count in document["in_flight"].items()},
        )


def summed(one: LoadCounters, other: LoadCounters) -> LoadCounters:
    """The load of two queues of one function."""
    if other is _NOBODY:
        return one
    return LoadCounters(
        arrivals=one.arrivals + other.arrivals,
        successes=one.successes + other.successes,
        concurrency_s=one.concurrency_s + other.concurrency_s,
        busy_core_s=one.busy_core_s + other.busy_core_s,
        queued=one.queued + other.queued,
        executing=one.executing + other.executing,
        oldest_wait_s=max(one.oldest_wait_s, other.oldest_wait_s),
        last_request_s=max(one.last_request_s, other.last_request_s),
    )


def _joined(parts: list[Told]) -> Told:
    whole = NOTHING
    for part in sorted(parts, key=lambda one: one.counters.last_request_s):
        whole = Told(
            summed(whole.counters, part.counters),
            whole.invocations + part.invocations,
            part.latency_s or whole.latency_s,
            part.ratios or whole.ratios,
            part.spread or whole.spread,
            {**whole.in_flight, **part.in_flight},
        )
    return whole
