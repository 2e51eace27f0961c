"""`od`, `lv` and `k-lv`: the three baselines of AsyFunc's section 2.1, and the capacity of one instance by which they divide.

Each predicts a rate R and requires R / R_max instances, where R_max is the rate that one instance sustains within the SLO:

- `od`, on demand: R is the mean of the last second, evaluated every second. The number follows the load in both directions at
once,
  so that each rise is served only after a model has loaded.
- `lv`, last value: R of the next period is the mean of the last one, 30 s, and instances are changed once a period.
- `k-lv`: 1.5 × the last value.

docs/decisions/0004-baselines-of-asyfunc.md has the settled points and a worked example.

`capacity` is R_max of AsyFunc's Eq. 1 for one instance. A batch of b takes t(b) seconds and, in a stream of R requests a second,
(b − 1) / R to fill. The capacity is the highest b / t(b) of the batches whose filling and execution end within the SLO. Every b
is examined, because b / t(b) need not rise with b on a CPU.

While no latency is known, an instance is taken to hold one full batch: the number is then the mean of requests in the system over
the same window, times the same factor, divided by the largest batch. The reason says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnomon_autoscaler.replica_policy import DesiredCount, Memory, whole
from gnomon_core.scaling import Observation

LAST_VALUE_PERIOD_S = 30.0
"""The time in seconds between two decisions, AsyFunc's example."""
K = 1.5
"""The factor of k-lv in AsyFunc."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Instances for `factor` × the mean rate of the last `period_s` seconds.

    More load asks for fewer instances only where it makes larger batches fill in time, so that each instance carries more.
    """

    name: str
    period_s: float
    factor: float = 1.0
    version: int = 1
    default_scheduler: str = "adaptive"

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:  # noqa: ARG002 - it remembers nothing
        measured_rps = observation.history.rate_rps(observation.history.arrivals, self.period_s)
        rate_rps = self.factor * measured_rps
        reason = f"{measured_rps:.2f} rps in {self.period_s:g} s"
        if self.factor != 1.0:
            reason = f"{self.factor:g} × {reason}"
        per_instance = capacity(observation.latency_s, observation.settings.slo_s, rate_rps)
        if per_instance is None:
            return self._by_concurrency(observation, reason)
        count = whole(rate_rps / per_instance.rate_rps)
        slow = "" if per_instance.within_slo else " (no batch meets the SLO)"
        return DesiredCount(
            count, f"{reason} / {per_instance.rate_rps:.2f} rps per instance at b = {per_instance.batch}{slow} = {count}"
        )

    def _by_concurrency(self, observation: Observation, reason: str) -> DesiredCount:
        waiting = observation.history.mean(observation.history.concurrency, self.period_s)
        count = whole(self.factor * waiting / observation.settings.max_batch)
        factor = f"{self.factor:g} × " if self.factor != 1.0 else ""
        load = f"{factor}{waiting:.2f} in the system / {observation.settings.max_batch} per instance"
        return DesiredCount(count, f"{reason}; latency not known yet, by concurrency: {load} = {count}")


def on_demand() -> Rate:
    """Make `od`: the current arrival rate, evaluated every second."""
    return Rate("od", period_s=1.0)


def last_value() -> Rate:
    """Make `lv`: the rate of the last period, as the prediction for the next one."""
    return Rate("lv", period_s=LAST_VALUE_PERIOD_S)


def k_last_value() -> Rate:
    """Make `k-lv`: one and a half times the rate of the last period."""
    return Rate("k-lv", period_s=LAST_VALUE_PERIOD_S, factor=K)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The rate one instance sustains, at which batch; `within_slo` is False where not even a batch of one meets the SLO."""

    rate_rps: float
    batch: int
    within_slo: bool


def capacity(latency_s: Sequence[float], slo_s: float, rate_rps: float) -> Capacity | None:
    """The capacity of an instance whose batches of 1, 2, … take `latency_s`; None where no latency is known.

    If no batch meets the SLO, the capacity is that of a batch of one, which answers earliest.
    """
    known_latency = [(batch, seconds) for batch, seconds in enumerate(latency_s, start=1) if seconds > 0]
    if not known_latency:
        return None
    timely = [(batch, seconds) for batch, seconds in known_latency if _filling_s(batch, rate_rps) + seconds <= slo_s]
    batch, seconds = max(timely or known_latency[:1], key=lambda entry: entry[0] / entry[1])
    return Capacity(batch / seconds, batch, bool(timely))


def _filling_s(batch: int, rate_rps: float) -> float:
    if batch == 1:
        return 0.0
    return (batch - 1) / rate_rps if rate_rps > 0 else float("inf")
