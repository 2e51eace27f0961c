"""The burst: a steady rate, for some seconds several times as much, and the steady rate again.

Rates are in units of what one Body can take within the objective, R = max over b of b / t(b) with t(b) ≤ SLO (AsyFunc, Eq. 1), so
that the same shape means the same on every machine. Steady is 0.5 R; the burst is 1.3 R, more than a Body can take and less than
a pair.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from gnomon_core.profiles import ModelProfile
from gnomon_simulator.arrivals import poisson


@dataclass(frozen=True, slots=True)
class Burst:
    """Seconds before, in and after the burst, and the two rates in requests per second."""

    before_s: float = 15.0
    burst_s: float = 8.0
    after_s: float = 12.0
    steady_rps: float = 1.0
    burst_rps: float = 3.0

    @property
    def duration_s(self) -> float:
        return self.before_s + self.burst_s + self.after_s

    def arrivals(self, seed: int) -> list[float]:
        """When requests come, in seconds from the start; the same for the same seed."""
        chance = random.Random(seed)
        times: list[float] = []
        begin_s = 0.0
        for length_s, rate_rps in (
            (self.before_s, self.steady_rps),
            (self.burst_s, self.burst_rps),
            (self.after_s, self.steady_rps),
        ):
            times += [begin_s + time_s for time_s in poisson(rate_rps, length_s, chance)]
            begin_s += length_s
        return times


def able_rps(profile: ModelProfile, cores: int, slo_s: float, max_batch: int) -> float:
    """R: the most that one Body can take within the objective; 0 where no batch meets it."""
    rates = [0.0]
    for batch in range(1, max_batch + 1):
        seconds = profile.whole.at(cores, batch)
        if seconds is not None and seconds <= slo_s:
            rates.append(batch / seconds)
    return max(rates)


def burst_for(profile: ModelProfile, slo_s: float, max_batch: int, *, times: float = 1.3) -> Burst:
    """The burst for a Body of one core."""
    rate_rps = able_rps(profile, 1, slo_s, max_batch)
    return Burst(steady_rps=0.5 * rate_rps, burst_rps=times * rate_rps)
