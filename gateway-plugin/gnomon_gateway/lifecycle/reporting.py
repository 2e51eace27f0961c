"""What a replica tells the one that leads: the load of the functions that it dispatches, and instances that it has lost.

    {"number": 7, "functions": {"resnet.openfaas-fn": {…}}, "wanted": ["bert.openfaas-fn"], "lost": {"bert-3f": ["frozen", true]}}

Whoever asks says the number of the last report that it has, and hears of what has changed since. A function that nothing happens
to is told of once; values are absolute, so that a report that came twice, or not, does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

from gnomon_gateway.lifecycle.elsewhere import Lost
from gnomon_gateway.serving.function_runtime import FunctionRuntime


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
