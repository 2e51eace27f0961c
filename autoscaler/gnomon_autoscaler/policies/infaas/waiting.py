"""The load that instances of a variant serve in time: their capacity, less what waiting needs of it.

A query whose objective is L, and whose batch takes D, may wait w = L − D for its batch to begin. With c instances that take
single queries, first come first served, query n begins when query n − c has ended, if that is later than its arrival:

    begin(n) = max(arrival(n), begin(n − c) + D)

Poisson arrivals of rate λ are assumed. Each bound on the share of late queries gives a load that is served in time, and the
larger one counts; both approach the capacity c / D with more instances, and with a longer wait.

- Each instance gets every c-th query, and is a queue with Erlang-distributed gaps between arrivals. Kingman's bound of such a
  queue is P(late) ≤ exp(−θ·w) where θ satisfies exp(θ·D) · (λ / (λ + θ))^c = 1. With the tolerated share ε that is

      λ = c / D · x / (exp(x) − 1),   x = ln(1 / ε) · D / (w·c)

- A query waits longer than w exactly if for some k = 1, 2, … its last k·c predecessors arrived within k·D − w before it, so that
  by Boole P(late) ≤ Σ_k P(Poisson(λ·(k·D − w)) ≥ k·c). That is the better bound where few queries may wait: an objective of 1.5
  times a query's time leaves 8 % of one instance instead of 1.5 %, with ε = 0.05. Of a Poisson tail P(N ≥ m) of mean μ < m the
  bound P(N = m) / (1 − μ / (m + 1)) is computed.

**Batches.** An instance that takes up to b queries at once is late for k = 1 already if c batches of one query each began just
before, and each further batch takes b queries: c·(1 + (k − 1)·b) in place of k·c, or c·b instances with w less (1 − 1 / b)·D. A
variant may also make smaller batches than its largest, which take less time: the size that serves most counts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from functools import lru_cache

STEPS = 20
"""Halvings of the interval in which the served load lies."""
TERMS = 60
"""The most terms of the sum."""
SHORT_WAIT = 3.0
"""The sum is computed for waits below so many times a batch; for longer ones Kingman's bound is the better one."""
NEGLIGIBLE = 1e-3
"""A term of this share of the tolerated one ends the sum, beyond the term that is the largest where instances are busy."""


def served_in_time(
    latency_s: Mapping[int, float], max_batch: int, instances: int, objective_s: float, late_share: float
) -> float:
    """The queries per second that so many instances answer within the objective, but for a tolerated share.

    `latency_s` is the time of a batch by its size. It is 0 where not even a batch of one query is in time.
    """
    best = 0.0
    for size, seconds in latency_s.items():
        if size <= max_batch and 0.0 < seconds <= objective_s:
            best = max(best, utilization(size, instances, objective_s / seconds - 1.0, late_share) * instances * size / seconds)
    return best


@lru_cache(maxsize=1 << 16)
def utilization(size: int, instances: int, patience: float, late_share: float) -> float:
    """The share of their capacity that instances may use; `patience` is the tolerated wait as a multiple of a batch's time."""
    slack = patience - 1.0 + 1.0 / size
    low, high = 0.0, 1.0
    if slack > 0.0:
        exponent = -math.log(late_share) / (slack * instances * size)
        if exponent <= 0.0:
            low = 1.0  # the objective is so long that the division has no digits left
        elif exponent < math.log(sys.float_info.max):
            low = exponent / math.expm1(exponent)
    if patience >= SHORT_WAIT or not _is_in_time(size, instances, patience, max(low, 2.0**-STEPS), late_share):
        return low
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        if _is_in_time(size, instances, patience, middle, late_share):
            low = middle
        else:
            high = middle
    return low


def _is_in_time(size: int, instances: int, patience: float, used: float, late_share: float) -> bool:
    """Return whether the bound of the late share is within the tolerated one, at this share of the capacity."""
    arrivals = used * instances * size  # in the time of a batch
    likeliest = used * patience / (1.0 - used) if used < 1.0 else math.inf
    first, late = math.floor(patience) + 1, 0.0
    for number in range(first, first + TERMS):
        term = _tail(arrivals * (number - patience), instances * (1 + (number - 1) * size))
        late += term
        if late > late_share:
            return False
        if number > likeliest and term <= NEGLIGIBLE * late_share:
            return True
    return False


def _tail(mean: float, least: int) -> float:
    """An upper bound of the probability that a Poisson variable of this mean reaches `least`."""
    if mean <= 0.0:
        return 0.0
    if mean >= least:
        return 1.0
    mass = math.exp(least * math.log(mean) - mean - math.lgamma(least + 1))
    return min(1.0, mass / (1.0 - mean / (least + 1)))
