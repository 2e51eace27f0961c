"""Overload: `batch` and `batch+` respond in the same decision to more load than the plan in force can carry.

A plan is made from past arrivals: the test for changes needs a bin or more, and a plan needs 100 arrivals. Requests that arrive
meanwhile wait, and are late after one SLO. Each decision therefore compares the present demand with the rate of the plan's
instances at full batches:

    demand = arrivals of the last second + backlog / SLO          backlog: requests beyond the next batch of each instance
    carried = instances × max(B / S_B of the plan, b / S_b of the best batch with 2 S_b ≤ SLO)

A request that finds every instance busy waits up to S_b and executes for S_b, hence 2 S_b. If the demand exceeds the carried
rate, the number of instances is raised to carry it at a utilization of `BUSY`, but to at most twice the number for the arrivals
alone (a backlog that accumulates while a model loads does not indicate a higher rate). Batches may be as large as b: the queue
fills them by itself. This lasts for `HOLD_S` after the last excess, or until the next plan.

Example: S_b = 40 + 5 b ms, SLO 300 ms: the best batch is 16 in 120 ms, 133/s. A plan of one instance for 20/s sees 160 arrivals
in a second and 90 that wait: (160 + 74 / 0.3) / (0.8 · 133) = 3.8, so that four instances are wanted instead of one; two
decisions later there is a plan for 160/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnomon_autoscaler.replica_policy import Memory, count_in, timestamp_in, whole
from gnomon_core.scaling import Observation, StateValue

WINDOW_S = 1.0
HOLD_S = 5.0
BUSY = 0.8
"""The target utilization of instances: at 1 a queue never shortens."""
MOST_FACTOR = 2.0
"""The most instances for a backlog, as a multiple of those for the arrivals."""


@dataclass(frozen=True, slots=True)
class Overload:
    """An overload: the instances and largest batch for it, the reason, and its end."""

    count: int
    batch: int
    until_s: float
    reason: str

    def remembered(self) -> dict[str, StateValue]:
        """The overload as JSON for the policy's memory."""
        return {"overload": (self.count, self.batch), "overload_until_at_s": self.until_s}


def overloaded(observation: Observation, planned: int, batch: int, memory: Memory) -> Overload | None:
    """The present overload, or the one of the last `HOLD_S` seconds. `planned` instances make batches of up to `batch`."""
    previous = _held(memory, observation.now_s)
    if not observation.latency_s:
        return None
    best, best_rps = _best(observation.latency_s, observation.settings.slo_s)
    within = min(batch, len(observation.latency_s))
    each_rps = max(best_rps, within / observation.latency_s[within - 1])
    rate_rps = observation.history.rate_rps(observation.history.arrivals, WINDOW_S)
    backlog = max(0, observation.queued - max(1, len(observation.ready)) * max(batch, best))
    demand_rps = rate_rps + backlog / observation.settings.slo_s
    if demand_rps <= planned * each_rps:
        return previous if previous is not None and previous.count > planned else None
    most = whole(MOST_FACTOR * rate_rps / each_rps) + 1
    count = max(planned + 1, min(most, whole(demand_rps / (BUSY * each_rps))), previous.count if previous is not None else 0)
    reason = f"overload: {rate_rps:.2f} rps and {backlog} more than fit, of {planned * each_rps:.2f} rps that {planned} carry"
    return Overload(count, max(batch, best), observation.now_s + HOLD_S, reason)


def _held(memory: Memory, now_s: float) -> Overload | None:
    values, until_s = memory.get("overload"), timestamp_in(memory, "overload_until_at_s")
    if until_s is None or not now_s < until_s <= now_s + HOLD_S or not isinstance(values, tuple):
        return None
    pair = dict(zip(("count", "batch"), values, strict=True))
    count, batch = count_in(pair, "count") or 0, count_in(pair, "batch") or 1
    return Overload(count, batch, until_s, f"overload a moment ago: {count} for {HOLD_S:g} s")


def _best(latency_s: Sequence[float], slo_s: float) -> tuple[int, float]:
    """The batch of the highest rate within half of the SLO, with the rate; else a batch of one."""
    timely = [number for number, seconds in enumerate(latency_s, start=1) if 2.0 * seconds <= slo_s]
    batch = max(timely or [1], key=lambda number: number / latency_s[number - 1])
    return batch, batch / latency_s[batch - 1]
