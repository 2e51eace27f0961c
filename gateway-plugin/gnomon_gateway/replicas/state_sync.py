"""State that gateway replicas exchange: load goes to the leader; Shadows and buffer plans come from it.

Load. The leader decides by the load of all replicas. A replica reports the functions that it dispatches, and lost instances:

    `Reporter` of each replica ─▶ `OtherReplicas.hear` of the leader ─▶ counters, in flight, latencies ─▶ autoscaler

    {"number": 7, "functions": {"resnet.openfaas-fn": {…}}, "wanted": ["bert.openfaas-fn"], "lost": {"bert-3f": ["frozen", true]}}

The leader names the last report that it has, and gets the changes since. An idle function is reported once. Values are absolute,
so that a duplicate or missing report does no harm. The counters of a replica that has left are kept, so that sums never fall; its
queue is not. A single process leads, and receives no reports.

Shadows. With each question the leader sends the whole table of Bodies and their pairs: a Body that is not in it works alone.

    leader: `pairs_to_json` ─▶ replica: `PairFollower.follow` ─▶ batches for the pair, or for the Body alone

Buffer plans. With each question the leader sends all plans: a function that is not in the table has its deployed limits. A
replica that becomes the leader keeps the plans that it followed until the policy decides another.

    leader: `plans_to_json` ─▶ replica: `follow` ─▶ batches within the plan's limits, or the deployed ones
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from gnomon_core import pairs as pair_codec
from gnomon_core import scaling as plan_codec
from gnomon_core.pairs import Pair, together
from gnomon_core.scaling import SetBufferPlan
from gnomon_gateway.functions.deployments import LostInstance
from gnomon_gateway.functions.function_runtime import FunctionRuntime


class Reporter:
    """Reports of these functions, and of the instances in `lost`, which are removed once the leader has confirmed them."""

    def __init__(self, runtimes: Callable[[], Iterable[FunctionRuntime]], lost: MutableMapping[str, LostInstance]) -> None:
        self._runtimes, self._lost = runtimes, lost
        self._number = 0
        self._seen: WeakKeyDictionary[FunctionRuntime, tuple[object, int]] = WeakKeyDictionary()
        """The state of each function at its last change, and the number of that report. The key is the runtime: a new function
        with the name of a removed one is reported."""
        self._lost_in: dict[str, int] = {}
        self._wanted: dict[str, int] = {}

    def want(self, function: str) -> None:
        """Record that a request waits while the function has no instance."""
        self._wanted[function] = self._number + 1

    def report(self, received: int) -> dict[str, Any]:
        """The changes since report number `received`; 0 asks for everything."""
        if received > self._number:
            received = 0  # an earlier process at this address made that report
        self._number += 1
        self._wanted = {name: number for name, number in self._wanted.items() if number > received}
        for instance, number in list(self._lost_in.items()):
            if number <= received:
                del self._lost_in[instance]
                self._lost.pop(instance, None)
        for instance in self._lost:
            self._lost_in.setdefault(instance, self._number)
        return {
            "number": self._number,
            "functions": {
                runtime.name: document(runtime) for runtime in self._runtimes() if self._has_changed(runtime, received)
            },
            "wanted": list(self._wanted),
            "lost": {instance: [lost.reason, lost.served] for instance, lost in self._lost.items()},
        }

    def _has_changed(self, runtime: FunctionRuntime, received: int) -> bool:
        if not runtime.has_served:
            return False
        events = runtime.events()
        before, number = self._seen.get(runtime, (None, 0))
        if events != before:
            number = self._number
            self._seen[runtime] = events, number
        # The integrals over waiting requests grow without any event.
        return number > received or runtime.busy


def document(runtime: FunctionRuntime) -> Mapping[str, Any]:
    """The load of a function here, as JSON. Times are relative, because replicas have different clocks."""
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
        "spread": runtime.latency_spread({worker.size for worker in runtime.dispatcher.workers.by_id.values()}),
        "in_flight": runtime.all_in_flight(),
    }


RuntimeOf = Callable[[str], FunctionRuntime | None]
"""Finds the runtime of an instance's function; None if the instance is unknown here."""


def pairs_to_json(table: Mapping[str, Sequence[Pair]]) -> dict[str, list[dict[str, Any]]]:
    """The table as JSON."""
    return {body: list(map(pair_codec.pair_to_json, pairs)) for body, pairs in table.items()}


class PairFollower:
    """Applies the leader's table of pairs to the functions of this replica."""

    def __init__(self, runtime_of: RuntimeOf) -> None:
        self._runtime_of = runtime_of
        self._paired: set[str] = set()

    def follow(self, document: Mapping[str, Any]) -> None:
        """Apply the leader's table of pairs.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: the document is no valid table.

        """
        table = {str(body): tuple(map(pair_codec.pair_from_json, pairs)) for body, pairs in document.items()}
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
    """The functions with buffer plans."""

    def plans(self) -> Mapping[str, SetBufferPlan]:
        """The plans in force, by function."""
        ...

    def plan_buffer(self, function: str, plan: SetBufferPlan | None) -> None:
        """Make the function's batches within these limits from now on; None restores the deployed limits."""
        ...


def plans_to_json(plans: Mapping[str, SetBufferPlan]) -> dict[str, dict[str, Any]]:
    """The table as JSON."""
    return {function: plan_codec.plan_to_json(plan) for function, plan in plans.items()}


def follow(functions: Planned, document: Mapping[str, Any]) -> None:
    """Apply the leader's table of buffer plans.

    Raises:
        KeyError, TypeError, ValueError, OverflowError, AttributeError: the document is no valid table.

    """
    table = {str(function): plan_codec.plan_from_json(plan) for function, plan in document.items()}
    for function in functions.plans().keys() - table.keys():
        functions.plan_buffer(function, None)
    for function, plan in table.items():
        functions.plan_buffer(function, plan)
