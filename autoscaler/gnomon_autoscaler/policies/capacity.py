"""What one instance sustains within the SLO: R_max of AsyFunc's Eq. 1 for one instance.

A batch of b takes t(b) and, in a stream of R requests a second, (b − 1) / R to fill. The capacity is the highest b / t(b) of the
batches whose filling and execution end within the SLO. Every b is looked at, because b / t(b) need not rise with b on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    """The rate one instance sustains, at which batch; `within_slo` is False where not even a batch of one meets the SLO."""

    rate_rps: float
    batch: int
    within_slo: bool


def capacity(latency_s: Sequence[float], slo_s: float, rate_rps: float) -> Capacity | None:
    """The capacity of an instance whose batches of 1, 2, … take `latency_s`; None where no latency is known.

    Where nothing meets the SLO, a batch of one is the best there is: late answers come no later by serving them singly.
    """
    known = [(batch, seconds) for batch, seconds in enumerate(latency_s, start=1) if seconds > 0]
    if not known:
        return None
    timely = [(batch, seconds) for batch, seconds in known if _filling_s(batch, rate_rps) + seconds <= slo_s]
    batch, seconds = max(timely or known[:1], key=lambda entry: entry[0] / entry[1])
    return Capacity(batch / seconds, batch, bool(timely))


def _filling_s(batch: int, rate_rps: float) -> float:
    if batch == 1:
        return 0.0
    return (batch - 1) / rate_rps if rate_rps > 0 else float("inf")
