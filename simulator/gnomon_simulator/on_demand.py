"""Functions on demand beside a simulated function's instances: the second tier, for what the scaling policy lets overflow.

A request that is sent there finds a function at once, is served alone and waits for nobody; it never enters the queue. Which
requests these are follows from the share alone: of a share of 0.25 it is every fourth, so that a run repeats to the last bit
and a burst overflows evenly.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gnomon_core.scaling import LoadCounters
from gnomon_simulator.results import OK, Requests

INSTANCE = "on demand"
_ROUNDING = 1e-9


@dataclass(slots=True)
class OnDemand:
    """The tier: a request takes `service_s` there."""

    service_s: float
    served: int = field(default=0, init=False)
    _owed: float = field(default=0.0, init=False)
    _last_s: float = field(default=0.0, init=False)

    def takes(self, share: float) -> bool:
        """Whether the next request goes there, of which this share shall."""
        self._owed = self._owed + share if share > 0.0 else 0.0
        if self._owed < 1.0 - _ROUNDING:
            return False
        self._owed -= 1.0
        return True

    def serve(self, row: int, rows: Requests, now_s: float) -> None:
        """Write the request's answer down."""
        self.served += 1
        self._last_s = now_s
        rows.dispatched_s[row], rows.finished_s[row] = now_s, now_s + self.service_s
        rows.status[row], rows.batch[row], rows.instance[row] = OK, 1, rows.number(INSTANCE)

    def counted(self, counters: LoadCounters) -> LoadCounters:
        """The gateway's counters as it would keep them of both tiers: whoever predicts has to see all that arrives."""
        if not self.served:
            return counters
        return replace(
            counters,
            arrivals=counters.arrivals + self.served,
            successes=counters.successes + self.served,
            last_request_s=max(counters.last_request_s, self._last_s),
        )


def on_demand(rows: Requests) -> int:
    """How many requests functions on demand have served."""
    if INSTANCE not in rows.instances:
        return 0
    return rows.instance.count(rows.instances.index(INSTANCE))
