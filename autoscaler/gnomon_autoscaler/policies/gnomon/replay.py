"""Replays: what recent arrivals would have cost and lost under a rule for the number of Bodies.

A rule is a floor F, a reaction f and a hold h. At each look, half a second apart, it wants

    n = max(F, the fewest that answer f · arrivals of the last second)        the highest of the last h seconds

and a Body serves a load time after it was first wanted. What n Bodies answer need not be n times what one does: nodes have
different numbers of cores. The replay is a fluid queue: what waits grows by the arrivals and falls by what the Bodies that serve
answer.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

FACTORS = (0.9, 1.1, 1.3, 1.6, 2.0)
HOLDS_S = (1.0, 4.0, 12.0)
FEW = 4096
"""The number of requests of a window up to which each is replayed by itself."""
ROWS = 4
"""Rows of the columns of such a window: with more rows more are empty, with fewer there are more columns."""
MOST_PARTS = 16
RESOLUTION = 3.0
"""The number of parts into which the time that the objective leaves for waiting is divided."""
SECOND_S = 1.0
_GOLDEN = 0.6180339887498949
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

    def decides_as(self, other: Rule) -> bool:
        """Return whether both rules want the same number of Bodies for the same load."""
        mine, others = ((rule.floor, rule.factor, rule.hold_s, rule.shadows) for rule in (self, other))
        return mine == others


@dataclass(frozen=True, slots=True)
class Help:
    """The help of Shadows: `gain` is what all of them add to what their Bodies answer, as a share of that.

    One adds `each_rps`, costs as much as `cost` Bodies, and works for its Body `load_s` after it was wanted.
    """

    gain: float
    each_rps: float
    cost: float
    load_s: float


@dataclass(frozen=True)
class Speed:
    """The throughput of 0, 1, 2, … Bodies, in batches that take `batch_s`; a Body serves `load_s` after it was wanted.

    `rates_rps` never falls, and ends where a further Body answers nothing more.
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


@dataclass(frozen=True)
class Window:
    """Recent arrivals by bins of `bin_s`, as points in time with weights, in columns of equally many rows.

    A column holds consecutive points of one bin (`bins`, one for each column), from its first row to its last: sums and minima
    along the time are computed for all columns at once, and then from column to column. A column that a bin does not fill ends
    with points of no weight, which changes nothing: what is not late at them counts for nothing, and no request waits less.
    """

    arrivals: Vector
    bin_s: float
    bins: Counts
    offsets: Vector
    """Seconds from the beginning of the bin, (rows, columns)."""
    weights: Vector
    """(rows, columns)"""

    @property
    def requests(self) -> float:
        return float(self.arrivals.sum())

    @property
    def duration_s(self) -> float:
        return len(self.arrivals) * self.bin_s

    @cached_property
    def before(self) -> Vector:
        """The arrivals before each point, (rows, columns)."""
        within = _down(np.add, self.weights.copy())
        columns = within[-1]
        before: Vector = within - self.weights + (np.cumsum(columns) - columns)
        return before

    @cached_property
    def halfway(self) -> Vector:
        """The arrivals before the middle of each point, which may stand for several requests, (rows, columns)."""
        halfway: Vector = self.before + np.maximum(0.0, self.weights - 1.0) / 2
        return halfway

    @cached_property
    def total(self) -> float:
        """The weight of all points."""
        return float(self.weights.sum())


def window(arrivals: Sequence[float] | Vector, bin_s: float, wait_s: float) -> Window:
    """The points at which these counts are replayed; `wait_s` is how long a request may wait."""
    counts = np.asarray(arrivals, dtype=np.float64)
    if counts.sum() <= FEW:
        return _one_by_one(counts, bin_s)
    parts = min(MOST_PARTS, max(1, math.ceil(RESOLUTION * bin_s / max(wait_s, 1e-6))))
    return _in_parts(counts, bin_s, parts)


