"""Change detection: tests whether the last arrivals still match the fitted process.

The test is a CUSUM in either direction. Per bin of Δ seconds with n arrivals, the evidence for a rate of λ(1 ± m) against λ is

    g ← max(0, g + (n·ln(1 ± m) ∓ λΔm)/I)        alarm: g ≥ h

the logarithm of a Poisson likelihood ratio, divided by the dispersion I of the fit at 60 s: what varies within a minute belongs
to the process, what lasts longer is a change. Near λ, g moves as a Brownian motion of drift −δ²/2 and variance δ² = λm²/I per
second, whose mean time to h is (2/δ²)(e^h − h − 1) (Siegmund, 1985). h is set so that both directions together raise one false
alarm a day; bins make that rarer, never more frequent. A change to λ(1 + x) is noticed after about h divided by its drift.

Worked example: 52 requests/s, I = 1, m = 10 %: δ² = 0.52/s, h = 10.7. Ten per cent more is noticed after about 43 s, 20 % after
15 s. A tenth of the rate takes ten times as long, and so does I = 10.

An alarm gives the time at which g last left 0: the counts from there on belong to the new rate.

**Jumps.** I at 60 s is large where the fitted window has one burst or idle seconds, and delays this test by minutes: a
change to 4.5 × took 80 s instead of 1.5 s. So a second CUSUM of the same form looks for jumps by half or more (ratios of 1.5 and
1/1.5), against what varies in *short windows* of the fitted counts:

- the dispersion is the median over blocks of some dozen bins, each measured around its own mean: neither one burst nor an earlier
  level changes the median, while bursts in every block do;
- *idle bins are left out*: if active bins have a mean of at least `ACTIVE_MEAN` arrivals, an empty bin shows that nothing
  arrives, not that the rate is lower. It counts neither for the reference nor as evidence. The first test covers an end of all
  arrivals.

52 requests/s, I = 1: half as much again is noticed after 2 s, and 4.5 × within the second.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gnomon_core.errors import bad_request
from gnomon_planner.maps import Map
from gnomon_planner.numerics import Array

DAY_S = 86400.0
BLOCK_BINS = 20
"""Bins of a block, around whose own mean the short dispersion is measured."""
WIDE_BINS = 4
"""Bins of the wider of the two short windows."""
ACTIVE_MEAN = 4.0
"""A Poisson bin with this mean is empty once in 55: below it empty bins are normal."""


@dataclass(frozen=True, slots=True)
class ChangeRule:
    """The changes to detect: a rate `margin` away, by variation within `within_s`; one false alarm per `false_alarm_s`.

    A rate `jump` times as high or as low is a jump, seen against variation within seconds.
    """

    margin: float = 0.1
    false_alarm_s: float = DAY_S
    within_s: float = 60.0
    jump: float = 1.5

    def __post_init__(self) -> None:
        if not (0.0 < self.margin < 1.0 and self.false_alarm_s > 0.0 and self.within_s > 0.0 and self.jump > 1.0):
            hint = "The margin is between 0 and 1, the times are positive, a jump is above 1."
            raise bad_request("bad_change_rule", f"{self}.", hint)


@dataclass(frozen=True, slots=True)
class Reference:
    """The expectation from the fit: the rate, and the dispersion of its counts within the rule's `within_s`.

    Jumps are seen by `active_rps`, the rate in the bins that were not idle, and `short_dispersion`, that of counts in short
    windows; None where they are those of the whole.
    """

    rate_rps: float
    dispersion: float = 1.0
    active_rps: float | None = None
    short_dispersion: float | None = None

    @classmethod
    def of(cls, process: Map, rule: ChangeRule, counts: Sequence[float] = (), bin_s: float = 1.0) -> Reference:
        """The reference of a fitted process and the counts it was fitted to. The dispersion is at least 1 (Poisson)."""
        reference = cls(process.rate_rps, max(1.0, process.dispersion(rule.within_s)))
        active_counts = _active_bins(np.asarray(counts, dtype=float))
        if not len(active_counts) or not active_counts.any():
            return reference
        short_dispersion = min(reference.dispersion, max(1.0, _short_dispersion(active_counts)))
        return cls(reference.rate_rps, reference.dispersion, float(active_counts.mean()) / bin_s, short_dispersion)

    def spread_per_s(self, rule: ChangeRule) -> float:
        """δ²: variance of the evidence by chance, per second."""
        return self.rate_rps * rule.margin**2 / self.dispersion

    def threshold(self, rule: ChangeRule) -> float:
        """h: each direction raises a false alarm every 2·false_alarm_s."""
        return _threshold(rule.false_alarm_s * self.spread_per_s(rule))

    @property
    def active(self) -> tuple[float, float]:
        """Rate (requests/s) and dispersion for the jump test."""
        rate_rps = self.rate_rps if self.active_rps is None else self.active_rps
        return rate_rps, self.dispersion if self.short_dispersion is None else self.short_dispersion

    def jump_threshold(self, rule: ChangeRule) -> float:
        """The threshold of the jump test, with the same rate of false alarms."""
        rate_rps, dispersion = self.active
        return _threshold(rule.false_alarm_s * rate_rps * (rule.jump - 1.0) ** 2 / dispersion)

    def delay_s(self, rule: ChangeRule, change: float) -> float:
        """Mean seconds until a change to rate·(1 + change) is noticed; infinite for less than about half the margin."""
        ratio = 1.0 + math.copysign(rule.margin, change)
        jump = rule.jump if change > 0.0 else 1.0 / rule.jump
        slow_s = _delay_s(self.threshold(rule), self.rate_rps / self.dispersion, ratio, change)
        rate_rps, dispersion = self.active
        return min(slow_s, _delay_s(self.jump_threshold(rule), rate_rps / dispersion, jump, change))


def _delay_s(threshold: float, rate: float, ratio: float, change: float) -> float:
    """The threshold divided by the drift of the evidence for rate·ratio, where the rate is rate·(1 + change)."""
    drift = rate * ((1.0 + change) * math.log(ratio) - (ratio - 1.0))
    return threshold / drift if drift > 0.0 else math.inf


def _active_bins(counts: Array) -> Array:
    """The counts without idle bins: empty ones, where the others have so many arrivals that chance leaves none of them empty."""
    nonempty = counts[counts > 0.0]
    return nonempty if len(nonempty) and float(nonempty.mean()) >= ACTIVE_MEAN else counts


def _short_dispersion(counts: Array) -> float:
    """Variance by mean of counts in windows of one and of `WIDE_BINS` bins, the larger; each the median over blocks."""
    dispersion = 1.0
    for width, bins in ((1, BLOCK_BINS), (WIDE_BINS, BLOCK_BINS * WIDE_BINS // 2)):
        size = min(bins, len(counts)) // width * width
        if size < 2 * width:
            continue
        blocks = counts[len(counts) % size :].reshape(-1, size // width, width).sum(axis=2)
        means = blocks.mean(axis=1)
        ratios = blocks.var(axis=1, ddof=1)[means > 0.0] / means[means > 0.0]
        dispersion = max(dispersion, float(np.median(ratios))) if len(ratios) else dispersion
    return dispersion


@functools.lru_cache(maxsize=64)
def _threshold(target: float) -> float:
    """The h with e^h − h − 1 = wanted; asked for once a bin, and the same for as long as a fit holds."""
    low, high = 0.0, 1.0
    while math.expm1(high) - high < target:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if math.expm1(middle) - middle < target else (low, middle)
    return high


@dataclass(frozen=True, slots=True)
class CusumState:
    """CUSUM evidence for more, less, a jump up and a jump down, with the time each left 0. Immutable and JSON-serialisable."""

    more: float = 0.0
    less: float = 0.0
    more_since_s: float = 0.0
    less_since_s: float = 0.0
    up: float = 0.0
    down: float = 0.0
    up_since_s: float = 0.0
    down_since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """An alarm: the rate has become higher or lower, since `since_s`."""

    higher: bool
    since_s: float


def detect_change(
    previous: CusumState, reference: Reference, rule: ChangeRule, count: float, *, bin_s: float, now_s: float
) -> tuple[CusumState, Change | None]:
    """The evidence after a bin of `bin_s` seconds that ended at `now_s` with `count` arrivals, and the alarm if it is enough.

    A reference without arrivals (rate 0) is left by the first one.
    """
    begin_s = now_s - bin_s
    if reference.rate_rps <= 0.0:
        return previous, Change(higher=True, since_s=begin_s) if count > 0.0 else None
    expected = reference.rate_rps * bin_s * rule.margin
    more = previous.more + (count * math.log1p(rule.margin) - expected) / reference.dispersion
    less = previous.less + (count * math.log1p(-rule.margin) + expected) / reference.dispersion
    state = replace(
        _jump_step(previous, reference, rule, count, bin_s=bin_s, begun_s=begin_s),
        more=max(more, 0.0),
        less=max(less, 0.0),
        more_since_s=previous.more_since_s if previous.more > 0.0 else begin_s,
        less_since_s=previous.less_since_s if previous.less > 0.0 else begin_s,
    )
    jump_threshold = reference.jump_threshold(rule)
    if max(state.up, state.down) >= jump_threshold:
        higher = state.up >= state.down
        return state, Change(higher, state.up_since_s if higher else state.down_since_s)
    if max(more, less) < reference.threshold(rule):
        return state, None
    higher = more >= less
    return state, Change(higher, state.more_since_s if higher else state.less_since_s)


def _jump_step(
    evidence: CusumState, reference: Reference, rule: ChangeRule, count: float, *, bin_s: float, begun_s: float
) -> CusumState:
    """The evidence for a jump after a bin that began at `begun_s`; that of an idle bin says nothing."""
    rate_rps, dispersion = reference.active
    expected = rate_rps * bin_s
    if count <= 0.0 and expected >= ACTIVE_MEAN:
        return evidence
    step = math.log(rule.jump)
    up = evidence.up + (count * step - expected * (rule.jump - 1.0)) / dispersion
    down = evidence.down + (expected * (1.0 - 1.0 / rule.jump) - count * step) / dispersion
    return replace(
        evidence,
        up=max(up, 0.0),
        down=max(down, 0.0),
        up_since_s=evidence.up_since_s if evidence.up > 0.0 else begun_s,
        down_since_s=evidence.down_since_s if evidence.down > 0.0 else begun_s,
    )
