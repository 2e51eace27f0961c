"""`openfaas`: the two rules by which OpenFaaS scales.

**Community rule** (no `com.openfaas.scale.type`). An alert: more than 5 successful answers a second, averaged over 10 s, for 5 s.
While it fires, a step of `ceil(scale.max × scale.factor / 100)` instances is added at once and again every 30 s, as its alert
manager repeats; when it resolves, the count is `scale.min`. Between alerts the count stays what it is. The alert goes by answers,
and a function that takes a second for each never gives five a second. So there are never fewer instances than the requests in the
system need, averaged over 10 s, at 70 % of what an instance executes at once (`gnomon/target-concurrency`), as `kpa` counts. A
factor of 0 switches both off.

**Formula** (with a type). desired = ceil(ready × load per replica / (target × proportion)), where the load is

| type | load of a replica | target in |
| --- | --- | --- |
| rps | requests a second, over 10 s | requests a second |
| capacity | requests in the system, over 10 s | requests |
| queue | requests that wait now | requests |
| cpu | CPU, over 10 s | milli-CPU: 1000 is one core |

ready × load per replica is the whole load, so that the formula also has a meaning at zero ready replicas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gnomon_autoscaler.policies.kpa import target_in_system
from gnomon_autoscaler.replica_policy import DesiredCount, Memory, count_in, timestamp_in, whole
from gnomon_core.errors import bad_request
from gnomon_core.scaling import Observation
from gnomon_core.settings import Settings

# The alert APIHighInvocationRate of OpenFaaS's chart: rate over 10 s above 5, for 5 s; its Alertmanager repeats after 30 s.
WINDOW_S = 10.0
ALERT_RPS = 5.0
ALERT_FOR_S = 5.0
REPEAT_S = 30.0
MILLI = 1000.0


@dataclass(frozen=True, slots=True)
class CommunityRule:
    """Up by steps while the alert fires, back to the minimum when it resolves; never fewer than requests in the system need."""

    name: str = "openfaas"
    version: int = 1
    period_s: float = 1.0
    default_scheduler: str = "immediate"

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:
        alert = self._alert(observation, memory)
        load, target = (
            observation.history.mean(observation.history.concurrency, WINDOW_S),
            target_in_system(observation) * observation.settings.target_utilization,
        )
        needed = whole(load / target)
        if needed <= alert.count:
            return alert
        # The alert's own count is remembered as it is, so that the rule goes on from there when the load has gone.
        return replace(alert, count=needed, reason=f"{alert.reason}; {load:.2f} in the system / target {target:.2f} = {needed}")

    def _alert(self, observation: Observation, memory: Memory) -> DesiredCount:
        scale = observation.settings.scale
        lowest = scale.least
        rate_rps = observation.history.rate_rps(observation.history.successes, WINDOW_S)
        reason = f"{rate_rps:.2f} successes/s in {WINDOW_S:g} s"
        count = count_in(memory, "count")
        if observation.requested is not None:
            count = max(1, observation.requested)
        if rate_rps <= ALERT_RPS:
            resolved = timestamp_in(memory, "stepped_at_s") is not None
            # A function that another policy left at more is brought to its minimum, as by an alert that resolves.
            calm = lowest if resolved or count is None else count
            return DesiredCount(calm, f"{reason}, no alert{' any more' if resolved else ''}: {calm}", {"count": calm})
        above_at_s = timestamp_in(memory, "above_at_s")
        if above_at_s is None:
            above_at_s = observation.now_s
        stepped_at_s = timestamp_in(memory, "stepped_at_s")
        count = max(lowest, len(observation.live)) if count is None else count
        fires = observation.now_s - above_at_s >= ALERT_FOR_S
        if not fires or (stepped_at_s is not None and observation.now_s - stepped_at_s < REPEAT_S):
            memory_after = {"count": count, "above_at_s": above_at_s, "stepped_at_s": stepped_at_s}
            return DesiredCount(count, f"{reason}, alert {'fires' if fires else 'is pending'}: {count}", memory_after)
        step = whole(scale.max * scale.factor / 100)
        stepped = max(count, min(scale.max, count + step))
        return DesiredCount(
            stepped,
            f"{reason}, alert fires: {count} + {step} = {count + step}, at most {scale.max}",
            {"count": stepped, "above_at_s": above_at_s, "stepped_at_s": observation.now_s},
        )


@dataclass(frozen=True, slots=True)
class LoadFormula:
    """The policy `openfaas`: the instances that the load needs. More load never requests fewer instances."""

    name: str = "openfaas"
    # Another number than the Community rule's, because neither can read the other's memory.
    version: int = 2
    # As often as Knative's autoscaler: a request that no instance can serve does not wait for it.
    period_s: float = 2.0
    default_scheduler: str = "immediate"

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:  # noqa: ARG002 - it remembers nothing
        scale = observation.settings.scale
        load, unit = _load(observation)
        target = scale.target * scale.target_proportion
        count = max(1, whole(load / target))
        return DesiredCount(count, f"{load:.2f} {unit} / ({scale.target:g} × {scale.target_proportion:g}) = {count}")


def _load(observation: Observation) -> tuple[float, str]:
    history = observation.history
    match observation.settings.scale.type:
        case "capacity":
            return history.mean(history.concurrency, WINDOW_S), "in the system"
        case "queue":
            return float(observation.queued), "waiting"
        case "cpu":
            return history.mean(history.busy_cores, WINDOW_S) * MILLI, "milli-CPU"
        case _:
            return history.rate_rps(history.arrivals, WINDOW_S), "rps"


def openfaas(settings: Settings) -> CommunityRule | LoadFormula:
    """The rule that the function's labels choose.

    Raises:
        GnomonError: 400 `unsupported_scale_type` for `custom`, whose load only a Prometheus query knows.

    """
    if settings.scale.type is None:
        return CommunityRule()
    if settings.scale.type == "custom":
        raise bad_request(
            "unsupported_scale_type",
            "label com.openfaas.scale.type is custom, whose load comes from a Prometheus query.",
            "Use rps, capacity, queue or cpu, or write a scaling policy (docs/howto/add-a-policy.md).",
        )
    return LoadFormula()
