"""Replays: what recent arrivals would have cost and lost under a rule for the number of Bodies.

A rule is a floor F, a reaction f and a hold h. At each look, half a second apart, it wants

    n = max(F, the fewest that answer f · arrivals of the last second)        the highest of the last h seconds

and a Body serves a load time after it was first wanted. What n Bodies answer need not be n times what one does: nodes have
different numbers of cores. The replay is a fluid queue: what waits grows by the arrivals and falls
by what the Bodies that serve answer.

**Shadows.** A rule may meet n with Shadows of the Bodies that serve. Shadows start in milliseconds, but raise what their Bodies
answer to 1 + g times at most. A Body is then wanted only once n has lasted for a load time: a shorter burst would be over before.

    answered = max(A, min(W, (1 + g)·A))    A: by the Bodies that serve, W: by n Bodies if they started as quickly as Shadows

The Shadows' cost is added to the mean number of Bodies, so that a rule with Shadows is taken only where it is the cheapest.

    V(k) = max(0, V(k−1) − answered between k−1 and k) + arrived at k

A request is late where the work before it takes longer than the objective leaves beside its own batch. With cumulative sums, W of
arrivals and C of what could be answered, V(k) = S(k) − min(0, min over j ≤ k of S(j) − w(j)) where S = W − C: a few passes over
arrays.

**Points.** Counts per half second hide the queue within them, which is all that one or two Bodies have. Up to `FEW` requests are
replayed one by one, at times that are spread evenly over their half second by a fixed sequence. Of more, each count is divided
into parts of about a third of what the objective leaves, with the spread that a Poisson process has between these parts. The
sequence and the spread are constants: the same window always gives the same rule.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

FACTORS = (0.9, 1.1, 1.3, 1.6, 2.0)
HOLDS_S = (1.0, 4.0, 12.0)
FEW = 4096
"""Requests of a window that are replayed one by one."""
MOST_PARTS = 16
RESOLUTION = 3.0
"""Parts of what the objective leaves for waiting."""
SECOND_S = 1.0
_GOLDEN = 0.6180339887498949
_LARGE = 1e18
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Rule:
    """Floor, reaction and hold of a rule, and whether Shadows meet the reaction until Bodies have started.

    `loss` is the share of a window's requests that it loses, `bodies` its mean cost: the number of Bodies, and of Shadows at what
    one costs in Bodies.
    """

    floor: int
    factor: float
    hold_s: float
    loss: float = 0.0
    bodies: float = 0.0
    shadows: bool = False


@dataclass(frozen=True, slots=True)
class Help:
    """What Shadows add: `gain` is what all of them add to what their Bodies answer, as a share of that.

    One adds `each_rps`, costs as much as `cost` Bodies, and works for its Body `load_s` after it was wanted.
    """

    gain: float
    each_rps: float
    cost: float
    load_s: float


@dataclass(frozen=True)
class Speed:
    """The throughput of 0, 1, 2, … Bodies, in batches that take `batch_s`; a Body serves `load_s` after it was wanted.

    `rates_rps` ends where a further Body answers nothing more.
    """

    rates_rps: tuple[float, ...]
    batch_s: float
    load_s: float

    @cached_property
    def rates(self) -> Vector:
        """`rates_rps` as an array. Of 10,000 Bodies it takes 0.25 ms to make, and a replay reads it hundreds of times."""
        return np.asarray(self.rates_rps)

    @property
    def most(self) -> int:
        """The largest number of Bodies that is of use."""
        return len(self.rates_rps) - 1

    def bodies(self, rate_rps: float) -> int:
        """The fewest Bodies that answer so many requests a second; the most that are of use where none do."""
        return min(self.most, bisect_left(self.rates_rps, rate_rps * (1 - ROUNDING)))

    def rate_rps(self, bodies: int) -> float:
        """The throughput of this number of Bodies."""
        return self.rates_rps[min(bodies, self.most)]


@dataclass(frozen=True, slots=True)
class Window:
    """Recent arrivals by bins of `bin_s`, as points in time with weights."""

    arrivals: Vector
    bin_s: float
    bins: npt.NDArray[np.int64]
    offsets: Vector
    weights: Vector

    @property
    def requests(self) -> float:
        return float(self.arrivals.sum())

    @property
    def duration_s(self) -> float:
        return len(self.arrivals) * self.bin_s


def window(arrivals: Sequence[float], bin_s: float, wait_s: float) -> Window:
    """The points at which these counts are replayed; `wait_s` is how long a request may wait."""
    counts = np.asarray(arrivals, dtype=np.float64)
    if counts.sum() <= FEW:
        return _one_by_one(counts, bin_s)
    parts = min(MOST_PARTS, max(1, math.ceil(RESOLUTION * bin_s / max(wait_s, 1e-6))))
    return _in_parts(counts, bin_s, parts)


def _one_by_one(counts: Vector, bin_s: float) -> Window:
    whole = np.floor(np.cumsum(counts) + 1e-6)
    per_bin = np.diff(whole, prepend=0.0).astype(np.int64)
    bins = np.repeat(np.arange(len(counts)), per_bin)
    # Fractions of a golden section are spread evenly, and look like chance from bin to bin.
    shares: Vector = (np.arange(1, len(bins) + 1, dtype=np.float64) ** 2 * _GOLDEN) % 1.0
    order = np.argsort(bins + shares, kind="stable")
    return Window(counts, bin_s, bins, shares[order] * bin_s, np.ones(len(bins)))


def _in_parts(counts: Vector, bin_s: float, parts: int) -> Window:
    share = counts[:, None] / parts
    spread = np.maximum(0.0, share + np.sqrt(share) * _noise(len(counts), parts))
    spread *= (counts / np.maximum(spread.sum(axis=1), 1e-12))[:, None]
    bins = np.repeat(np.arange(len(counts)), parts)
    offsets = np.tile((np.arange(parts) + 1.0) * (bin_s / parts), len(counts))
    return Window(counts, bin_s, bins, offsets, spread.ravel())


@lru_cache(maxsize=64)
def _noise(bins: int, parts: int) -> Vector:
    """Normal deviations that add up to nothing in each bin."""
    drawn: Vector = np.random.default_rng(1).standard_normal((bins, parts))
    centred: Vector = drawn - drawn.mean(axis=1, keepdims=True)
    return centred


def wanted(recent: Window, speed: Speed, factor: float, hold_s: float) -> Vector:
    """The reaction's number of Bodies at the beginning of each bin, without the floor."""
    if factor <= 0.0:
        return np.zeros(len(recent.arrivals))
    back = max(1, round(SECOND_S / recent.bin_s))
    total = np.concatenate(([0.0], np.cumsum(recent.arrivals)))
    ends = np.arange(len(recent.arrivals))
    last_second = total[ends] - total[np.maximum(0, ends - back)]
    rates_rps = factor * last_second / (back * recent.bin_s) * (1 - ROUNDING)
    needed = np.minimum(speed.most, np.searchsorted(speed.rates, rates_rps)).astype(np.float64)
    return _highest(needed, max(1, round(hold_s / recent.bin_s)))


