"""How long batches take, learned from those that have ended.

There is a curve over the batch size for each variant on each number of cores, and for each Shadow that a Body had. A profile,
where there is one, says what is expected; the measurements move it (`curve`). The curve of a new pair begins at the profile's
prediction for the two, scaled by what the Body's own curve has learned: a Body found to be 20 % slower than its profile is
expected to be so with a Shadow as well. Without a profile it begins at the Body's own curve.

A prediction that refuses every request would never be corrected. A refusal by prediction alone may therefore be a `doubt`
(`doubts`) that shrinks what is foretold of the batch sizes that nobody measures by a tenth, until a request is let through and
measures one of them anew: where that takes rather what was foretold before, the doubts are taken back. They are nothing that was
learned, and are not kept.

Seconds over batch size: what is expected, moved by what is measured.

A moving mean for every batch size that was seen. What is expected, where anything is, is scaled as a whole by the measurements:
a machine twice as slow is believed to be so for sizes not yet seen as well. The means are smoothed into a curve that never falls
with the batch size (pool adjacent violators, weighted by how often each size was seen). What is only expected lies between the
sizes beside it that were seen often. What is expected and the curve are read in between on straight lines, and beyond the largest
size in proportion.

A size that was slow in a bad moment is not sent again where batches are sized by this curve, and so never measured again. What
was measured of the smallest such size is therefore forgotten after some hundred batches of others: what is expected of it counts
again. If a batch of it takes no longer than that, the bad moment is over, and the next size has its turn at once.

Doubts shrink what is read of the sizes that nobody measures, but never below what a smaller one is measured to take, and the
first batch of such a size answers them. Example: 1 sample takes 30 ms all the time, and 8, which are never sent, are foretold
800. Ten doubts make that 800 · 0.9¹⁰ = 279 ms, a hundred 30. A batch of 8 in 60 ms is nearer to those by ratio: they were right.

When a prediction that refuses requests is doubted.

A prediction that refuses everybody is never measured, and has to be doubted (`latency`). One that batches measure all the time is
corrected by them; whoever asks for less time than his request takes is then refused rightly, and a hundred such requests a second
say nothing about the latency of the others.

    fewer than FEW of its size since an instance came   doubted: the first are cold, and may have taken a hundred times as long
    the last one within QUIET_S                         measured, and not doubted
    none for so long                                    doubted: since then the machine may have become another

Of a size that is not measured, smaller ones say that it takes no less than they do. Example: 1 sample takes 30 ms a hundred times
a second, 8 samples are foretold 800 ms and never sent. Who allows 8 samples 100 ms doubts that; who allows them 20 does not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Protocol, TypeAlias

from gnomon_core.interfaces import LatencyModel
from gnomon_core.pairs import Pair

WEIGHT = 0.2
"""Of the newest measurement in a moving mean; the first few weigh more: 1, 1/2, 1/3 …"""
_RATIO_WEIGHT = 0.05
_REFIT = 0.05
_REFIT_S = 1e-4
"""A tenth of a millisecond is below what any timer keeps to. Batches shorter than that differ by a half from one to the next."""
_MOST_SEEN = 20
_SPREAD_WEIGHT = 0.1
KEPT_BATCHES = 400
"""So many batches of other sizes are made before one that was too slow is tried again: of 400 batches one may be late by that."""
_LOOK_EVERY = 25
_KEPT_TO = 1.25
"""What a batch may take of what was foretold, and still is as foretold."""
_SPEAKS = 5
"""Fewer batches say nothing about the machine, nor about other sizes: the first ones are cold."""


class Curve:
    """Seconds over batch size for one variant on one number of cores, with one Shadow or without.

    `expected` is given by ascending size. `factor` is what it is multiplied by, at first and as it has been learned; `ratio` is
    what an earlier curve had learned, if this one goes on where that ended. `doubted` is what doubts that no batch has answered
    multiply the curve by, but for the sizes that are measured. `spread` is how far batches are from the curve, in the mean of the
    last ten or so, as a share of it. `measured_last` says which of several curves is the newest: its owner numbers what is
    measured.
    """

    __slots__ = (
        "_batches", "_count", "_expected", "_fitted", "_fitted_factor", "_last", "_means", "_measured", "_next_try", "_ratio",
        "_ratios", "_read", "_seconds", "_seen", "_tried", "doubted", "factor", "measured_last", "spread",
    )  # fmt: skip

    def __init__(self, expected: Mapping[int, float], factor: float = 1.0, ratio: float | None = None) -> None:
        self.factor = factor
        self.doubted = 1.0
        self.measured_last = 0
        self.spread = 0.0
        self._expected = tuple(expected), tuple(expected.values())
        self._measured: tuple[int, ...] = ()
        self._ratio = 0.0 if ratio is None else ratio
        # It speaks, and gives way to the next measurements as one does that has just begun to.
        self._ratios = 0 if ratio is None else _SPEAKS
        self._count = 0
        self._last: dict[int, int] = {}
        """How many batches there have been, and which of them was the last of each size."""
        self._tried, self._next_try = 0, KEPT_BATCHES
        """The size that was forgotten last, until it is measured again; and from which batch on another may be."""
        self._means: dict[int, float] = {}
        self._seen: dict[int, int] = {}
        self._fitted: dict[int, float] = {}
        self._fitted_factor = 1.0
        self._batches: list[int] = []
        self._seconds: list[float] = []
        self._read: dict[int, float | None] = {}
        self._fit()

    def at(self, batch: int) -> float | None:
        """The curve at this size. Read several times for each request, so what was read is kept until the next fit."""
        try:
            return self._read[batch]
        except KeyError:
            seconds = self._read[batch] = self._believed(batch)
            return seconds

    @property
    def ratio(self) -> float | None:
        """Measured against expected, in the mean of the last forty or so; None before there are enough to speak of.

        Other than `factor`, it knows no doubts, and a first batch that was cold weighs no more than the others.
        """
        return self._ratio if self._ratios >= _SPEAKS else None

    def observe(self, batch: int, seconds: float) -> bool:
        """A batch took this long; whether that changed the curve."""
        answers = self._doubts(batch)
        if answers:
            self._answer_doubts(batch, seconds)
        foretold = self.at(batch)
        if foretold:
            self.spread += _SPREAD_WEIGHT * (abs(seconds / foretold - 1) - self.spread)
        expected = between(*self._expected, batch)
        if expected:
            ratio = seconds / expected
            self.factor += WEIGHT * (ratio - self.factor)
            self._ratios += 1
            self._ratio += max(_RATIO_WEIGHT, 1 / self._ratios) * (ratio - self._ratio)
        seen = self._seen.get(batch, 0)
        if seen < _MOST_SEEN:
            seen += 1
            self._seen[batch] = seen
        mean = self._means.get(batch, seconds)
        mean += (WEIGHT if WEIGHT * seen > 1 else 1 / seen) * (seconds - mean)
        self._means[batch] = mean
        self._count += 1
        self._last[batch] = self._count
        if batch == self._tried:
            self._tried = 0
            if foretold and seconds <= _KEPT_TO * foretold:
                self._next_try = self._count
        # A fit costs microseconds per known size: it is made again when a mean has moved enough to matter.
        fitted = self._fitted.get(batch)
        moved = fitted is None or abs(mean - fitted) > max(_REFIT * mean, _REFIT_S)
        if self._forgot(batch) or answers or moved or abs(self.factor - self._fitted_factor) > _REFIT * self.factor:
            self._fit()
            return True
        return False

    def _forgot(self, batch: int) -> bool:
        """Forget a size above this one that was measured long ago, where something is expected instead; whether there was one."""
        if self._count < self._next_try or not self._expected[0]:
            return False
        old = [size for size, last in self._last.items() if size > batch and self._count - last >= KEPT_BATCHES]
        self._next_try = self._count + (KEPT_BATCHES if old else _LOOK_EVERY)
        if old:
            self._tried = min(old)
            del self._last[self._tried], self._means[self._tried], self._seen[self._tried]
        return bool(old)

    def doubt(self, factor: float, measured: Iterable[int] = ()) -> None:
        """Believe it to be this share of what it was, but for the `measured` sizes, until a batch says whether that is right."""
        self.doubted *= factor
        self._measured = tuple(sorted(measured))
        self._read = {}

    def _doubts(self, batch: int) -> bool:
        """Whether what is foretold of this size is doubted."""
        return self.doubted < 1 and batch not in self._measured

    def _believed(self, batch: int) -> float | None:
        """The curve at this size, less the doubts."""
        seconds = self._foretold(batch)
        if seconds is None or not self._doubts(batch):
            return seconds
        smaller = bisect_left(self._measured, batch)
        least_s = self._foretold(self._measured[smaller - 1]) if smaller else None
        return max(seconds * self.doubted, least_s or 0.0)

    def _answer_doubts(self, batch: int, seconds: float) -> None:
        """The first doubted batch since: unless it took rather what was foretold before them, they were right.

        Example: 30 ms have been doubted down to 3. A batch in 11 ms is nearer to 30, by ratio, and one in 9 ms to 3. Then smaller
        ones take no more than 3 either, and larger ones as much less as has been doubted of them.
        """
        foretold_s, believed_s = self._foretold(batch), self.at(batch)
        if foretold_s and believed_s and seconds**2 <= foretold_s * believed_s:
            self.factor *= believed_s / foretold_s
            for size, mean in self._means.items():
                if self._doubts(size):
                    self._means[size] = min(mean, max(believed_s, self.at(size) or 0.0))
        self.doubted = 1.0
        self._fit()

    def _fit(self) -> None:
        points = self._guessed()
        points |= {batch: (mean, self._seen[batch]) for batch, mean in self._means.items()}
        self._batches = sorted(points)
        self._seconds = never_falling([points[batch] for batch in self._batches])
        self._fitted, self._fitted_factor = dict(self._means), self.factor
        self._read = {}

    def _guessed(self) -> dict[int, tuple[float, int]]:
        """The expected time by batch size, each of weight one, bounded by the means of the nearest often measured sizes."""
        often = sorted(batch for batch, seen in self._seen.items() if seen >= _SPEAKS)
        points: dict[int, tuple[float, int]] = {}
        for batch, seconds in zip(*self._expected, strict=True):
            above = bisect_left(often, batch)
            least_s = self._means[often[above - 1]] if above else 0.0
            most_s = self._means[often[above]] if above < len(often) else inf
            points[batch] = min(most_s, max(least_s, seconds * self.factor)), 1
        return points

    def _foretold(self, batch: int) -> float | None:
        return between(self._batches, self._seconds, batch)


def between(batches: Sequence[int], seconds: Sequence[float], batch: int) -> float | None:
    """The line through these points at this size; None without any. `batches` ascend.

    Example: through 8 samples in 80 ms and 12 in 100, 9 samples take 85 ms, 7 take 80 and 24 take 200.
    """
    if not batches:
        return None
    above = bisect_left(batches, batch)
    if above == len(batches):
        return seconds[-1] * batch / batches[-1]
    if above == 0 or batches[above] == batch:
        return seconds[above]
    left, right = batches[above - 1], batches[above]
    share = (batch - left) / (right - left)
    return seconds[above - 1] + share * (seconds[above] - seconds[above - 1])


def never_falling(points: list[tuple[float, int]]) -> list[float]:
    """The closest curve that never falls through (value, weight) points: neighbours that fall share their weighted mean.

    Example: [(1, 1), (3, 1), (2, 1)] gives [1, 2.5, 2.5].
    """
    pools: list[list[float]] = []
    for value, weight in points:
        pools.append([value, weight, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            value_b, weight_b, count_b = pools.pop()
            value_a, weight_a, count_a = pools[-1]
            both = weight_a + weight_b
            pools[-1] = [(value_a * weight_a + value_b * weight_b) / both, both, count_a + count_b]
    return [value for value, _, count in pools for _ in range(int(count))]


DOUBT = 0.9
MANY_PAIRS = 256
"""A Shadow's blocks and shares change with the load; the curves of a variant's pairs beyond this number are those of the past.

