"""What other gateway replicas have of our functions, for the one that leads: it decides by all of their load.

    reporting.py of each replica ─▶ `hear` ─▶ counters, in flight, latencies ─▶ the autoscaler

What a replica has counted is kept when it is gone, so that sums only grow; what it held is gone with it. A process that is alone
leads, and hears nothing.

What a replica tells the one that leads: the load of the functions that it dispatches, and instances that it has lost.

    {"number": 7, "functions": {"resnet.openfaas-fn": {…}}, "wanted": ["bert.openfaas-fn"], "lost": {"bert-3f": ["frozen", true]}}

Whoever asks says the number of the last report that it has, and hears of what has changed since. A function that nothing happens
to is told of once; values are absolute, so that a report that came twice, or not, does no harm.

Which Bodies have Shadows, as the leader tells the replicas that make their batches.

    leader: `pairs_to_json` ─ with each question ─▶ replica: `follow` ─▶ batches for both, or for the Body alone

The whole table each time: a Body that is not in it any more is alone.

The plans of functions' buffers, as the leader tells the replicas that make their batches.

    leader: `plans_to_json` ─ with each question ─▶ replica: `follow` ─▶ batches within these bounds, or the deployed ones

The whole table each time: a function that is not in it any more is as it was deployed. What a replica follows is its own when it
leads, until the policy has another one: that sees which plan is in force.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from gnomon_core import pairs as told_pairs
from gnomon_core import scaling as buffer_plans
from gnomon_core.pairs import Pair, together
from gnomon_core.scaling import LoadCounters, SetBufferPlan
from gnomon_gateway.functions.function_runtime import FunctionRuntime

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


class Reporter:
    """Reports of these functions, and of the instances in `lost`, which are forgotten once they were heard of."""

    def __init__(self, runtimes: Callable[[], Iterable[FunctionRuntime]], lost: MutableMapping[str, Lost]) -> None:
        self._runtimes, self._lost = runtimes, lost
        self._number = 0
        self._seen: WeakKeyDictionary[FunctionRuntime, tuple[object, int]] = WeakKeyDictionary()
        """By function, what it was known by when it was told of last, and in which report that was new. Another one by the name
        of one that is gone is news."""
        self._lost_in: dict[str, int] = {}
        self._wanted: dict[str, int] = {}

    def want(self, function: str) -> None:
        """A request waits, and there is no instance."""
        self._wanted[function] = self._number + 1

    def report(self, heard: int) -> dict[str, Any]:
        """What has changed since the report number `heard`; 0 asks for everything."""
        if heard > self._number:
            heard = 0  # it was somebody else's before us
        self._number += 1
        self._wanted = {name: number for name, number in self._wanted.items() if number > heard}
        for instance, number in list(self._lost_in.items()):
            if number <= heard:
                del self._lost_in[instance]
                self._lost.pop(instance, None)
        for instance in self._lost:
            self._lost_in.setdefault(instance, self._number)
        return {
            "number": self._number,
            "functions": {runtime.name: document(runtime) for runtime in self._runtimes() if self._is_news(runtime, heard)},
            "wanted": list(self._wanted),
            "lost": {instance: [lost.reason, lost.served] for instance, lost in self._lost.items()},
        }

    def _is_news(self, runtime: FunctionRuntime, heard: int) -> bool:
        if not runtime.has_served:
            return False
        events = runtime.events()
        before, number = self._seen.get(runtime, (None, 0))
        if events != before:
            number = self._number
            self._seen[runtime] = events, number
        # The time that requests spend here goes on while nothing happens.
        return number > heard or runtime.busy


def document(runtime: FunctionRuntime) -> Mapping[str, Any]:
    """A function as it is here now. Times that others compare are told as how long ago they were."""
    counters = runtime.load()
    return {
        "arrivals": counters.arrivals,
        "successes": counters.successes,
        "concurrency_s": round(counters.concurrency_s, 6),
        "busy_core_s": round(counters.busy_core_s, 6),
        "queued": counters.queued,
        "executing": counters.executing,
        "oldest_wait_s": round(counters.oldest_wait_s, 6),
        "idle_s": round(time.monotonic() - counters.last_request_s, 6) if counters.last_request_s else None,
        "invocations": runtime.metrics.invocations,
        "latency_s": runtime.latency_s(),
        "ratios": runtime.ratios(),
        "spread": runtime.latency_spread({worker.slot.size for worker in runtime.dispatcher.workers.by_id.values()}),
        "in_flight": runtime.all_in_flight(),
    }


RuntimeOf = Callable[[str], FunctionRuntime | None]
"""The function of an instance that is known here."""


def pairs_to_json(table: Mapping[str, Sequence[Pair]]) -> dict[str, list[dict[str, Any]]]:
    """The table as JSON."""
    return {body: list(map(told_pairs.pair_to_json, pairs)) for body, pairs in table.items()}


class FollowedPairs:
    """What was told last."""

    def __init__(self, runtime_of: RuntimeOf) -> None:
        self._runtime_of = runtime_of
        self._paired: set[str] = set()

    def follow(self, document: Mapping[str, Any]) -> None:
        """The leader says which Bodies have Shadows.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: this is no table.

        """
        table = {str(body): tuple(map(told_pairs.pair_from_json, pairs)) for body, pairs in document.items()}
        for body in self._paired - table.keys():
            self._set(body, None)
        for body, pairs in table.items():
            self._set(body, together(pairs))
        self._paired = set(table)

    def _set(self, body: str, pair: Pair | None) -> None:
        runtime = self._runtime_of(body)
        if runtime is not None:
            runtime.pair_changed(body, pair)


class Planned(Protocol):
    """The functions whose batches are made by plans."""

    def plans(self) -> Mapping[str, SetBufferPlan]:
        """Those in force."""
        ...

    def plan_buffer(self, function: str, plan: SetBufferPlan | None) -> None:
        """Make its batches within these bounds from now on, None for those that it was deployed with."""
        ...


def plans_to_json(plans: Mapping[str, SetBufferPlan]) -> dict[str, dict[str, Any]]:
    """The table as JSON."""
    return {function: buffer_plans.plan_to_json(plan) for function, plan in plans.items()}


def follow(functions: Planned, document: Mapping[str, Any]) -> None:
    """The leader says which functions have plans.

    Raises:
        KeyError, TypeError, ValueError, OverflowError, AttributeError: this is no table.

    """
    table = {str(function): buffer_plans.plan_from_json(plan) for function, plan in document.items()}
    for function in functions.plans().keys() - table.keys():
        functions.plan_buffer(function, None)
    for function, plan in table.items():
        functions.plan_buffer(function, plan)