def _highest(values: Vector, bins: int) -> Vector:
    """The highest of the last so many values, at each of them."""
    span, found, bins = 1, values, min(bins, len(values))
    while span < bins:
        step = min(span, bins - span)
        found = np.maximum(found, np.concatenate((np.full(step, -_LARGE), found[:-step])))
        span += step
    return found


def serving(counts: Vector, load_bins: int) -> Vector:
    """The number of loaded Bodies in each bin: those that have been wanted for this many bins."""
    if load_bins <= 0:
        return counts
    padded = np.concatenate((np.full(load_bins, counts[0]), counts))
    return -_highest(-padded, load_bins + 1)[load_bins:]


def answered_rps(counts: Vector, speed: Speed, bin_s: float, load_s: float | None = None) -> Vector:
    """The throughput of the serving Bodies in each bin, given the number that is wanted at its beginning.

    `load_s` is another time than their own after which they serve.
    """
    whole, part = divmod((speed.load_s if load_s is None else load_s) / bin_s, 1.0)
    soon, later = (speed.rates[np.minimum(speed.most, serving(counts, int(whole) + more)).astype(np.int64)] for more in (0, 1))
    return (1 - part) * soon + part * later


def late_share(recent: Window, wait_s: float, rates_rps: Vector) -> float:
    """The share of requests that would have been late at these rates of answers."""
    before = np.concatenate(([0.0], np.cumsum(rates_rps * recent.bin_s)))
    rate_now = rates_rps[recent.bins]
    ahead = np.cumsum(recent.weights) - recent.weights - before[recent.bins] - rate_now * recent.offsets
    # The work before a request, in the middle of its part where a point stands for several.
    work = ahead - np.minimum(0.0, np.minimum.accumulate(ahead)) + np.maximum(0.0, recent.weights - 1.0) / 2
    late = work > wait_s * rate_now
    return float(late @ recent.weights) / max(1.0, float(recent.weights.sum()))


def never_wait_long(arrivals: Sequence[float], bin_s: float, rate_rps: float, wait_s: float) -> bool:
    """Return whether at this rate of answers no request waits long, wherever in its bin it came: then no replay is needed.

    No bin brings more than is answered within a bin, so at most one bin's arrivals wait when the next bin's come.
    """
    highest = max(arrivals, default=0.0)
    return highest <= rate_rps * bin_s and 2 * highest <= rate_rps * wait_s