Each variant has so many: a Body says by itself what its Shadows do, and one that says ever new things costs no other function
what was learned of its pairs."""
_GRID = (*range(1, 9), 12, 16, 24, 32, 48, 64, 96, 128)
_NOTHING: Mapping[int, float] = MappingProxyType({})
_Key: TypeAlias = tuple[str, int, Pair | None]
"""Of a curve: variant, cores of the Body, what its Shadow does."""


class LiveLatency(LatencyModel, Protocol):
    """A latency model that hears how its predictions turned out."""

    def observe(self, variant: str, cores: int, batch: int, seconds: float, pair: Pair | None = None) -> None:
        """A batch has ended, which this Shadow helped with where there is one."""
        ...

    def doubt(self, variant: str, cores: int, pair: Pair | None = None, measured: Collection[int] = ()) -> None:
        """A request was refused because of a prediction alone, although an instance was idle.

        `measured` are the batch sizes that have lately been measured, about which there is no doubt.
        """
        ...

    def forget(self, variant: str) -> None:
        """Discard the measurements of this variant: its latency has changed."""
        ...

    def spread(self, variant: str, cores: int, pair: Pair | None = None) -> float | None:
        """How far batches have lately been from the prediction, as a share of it; 0 while nothing is known.

        None where they are never off.
        """
        ...

    @property
    def revision(self) -> int:
        """Grows whenever a prediction may have changed."""
        ...

    def corrections(self, variants: Iterable[str]) -> Mapping[int, float]:
        """By cores of the Body, how long batches take against what was foretold; only where enough were measured.

        Of several variants of one model, with a Shadow or without, each number of cores speaks by what was measured last: a Body
        that was slow when it got its Shadow must not be thought slow for as long as it has it.
        """
        ...


class GivenLatency:
    """A latency model that is right by definition and learns nothing: a simulation's own table.

    Where batches vary around the table, it is right in the mean only, and not `exact`.
    """

    revision = 0

    def __init__(self, model: LatencyModel, *, exact: bool = True) -> None:
        self._model = model
        self._exact = exact

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        return self._model.seconds(variant, body_cores, batch, pair)

    def observe(self, variant: str, cores: int, batch: int, seconds: float, pair: Pair | None = None) -> None: ...

    def doubt(self, variant: str, cores: int, pair: Pair | None = None, measured: Collection[int] = ()) -> None: ...

    def forget(self, variant: str) -> None: ...

    def spread(self, variant: str, cores: int, pair: Pair | None = None) -> float | None:
        del variant, cores, pair
        return None if self._exact else 0.0

    def corrections(self, variants: Iterable[str]) -> Mapping[int, float]:
        del variants
        return _NOTHING


class LearnedLatency:
    """A `LatencyModel` that starts from a profile, or from nothing, and follows what is measured."""

    def __init__(self, profile: LatencyModel | None = None) -> None:
        self.revision = 0
        self._observed = 0
        self._profile = profile
        self._curves: dict[_Key, Curve] = {}
        self._pairs: defaultdict[str, deque[_Key]] = defaultdict(deque)
        """By variant, which of the curves are of pairs, the oldest first."""

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        curve = self._curves.get((variant, body_cores, pair))
        if curve is not None:
            return curve.at(batch)
        if pair is not None:
            return self._curve(variant, body_cores, pair).at(batch)
        return self._profile.seconds(variant, body_cores, batch) if self._profile is not None else None

    def observe(self, variant: str, cores: int, batch: int, seconds: float, pair: Pair | None = None) -> None:
        """A batch of this many samples took this long."""
        curve = self._curve(variant, cores, pair)
        self._observed += 1
        curve.measured_last = self._observed
        if curve.observe(batch, seconds):
            self.revision += 1

    def doubt(self, variant: str, cores: int, pair: Pair | None = None, measured: Collection[int] = ()) -> None:
        self._curve(variant, cores, pair).doubt(DOUBT, measured)
        self.revision += 1

    def spread(self, variant: str, cores: int, pair: Pair | None = None) -> float:
        curve = self._curves.get((variant, cores, pair))
        return curve.spread if curve is not None else 0.0

    def corrections(self, variants: Iterable[str]) -> Mapping[int, float]:
        wanted = set(variants)
        known = sorted(
            (curve.measured_last, cores, curve.ratio)
            for (variant, cores, _), curve in self._curves.items()
            if variant in wanted and curve.ratio is not None
        )
        return {cores: ratio for _, cores, ratio in known}

    def learned(self, variant: str) -> dict[int, tuple[float, float]]:
        """By cores of lone Bodies, factor and ratio of their curves; only where enough were measured against a profile."""
        return {
            cores: (curve.factor, curve.ratio)
            for (known, cores, pair), curve in self._curves.items()
            if known == variant and pair is None and curve.ratio is not None
        }

    def resume(self, variant: str, cores: int, factor: float, ratio: float) -> None:
        """Go on from what was `learned` against the same profile. What has been measured since says more."""
        if (variant, cores, None) in self._curves:
            return
        expected = self._expected(variant, cores, None)
        if expected:
            self._curves[variant, cores, None] = Curve(expected, factor, ratio)
            self.revision += 1

    def forget(self, variant: str) -> None:
        """Discard the measurements of this variant: its profile or its handler has been replaced."""
        self._curves = {key: curve for key, curve in self._curves.items() if key[0] != variant}
        self._pairs.pop(variant, None)
        self.revision += 1

    def _curve(self, variant: str, cores: int, pair: Pair | None) -> Curve:
        curve = self._curves.get((variant, cores, pair))
        if curve is None:
            if pair is not None:
                self._make_room(variant)
                self._pairs[variant].append((variant, cores, pair))
            curve = self._curves[variant, cores, pair] = self._begin(variant, cores, pair)
        return curve

    def _begin(self, variant: str, cores: int, pair: Pair | None) -> Curve:
        expected = self._expected(variant, cores, pair)
        own = self._curves.get((variant, cores, None)) if pair is not None else None
        if own is None:
            return Curve(expected)
        if expected:
            return Curve(expected, own.factor)
        alone = ((batch, own.at(batch)) for batch in _GRID)
        return Curve({batch: seconds for batch, seconds in alone if seconds is not None})

    def _expected(self, variant: str, cores: int, pair: Pair | None) -> dict[int, float]:
        if self._profile is None:
            return {}
        known = ((batch, self._profile.seconds(variant, cores, batch, pair)) for batch in _GRID)
        return {batch: seconds for batch, seconds in known if seconds is not None}

    def _make_room(self, variant: str) -> None:
        """For one more of its pairs."""
        if len(self._pairs[variant]) >= MANY_PAIRS:
            del self._curves[self._pairs[variant].popleft()]


FEW = 5
QUIET_S = 5.0


class Doubts:
    """The measurements of a function, by variant and instance size: the batches of each size, and when the last ended."""

    __slots__ = ("_measured",)

    def __init__(self) -> None:
        self._measured: dict[tuple[str, int], dict[int, tuple[int, float]]] = {}

    def begin(self) -> None:
        """Discard all measurements: a new instance's first batches are cold."""
        self._measured.clear()

    def measured(self, variant: str, size: int, batch: int, now_s: float) -> None:
        """Record a batch of this size, whose latency was compared with its prediction."""
        known = self._measured.setdefault((variant, size), {})
        count, _ = known.get(batch, (0, 0.0))
        known[batch] = count + 1, now_s

    def lately(self, variant: str, size: int, now_s: float) -> list[int]:
        """The batch sizes with recent measurements; predictions for other sizes are uncertain."""
        known = self._measured.get((variant, size), {})
        return [batch for batch, (count, last_s) in known.items() if count >= FEW and now_s - last_s < QUIET_S]
