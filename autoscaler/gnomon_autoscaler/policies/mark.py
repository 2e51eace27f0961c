"""`mark`: instances for a predicted rate and on-demand functions for bursts, as in MArk (Zhang et al., ATC'19).

Once a minute the rate at the time when new instances will be ready is predicted. The number of instances is rate / (α·R_max),
where R_max is the rate that one sustains within the SLO, and α (`gnomon/alpha`) leaves headroom for fluctuations.

Every five seconds, MArk's sampling period, the arrival rate, plus the rate at which the queue must be served within the SLO, is
compared with R_max of the ready instances. The excess *overflows*: that share of future requests is sent to functions, each
request alone. A burst is thus detected after up to five seconds, and earlier requests wait with the others. On a platform without
functions only the instances serve; the reason names the overflow.

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
"""The time in seconds between two plans."""
SURGE_S = 5.0
"""MArk samples the rate every five seconds."""
WINDOW_S = 120.0
"""The predictor's window in seconds, the best of the compared ones (see above)."""


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
        # Inherited instances stay until two minutes of history are recorded: a prediction from less is unreliable.
        floor = count_in(memory, "floor") if memory else len(observation.live)
        if floor is not None and len(observation.history.arrivals) * observation.history.bin_s < WINDOW_S - TOLERANCE_S:
            if desired.count < floor:
                desired = DesiredCount(floor, f"{desired.reason}; {floor} until there are {WINDOW_S:g} s")
        else:
            floor = None
        # Without a latency there is no plan, and the next attempt is in five seconds.
        planned_at_s = observation.now_s if observation.latency_s else None
        return replace(desired, memory={"count": desired.count, "planned_at_s": planned_at_s, "floor": floor})


class Mark:
    """The scaling policy: the instances of `Predicting` within the standard wrappers, and the overflow."""

    needs: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._instances = ReplicaPolicyAdapter(standard(Predicting()))
        self.name = self._instances.name
        self.period_s = self._instances.period_s
        self.default_scheduler = self._instances.default_scheduler

    def decide(self, observation: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        """The actions on instances, and the share of requests that overflows."""
        decision, after = self._instances.decide(observation, state)
        share, reason = overflow(observation)
        return replace(decision, reason=decision.reason + reason, overflow=share), after


def overflow(observation: Observation) -> tuple[float, str]:
    """The share of future requests that the ready instances cannot serve, from 0 to 1, and a reason, "" for none.

    Requests in the queue, beyond a batch for each instance, have to be served within the SLO in addition to the arrivals.
    """
    coming_rps = observation.history.rate_rps(observation.history.arrivals, SURGE_S)
    per_instance = _capacity(observation, coming_rps)
    if per_instance is None:
        return 0.0, ""
    waiting = max(0, observation.queued - len(observation.ready) * per_instance.batch)
    rate_rps = coming_rps + waiting / observation.settings.slo_s
    carried_rps = len(observation.ready) * per_instance.rate_rps
    if rate_rps <= carried_rps:
        return 0.0, ""
    share = 1.0 - carried_rps / rate_rps
    reason = f"{coming_rps:.2f} rps in {SURGE_S:g} s and {waiting} waiting are more than {len(observation.ready)} ready carry"
    return share, f"; {reason}: {share:.0%} overflow to functions"


def _capacity(observation: Observation, rate_rps: float) -> Capacity | None:
    return capacity(observation.latency_s, observation.settings.slo_s, rate_rps)