def _one_by_one(counts: Vector, bin_s: float) -> Window:
    ends = np.floor(np.cumsum(counts) + 1e-6).astype(np.int64)
    per_bin = ends.copy()
    per_bin[1:] -= ends[:-1]
    columns = -(-per_bin // ROWS)
    last_column = np.cumsum(columns)
    bins = np.arange(len(counts))
    column_bins = bins.repeat(columns)
    # Points of a column: all rows, but for the last one of each bin.
    heights = np.full(len(column_bins), ROWS)
    filled = per_bin > 0
    heights[last_column[filled] - 1] = (per_bin - (columns - 1) * ROWS)[filled]
    starts = bins.repeat(per_bin)
    times = np.sort(starts + _shares(FEW)[: len(starts)])
    # By columns first, where points are in the order of time.
    taken = np.arange(ROWS) < heights[:, None]
    offsets = np.full(taken.shape, bin_s)
    offsets[taken] = (times - starts) * bin_s
    return Window(counts, bin_s, column_bins, np.ascontiguousarray(offsets.T), np.ascontiguousarray(taken.T, dtype=np.float64))


@lru_cache(maxsize=1)
def _shares(points: int) -> Vector:
    """Fractions of a golden section: they are spread evenly, and look like chance from bin to bin."""
    shares: Vector = (np.arange(1, points + 1, dtype=np.float64) ** 2 * _GOLDEN) % 1.0
    return shares


def _in_parts(counts: Vector, bin_s: float, parts: int) -> Window:
    share = counts / parts
    spread = np.maximum(0.0, share + np.sqrt(share) * _noise(len(counts), parts))
    spread *= counts / np.maximum(spread.sum(axis=0), 1e-12)
    bins, offsets = _ends_of_parts(len(counts), parts)
    return Window(counts, bin_s, bins, offsets * bin_s, spread)


@lru_cache(maxsize=64)
def _ends_of_parts(bins: int, parts: int) -> tuple[Counts, Vector]:
    """The bins of the columns, and the ends of parts as shares of a bin, (parts, bins)."""
    ends = np.repeat((np.arange(parts) + 1.0)[:, None] / parts, bins, axis=1)
    return np.arange(bins), ends


@lru_cache(maxsize=64)
def _noise(bins: int, parts: int) -> Vector:
    """Normal deviations that add up to nothing in each bin, (parts, bins)."""
    drawn: Vector = np.random.default_rng(1).standard_normal((bins, parts))
    centred: Vector = drawn - drawn.mean(axis=1, keepdims=True)
    return np.ascontiguousarray(centred.T)


def _down(operation: np.ufunc, rows: Vector) -> Vector:
    """Accumulate rows downwards, in place: a third of the time of the operation's `accumulate` along columns."""
    for row in range(1, len(rows)):
        operation(rows[row - 1], rows[row], out=rows[row])
    return rows


def wanted(recent: Window, speed: Speed, factors: Sequence[float], holds_s: Sequence[float]) -> Counts:
    """The number of Bodies at the beginning of each bin that a reaction wants, without the floor: (factors, holds, bins).

    `holds_s` are in ascending order.
    """
    back = max(1, round(SECOND_S / recent.bin_s))
    total = np.concatenate(([0.0], np.cumsum(recent.arrivals)))
    ends = np.arange(len(recent.arrivals))
    last_second = total[ends] - total[np.maximum(0, ends - back)]
    rates_rps = np.multiply.outer(np.asarray(factors), last_second) / (back * recent.bin_s) * (1 - ROUNDING)
    found = np.minimum(speed.most, np.searchsorted(speed.rates, rates_rps))
    held, span = [], 1
    for hold_s in holds_s:
        bins = max(1, round(hold_s / recent.bin_s))
        found, span = _highest(found, bins, span), bins
        held.append(found)
    return np.stack(held, axis=1)


def _highest(values: Counts, bins: int, span: int = 1) -> Counts:
    """The highest of the last so many values, at each of them, along the last axis; `values` are that of `span` already."""
    bins = min(bins, values.shape[-1])
    while span < bins:
        step = min(span, bins - span)
        higher = values.copy()
        np.maximum(values[..., step:], values[..., :-step], out=higher[..., step:])
        values, span = higher, span + step
    return values


def serving(counts: Counts, load_bins: int) -> Counts:
    """The number of loaded Bodies in each bin: those that have been wanted for this many bins."""
    return -_highest(-counts, load_bins + 1)


@dataclass(frozen=True, slots=True)
class _Answers:
    """The throughput of Bodies in each bin: a share `part` of those that serve `later`, the rest of those that serve `soon`."""

    soon_rps: Vector
    later_rps: Vector
    part: float

    @staticmethod
    def of(counts: Counts, speed: Speed, bin_s: float, load_s: float) -> _Answers:
        """The throughput by the wanted numbers of Bodies, each of which serves a load time later."""
        whole, part = divmod(load_s / bin_s, 1.0)
        soon = serving(counts, int(whole))
        later = serving(soon, 1)
        return _Answers(speed.rates[soon], speed.rates[later], part)

    def rps(self, low_rps: float, high_rps: float) -> Vector:
        """The throughput where the floor answers `low_rps`, and the most Bodies `high_rps`."""
        soon: Vector = np.minimum(high_rps, np.maximum(low_rps, self.soon_rps))
        if self.part <= 0.0:
            return soon
        later = np.minimum(high_rps, np.maximum(low_rps, self.later_rps))
        answered: Vector = (1 - self.part) * soon + self.part * later
        return answered

    def __getitem__(self, row: tuple[int, int]) -> _Answers:
        return _Answers(self.soon_rps[row], self.later_rps[row], self.part)


def late_share(recent: Window, wait_s: float, rates_rps: Vector) -> float:
    """The share of requests that would have been late at these rates of answers."""
    answered = np.cumsum(rates_rps * recent.bin_s)
    rate_now = rates_rps[recent.bins]
    # What could be answered before each point, (rows, columns).
    possible = rate_now * recent.offsets
    possible += (answered - rates_rps * recent.bin_s)[recent.bins]
    lowest = _down(np.minimum, recent.before - possible)
    # The lowest of all columns before each one, and 0: nothing was ahead at the beginning.
    before = np.minimum.accumulate(np.concatenate(([0.0], lowest[-1, :-1])))
    np.minimum(lowest, before, out=lowest)
    # Late where the work before a request, in the middle of its part where a point stands for several, takes longer.
    possible += lowest
    possible += wait_s * rate_now
    late = recent.halfway > possible
    return float(recent.weights[late].sum()) / max(1.0, recent.total) if np.count_nonzero(late) else 0.0


def never_wait_long(arrivals: Vector, bin_s: float, rate_rps: float, wait_s: float) -> bool:
    """Return whether at this rate of answers no request waits long, wherever in its bin it came: then no replay is needed.

    No bin brings more than is answered within a bin, so at most one bin's arrivals wait when the next bin's come.
    """
    highest = float(arrivals.max(initial=0.0))
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
    help_: Callable[[], Help | None] = lambda: None,
) -> Rule:
    """The rule of least cost that loses at most this share; else the one that loses least.

    Rules with Shadows are replayed where `help_` says what those add. It is called only if a floor of `least` is not enough.
    """
    replays = _Replays(recent, speed, max(0.0, slo_s - speed.batch_s), loss, least, max(least, min(most, speed.most)))
    floor, lost_share = replays.least_floor(replays.none(), replays.most)
    best = Rule(floor, 0.0, 0.0, lost_share, float(floor))
    if not reacts or best.floor <= least:
        return best
    replays = replace(replays, help=help_())
    late: list[_Reaction] = []
    for reaction in replays.reactions():
        enough = best.loss <= loss
        # With this floor or a higher one it is not cheaper; where it loses too much, so does a lower one.
        top = max(least, math.ceil(best.bodies) - 1) if enough else replays.most
        if enough:
            # A reaction loses no less than one that wants as many Bodies or more, with a floor as high or higher.
            if any(reaction.wants_no_more_than(other) for other in late):
                continue
            if reaction.least_bodies >= best.bodies and not reaction.is_most:
                continue
            if replays.lost(reaction, top) > loss:
                late.append(reaction)
                continue
            if reaction.least_bodies >= best.bodies:
                continue
        floor, lost_share = replays.least_floor(reaction, top)
        cost = replays.cost(reaction, floor)
        if cost < best.bodies if enough and lost_share <= loss else lost_share < best.loss:
            best = Rule(floor, reaction.factor, reaction.hold_s, lost_share, cost, reaction.shadows)
    return best