def cheapest(
    recent: Window,
    speed: Speed,
    slo_s: float,
    loss: float,
    *,
    least: int = 1,
    most: int = 10_000,
    reacts: bool = True,
    help_: Help | None = None,
) -> Rule:
    """The rule of least cost that loses at most this share; else the one that loses least.

    Rules with Shadows are replayed where `help_` says what those add.
    """
    replays = _Replays(recent, speed, max(0.0, slo_s - speed.batch_s), loss, least, max(least, min(most, speed.most)), help_)
    floor, lost = replays.least_floor(_Reaction.none(recent), replays.most)
    best = Rule(floor, 0.0, 0.0, lost, float(floor))
    if not reacts or best.floor <= least:
        return best
    for factor in FACTORS:
        for hold_s in HOLDS_S:
            for reaction in replays.reactions(wanted(recent, speed, factor, hold_s)):
                enough = best.loss <= loss
                # With this floor or a higher one it is not cheaper; where it loses too much, so does a lower one.
                top = max(least, math.ceil(best.bodies) - 1) if enough else replays.most
                dear = float(np.maximum(reaction.bodies, least).mean()) >= best.bodies
                if enough and (dear or replays.lost(reaction, top) > loss):
                    continue
                floor, lost = replays.least_floor(reaction, top)
                cost = replays.cost(reaction, floor)
                if cost < best.bodies if enough and lost <= loss else lost < best.loss:
                    best = Rule(floor, factor, hold_s, lost, cost, reaction.shadows)
    return best


@dataclass(frozen=True, slots=True)
class _Reaction:
    """The number that a rule wants in each bin without its floor, and how many of these are Bodies from then on."""

    wanted: Vector
    bodies: Vector
    shadows: bool = False

    @staticmethod
    def none(recent: Window) -> _Reaction:
        zeros = np.zeros(len(recent.arrivals))
        return _Reaction(zeros, zeros)


@dataclass(frozen=True, slots=True)
class _Replays:
    """The replays of one window: a request may wait `wait_s`, a rule may lose `loss`, and has `least` to `most` Bodies."""

    recent: Window
    speed: Speed
    wait_s: float
    loss: float
    least: int
    most: int
    help: Help | None = None

    def reactions(self, moving: Vector) -> list[_Reaction]:
        """This reaction by Bodies alone, and by Shadows first where there are any."""
        alone = _Reaction(moving, moving)
        if self.help is None or self.help.load_s >= self.speed.load_s:
            return [alone]
        lasting = serving(moving, math.ceil(self.speed.load_s / self.recent.bin_s))
        return [alone, _Reaction(moving, lasting, shadows=True)]

    def lost(self, reaction: _Reaction, floor: int) -> float:
        """The loss of the rule with this reaction and floor."""
        bodies_rps, shadows_rps = self._answered_rps(reaction, floor)
        return late_share(self.recent, self.wait_s, bodies_rps + shadows_rps)

    def cost(self, reaction: _Reaction, floor: int) -> float:
        """The mean number of Bodies, and of Shadows at what one costs in Bodies."""
        bodies = float(self._counts(reaction.bodies, floor).mean())
        if self.help is None or not reaction.shadows:
            return bodies
        _, shadows_rps = self._answered_rps(reaction, floor)
        return bodies + self.help.cost * float(np.ceil(shadows_rps / self.help.each_rps - ROUNDING).mean())

    def _counts(self, moving: Vector, floor: int) -> Vector:
        return np.minimum(self.most, np.maximum(floor, moving))

    def _answered_rps(self, reaction: _Reaction, floor: int) -> tuple[Vector, Vector]:
        """The throughput of the serving Bodies, and what their Shadows add to it."""
        bin_s = self.recent.bin_s
        alone_rps = answered_rps(self._counts(reaction.bodies, floor), self.speed, bin_s)
        if self.help is None or not reaction.shadows:
            return alone_rps, np.zeros(len(alone_rps))
        wanted_rps = answered_rps(self._counts(reaction.wanted, floor), self.speed, bin_s, self.help.load_s)
        return alone_rps, np.clip(wanted_rps - alone_rps, 0.0, self.help.gain * alone_rps)

    def least_floor(self, reaction: _Reaction, most: int) -> tuple[int, float]:
        """The least floor up to `most` with which this reaction loses no more than `loss`, and what it loses; else `most`."""
        mean = self.speed.bodies(self.recent.requests / max(self.recent.duration_s, 1e-9))
        low, high = self.least, min(most, max(self.least, 2 * mean))
        found = self.lost(reaction, high)
        while found > self.loss and high < most:
            low, high = high + 1, min(most, 2 * high)
            found = self.lost(reaction, high)
        if found > self.loss:
            return high, found
        while low < high:
            middle = (low + high) // 2
            this = self.lost(reaction, middle)
            if this <= self.loss:
                high, found = middle, this
            else:
                low = middle + 1
        return high, found
