"""`mark`: instances for a predicted rate and functions on demand at bursts, as MArk (Zhang et al., ATC'19) serves.

Once a minute the rate of the time in which the next instances will serve is predicted, and there are rate / (α·R_max) instances
for it, where R_max is what one sustains within the SLO and α (`gnomon/alpha`) leaves room for moments in which more comes.

Every five seconds, which is how often MArk samples the rate, what came in them and what has to leave the queue within the SLO
are compared with R_max of the instances that are ready. What they do not carry *overflows*: that share of the requests to come
goes to functions, each request alone. A burst is thus seen after up to five seconds, and what came before waits with the
others. A platform without functions has only the instances; the reason says what would overflow.

**The predictor** is the mean rate of the last 120 s. MArk trains a recurrent network on days of a trace; a function that was just
deployed has none. On Twitter's day, of a minute that begins one or three minutes later, this mean is off by 5.4 and 6.2 %, that
of 30 s by 5.7 and 6.7 %, a line through 300 s by 7.3 and 10.4 %, a line through 60 s by 16 and 32 %: demand lies on plateaus, and
a line leads off their edges. docs/decisions/0023-baselines-of-batch.md has more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gnomon_autoscaler.policies.rates import Capacity, Rate, capacity
from gnomon_autoscaler.replica_policy import (
    TOLERANCE_S,
    DesiredCount,
    Memory,
    ReplicaPolicyAdapter,
    count_in,
    timestamp_in,
    within_period,
)
from gnomon_autoscaler.wrappers import standard
from gnomon_core.scaling import Decision, Observation, PolicyState

PERIOD_S = 60.0
"""Between two plans."""
SURGE_S = 5.0
"""MArk samples the rate every five seconds."""
WINDOW_S = 120.0
"""The predictor's window: the best of those that were compared, see above."""


@dataclass(frozen=True, slots=True)
class Predicting:
    """MArk's policy: the instances that the predicted rate needs, decided every minute."""

    name: str = "mark"
    version: int = 1
    period_s: float = SURGE_S
    default_scheduler: str = "immediate"

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:
        count, planned_at_s = count_in(memory, "count"), timestamp_in(memory, "planned_at_s")
        if count is not None and within_period(planned_at_s, PERIOD_S, observation.now_s):
            return DesiredCount(count, f"{count} planned {observation.now_s - planned_at_s:.0f} s ago", memory)
        desired = Rate(self.name, WINDOW_S, 1.0 / observation.settings.alpha).desired_count(observation, {})
        # What it took over stays until two minutes have been seen: a short history foresees little, one of no length nothing.
        floor = count_in(memory, "floor") if memory else len(observation.live)
        if floor is not None and len(observation.history.arrivals) * observation.history.bin_s < WINDOW_S - TOLERANCE_S:
            if desired.count < floor:
                desired = DesiredCount(floor, f"{desired.reason}; {floor} until there are {WINDOW_S:g} s")
        else:
            floor = None
        # Without a latency there is no plan, and it looks again in five seconds.
        planned_at_s = observation.now_s if observation.latency_s else None
        return replace(desired, memory={"count": desired.count, "planned_at_s": planned_at_s, "floor": floor})


class Mark:
    """The instances, within what every function's owner relies on, and the share that overflows."""

    needs: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._instances = ReplicaPolicyAdapter(standard(Predicting()))
        self.name = self._instances.name
        self.period_s = self._instances.period_s
        self.default_scheduler = self._instances.default_scheduler

    def decide(self, observation: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        """The instances' actions, and what they will not carry."""
        decision, after = self._instances.decide(observation, state)
        share, reason = overflow(observation)
        return replace(decision, reason=decision.reason + reason, overflow=share), after


def overflow(observation: Observation) -> tuple[float, str]:
    """The share of the requests to come that the ready instances do not carry, from 0 to 1; and a reason, "" for none.

    What waits beyond a batch for each instance has to leave within the SLO, beside what comes.
    """
    coming_rps = observation.history.rate_rps(observation.history.arrivals, SURGE_S)
    one = _capacity(observation, coming_rps)
    if one is None:
        return 0.0, ""
    waiting = max(0, observation.queued - len(observation.ready) * one.batch)
    rate_rps = coming_rps + waiting / observation.settings.slo_s
    carried_rps = len(observation.ready) * one.rate_rps
    if rate_rps <= carried_rps:
        return 0.0, ""
    share = 1.0 - carried_rps / rate_rps
    reason = f"{coming_rps:.2f} rps in {SURGE_S:g} s and {waiting} waiting are more than {len(observation.ready)} ready carry"
    return share, f"; {reason}: {share:.0%} overflow to functions"


def _capacity(observation: Observation, rate_rps: float) -> Capacity | None:
    return capacity(observation.latency_s, observation.settings.slo_s, rate_rps)