def lost_by(
    rule: Rule, recent: Window, speed: Speed, slo_s: float, *, most: int, help_: Callable[[], Help | None] = lambda: None
) -> float:
    """The share of the window's requests that this rule loses; all of them where it needs Shadows and there are none."""
    replays = _Replays(recent, speed, max(0.0, slo_s - speed.batch_s), 0.0, rule.floor, min(most, speed.most))
    if rule.factor <= 0.0:
        return replays.lost(replays.none(), rule.floor)
    replays = replace(replays, help=help_() if rule.shadows else None)
    reactions = replays.reactions((rule.factor,), (rule.hold_s,))
    return min((replays.lost(same, rule.floor) for same in reactions if same.shadows == rule.shadows), default=1.0)


@dataclass(frozen=True, slots=True)
class _Reaction:
    """A rule without its floor: the Bodies that it wants in each bin, at least `least_bodies` on average, and what these answer.

    With Shadows, `helped` is what would be answered if Bodies started as quickly as Shadows. `lost` are the losses by floor.
    """

    factor: float
    hold_s: float
    bodies: Counts
    least_bodies: float
    alone: _Answers
    helped: _Answers | None = None
    lost: dict[int, float] = field(default_factory=dict)

    @property
    def shadows(self) -> bool:
        return self.helped is not None

    @property
    def is_most(self) -> bool:
        """Return whether no other reaction wants more Bodies."""
        return self.factor == FACTORS[-1] and self.hold_s == HOLDS_S[-1]

    def wants_no_more_than(self, other: _Reaction) -> bool:
        return self.factor <= other.factor and self.hold_s <= other.hold_s and self.shadows == other.shadows


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

    def none(self) -> _Reaction:
        """The reaction of a rule without one: the floor alone."""
        bins = len(self.recent.arrivals)
        return _Reaction(0.0, 0.0, np.zeros(bins, dtype=np.int64), self.least, _Answers(np.zeros(bins), np.zeros(bins), 0.0))

    def reactions(self, factors: Sequence[float] = FACTORS, holds_s: Sequence[float] = HOLDS_S) -> Iterator[_Reaction]:
        """Each reaction by Bodies alone, and by Shadows first where there are any; those that want most come first."""
        moving = wanted(self.recent, self.speed, factors, holds_s)
        ways: list[tuple[Counts, _Answers, _Answers | None]] = [(moving, self._answers(moving, self.speed.load_s), None)]
        if self.help is not None and self.help.load_s < self.speed.load_s:
            lasting = serving(moving, math.ceil(self.speed.load_s / self.recent.bin_s))
            ways.append((lasting, self._answers(lasting, self.speed.load_s), self._answers(moving, self.help.load_s)))
        means = [np.maximum(bodies, self.least).mean(axis=-1) for bodies, _, _ in ways]
        for row in reversed(list(np.ndindex(moving.shape[:2]))):
            for (bodies, alone, helped), mean in zip(ways, means, strict=True):
                with_shadows = None if helped is None else helped[row]
                yield _Reaction(factors[row[0]], holds_s[row[1]], bodies[row], float(mean[row]), alone[row], with_shadows)

    def _answers(self, counts: Counts, load_s: float) -> _Answers:
        return _Answers.of(counts, self.speed, self.recent.bin_s, load_s)

    def lost(self, reaction: _Reaction, floor: int) -> float:
        """The loss of the rule with this reaction and floor."""
        if floor not in reaction.lost:
            bodies_rps, shadows_rps = self._answered_rps(reaction, floor)
            answered = bodies_rps if shadows_rps is None else bodies_rps + shadows_rps
            reaction.lost[floor] = late_share(self.recent, self.wait_s, answered)
        return reaction.lost[floor]

    def cost(self, reaction: _Reaction, floor: int) -> float:
        """The mean number of Bodies, and of Shadows at what one costs in Bodies."""
        bodies = float(np.minimum(self.most, np.maximum(floor, reaction.bodies)).mean())
        _, shadows_rps = self._answered_rps(reaction, floor)
        if self.help is None or shadows_rps is None:
            return bodies
        return bodies + self.help.cost * float(np.ceil(shadows_rps / self.help.each_rps - ROUNDING).mean())

    def _answered_rps(self, reaction: _Reaction, floor: int) -> tuple[Vector, Vector | None]:
        """The throughput of the serving Bodies, and what their Shadows add to it; None without Shadows."""
        low_rps, high_rps = self.speed.rate_rps(floor), self.speed.rate_rps(self.most)
        alone_rps = reaction.alone.rps(low_rps, high_rps)
        if self.help is None or reaction.helped is None:
            return alone_rps, None
        wanted_rps = reaction.helped.rps(low_rps, high_rps)
        return alone_rps, np.minimum(np.maximum(wanted_rps - alone_rps, 0.0), self.help.gain * alone_rps)

    def least_floor(self, reaction: _Reaction, most: int) -> tuple[int, float]:
        """The least floor up to `most` with which this reaction loses no more than `loss`, and what it loses; else `most`."""
        mean = self.speed.bodies(self.recent.requests / max(self.recent.duration_s, 1e-9))
        # Most functions need the least Bodies: they are tried first unless the mean load calls for more.
        low, high = self.least, min(most, self.least if mean <= self.least else 2 * mean)
        lost_share = self.lost(reaction, high)
        while lost_share > self.loss and high < most:
            low, high = high + 1, min(most, 2 * high)
            lost_share = self.lost(reaction, high)
        if lost_share > self.loss:
            return high, lost_share
        while low < high:
            middle = (low + high) // 2
            middle_lost = self.lost(reaction, middle)
            if middle_lost <= self.loss:
                high, lost_share = middle, middle_lost
            else:
                low = middle + 1
        return high, lost_share
