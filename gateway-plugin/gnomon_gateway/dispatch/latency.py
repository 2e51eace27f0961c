"""Latency models: predicted batch latency, learned from batches that have ended.

`LearnedLatency` has a curve over the batch size for each variant on each number of cores, and for each Shadow that a Body had. A
profile, if there is one, gives the expected latency, and measurements correct it. The curve of a new pair begins at the profile's
prediction for the pair, scaled by the factor of the Body's own curve: a Body measured 20 % slower than its profile is expected to
be 20 % slower with a Shadow too. Without a profile the curve begins at the Body's own curve.

**Curve** (`Curve`). Each measured batch size has a moving mean. The expected latencies are scaled as a whole by the measurements:
a machine that is twice as slow is assumed to be so for sizes not yet measured. The means are smoothed into a curve that never
falls with the batch size (pool adjacent violators, weighted by the number of measurements). An expected value without
measurements is bounded by the means of the nearest often measured sizes. Between points the curve is interpolated linearly;
beyond the largest size it grows in proportion.

If a size was slow for a short time, batches sized by this curve avoid it, and so it is never measured again. Therefore the
measurement of the smallest such size is discarded after some hundred batches of other sizes, and its expected value counts again.
If a batch of this size takes no longer than expected, the next size is released at once.

**Uncertainty** (`Curve.discount`). A prediction that refuses every request would never be corrected. A refusal by prediction
alone, while an instance is idle, therefore discounts the predictions for unmeasured batch sizes by a tenth, never below the
measured latency of a smaller size, until a request is admitted and its batch measured. If that latency is nearer, by ratio, to
the prediction before the discounts, the discounts are dropped. Discounts are not saved. Example: 1 sample always
takes 30 ms, and 8, which are never sent, are predicted to take 800. Ten discounts make that 800 · 0.9¹⁰ = 279 ms, a hundred 30. A
batch of 8 in 60 ms is nearer to 30: the discounts were right.

Only unmeasured predictions are discounted (`RecentMeasurements`). A prediction that batches measure all the time is corrected by
them; a request with a shorter deadline than that is refused rightly, and a hundred such requests a second say nothing about other
requests' latency.

    fewer than FEW of its size since an instance started   discounted: the first are cold, perhaps a hundred times as slow
    the last one within QUIET_S                            measured, and not discounted
    none within QUIET_S                                    discounted: the machine may have changed since then

A size takes no less than smaller sizes. Example: 1 sample takes 30 ms, measured a hundred times a second; 8 samples are predicted
to take 800 ms and never sent. A request that allows 8 samples 100 ms is a reason to discount; one that allows them 20 ms is not.
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
"""The weight of the newest measurement in a moving mean; the first few weigh more: 1, 1/2, 1/3 …"""
_RATIO_WEIGHT = 0.05
_REFIT = 0.05
_REFIT_S = 1e-4
"""The least change in seconds for a new fit, below any timer's precision: short batches differ by a half among each other."""
_MAX_COUNT = 20
_SPREAD_WEIGHT = 0.1
KEPT_BATCHES = 400
"""The number of batches of other sizes before a size that was too slow is tried again: one batch of 400 may be late by that."""
_RETRY_EVERY = 25
_KEPT_TO = 1.25
"""The ratio of measured to predicted latency up to which a batch counts as on time."""
_FEWEST = 5
"""The batches from which measurements count for the machine and for other sizes: the first batches are cold."""


class Curve:
    """The latency in seconds by batch size, for one variant on one number of cores, with one Shadow or without.

    `expected` is in order of ascending size. `factor` multiplies it, at first as given and then as learned; `ratio` is the ratio
    of an earlier curve that this one continues. `discounted_by` is the factor for unmeasured sizes.
    `spread` is the mean relative error of the last ten batches or so. `measured_last` is the owner's number of the last
    measurement, which shows the newest of several curves.
    """

    __slots__ = (
        "_batches",
        "_cache",
        "_count",
        "_counts",
        "_expected",
        "_expected_cache",
        "_fitted",
        "_fitted_factor",
        "_last",
        "_means",
        "_measured",
        "_next_try",
        "_ratio",
        "_ratios",
        "_retried_size",
        "_seconds",
        "discounted_by",
        "factor",
        "measured_last",
        "spread",
    )  # fmt: skip

    def __init__(self, expected: Mapping[int, float], factor: float = 1.0, ratio: float | None = None) -> None:
        self.factor = factor
        self.discounted_by = 1.0
        self.measured_last = 0
        self.spread = 0.0
        self._expected = tuple(expected), tuple(expected.values())
        self._expected_cache: dict[int, float | None] = {}
        self._measured: tuple[int, ...] = ()
        self._ratio = 0.0 if ratio is None else ratio
        # A restored ratio counts at once, with the weight of the fewest measurements, so that new ones soon replace it.
        self._ratios = 0 if ratio is None else _FEWEST
        self._count = 0
        self._last: dict[int, int] = {}
        """The number of batches so far, and by size the number of the last one."""
        self._retried_size, self._next_try = 0, KEPT_BATCHES
        """The size that was forgotten last, until it is measured again; and the batch number from which another may be."""
        self._means: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._fitted: dict[int, float] = {}
        self._fitted_factor = 1.0
        self._batches: list[int] = []
        self._seconds: list[float] = []
        self._cache: dict[int, float | None] = {}
        self._fit()

    def at(self, batch: int) -> float | None:
        """The curve at this size, in seconds. Cached until the next fit, because each request reads it several times."""
        try:
            return self._cache[batch]
        except KeyError:
            seconds = self._cache[batch] = self._discounted(batch)
            return seconds

    @property
    def ratio(self) -> float | None:
        """The mean ratio of measured to expected latency over the last forty batches or so; None before `_FEWEST` batches.

        Unlike `factor`, it ignores discounts, and a cold first batch weighs no more than the others.
        """
        return self._ratio if self._ratios >= _FEWEST else None

    def observe(self, batch: int, seconds: float) -> bool:
        """Record the latency of a batch; returns whether the curve changed."""
        settles = self._is_discounted(batch)
        if settles:
            self._settle_discount(batch, seconds)
        predicted = self.at(batch)
        if predicted:
            self.spread += _SPREAD_WEIGHT * (abs(seconds / predicted - 1) - self.spread)
        expected = self._expected_at(batch)
        if expected:
            ratio = seconds / expected
            self.factor += WEIGHT * (ratio - self.factor)
            self._ratios += 1
            self._ratio += max(_RATIO_WEIGHT, 1 / self._ratios) * (ratio - self._ratio)
        count = self._counts.get(batch, 0)
        if count < _MAX_COUNT:
            count += 1
            self._counts[batch] = count
        mean = self._means.get(batch, seconds)
        # The first measurements have equal weights, so that a cold first batch does not dominate the mean.
        mean += (WEIGHT if WEIGHT * count > 1 else 1 / count) * (seconds - mean)
        self._means[batch] = mean
        self._count += 1
        self._last[batch] = self._count
        if batch == self._retried_size:
            self._retried_size = 0
            if predicted and seconds <= _KEPT_TO * predicted:
                self._next_try = self._count
        # A fit costs microseconds per known size: it is made again when a mean has moved enough to matter.
        fitted = self._fitted.get(batch)
        moved = fitted is None or abs(mean - fitted) > max(_REFIT * mean, _REFIT_S)
        if self._forget_stale_size(batch) or settles or moved or abs(self.factor - self._fitted_factor) > _REFIT * self.factor:
            self._fit()
            return True
        return False

    def _forget_stale_size(self, batch: int) -> bool:
        """Forget a larger size that was measured long ago and has an expected value; returns whether there was one."""
        if self._count < self._next_try or not self._expected[0]:
            return False
        old = [size for size, last in self._last.items() if size > batch and self._count - last >= KEPT_BATCHES]
        self._next_try = self._count + (KEPT_BATCHES if old else _RETRY_EVERY)
        if old:
            self._retried_size = min(old)
            del self._last[self._retried_size], self._means[self._retried_size], self._counts[self._retried_size]
        return bool(old)

    def discount(self, factor: float, measured: Iterable[int] = ()) -> None:
        """Multiply predictions by this factor, except for the `measured` sizes, until a batch of another size is measured."""
        self.discounted_by *= factor
        self._measured = tuple(sorted(measured))
        self._cache = {}

    def _is_discounted(self, batch: int) -> bool:
        """Return whether the prediction for this size is discounted."""
        return self.discounted_by < 1 and batch not in self._measured

    def _discounted(self, batch: int) -> float | None:
        """The curve at this size, with the discounts."""
        seconds = self._interpolated(batch)
        if seconds is None or not self._is_discounted(batch):
            return seconds
        smaller = bisect_left(self._measured, batch)
        least_s = self._interpolated(self._measured[smaller - 1]) if smaller else None
        return max(seconds * self.discounted_by, least_s or 0.0)

    def _settle_discount(self, batch: int, seconds: float) -> None:
        """Settle the discounts by the first measured batch of a discounted size.

        They were right unless the latency is nearer, by ratio, to the prediction before them. Example: 30 ms were
        discounted to 3. A batch in 11 ms is nearer to 30, one in 9 ms to 3. In the latter case smaller sizes take no more
        than 3 ms either, and larger ones are scaled down too.
        """
        fitted_s, discounted_s = self._interpolated(batch), self.at(batch)
        if fitted_s and discounted_s and seconds**2 <= fitted_s * discounted_s:
            self.factor *= discounted_s / fitted_s
            for size, mean in self._means.items():
                if self._is_discounted(size):
                    self._means[size] = min(mean, max(discounted_s, self.at(size) or 0.0))
        self.discounted_by = 1.0
        self._fit()

    def _fit(self) -> None:
        points = self._expected_points()
        points |= {batch: (mean, self._counts[batch]) for batch, mean in self._means.items()}
        self._batches = sorted(points)
        self._seconds = isotonic_regression([points[batch] for batch in self._batches])
        self._fitted, self._fitted_factor = dict(self._means), self.factor
        self._cache = {}

    def _expected_at(self, batch: int) -> float | None:
        """The expected time of this size before any measurement, in seconds."""
        try:
            return self._expected_cache[batch]
        except KeyError:
            expected_s = self._expected_cache[batch] = interpolate(*self._expected, batch)
            return expected_s

    def _expected_points(self) -> dict[int, tuple[float, int]]:
        """The expected time by batch size, each of weight one, bounded by the means of the nearest often measured sizes."""
        often = sorted(batch for batch, seen in self._counts.items() if seen >= _FEWEST)
        points: dict[int, tuple[float, int]] = {}
        for batch, seconds in zip(*self._expected, strict=True):
            above = bisect_left(often, batch)
            least_s = self._means[often[above - 1]] if above else 0.0
            most_s = self._means[often[above]] if above < len(often) else inf
            points[batch] = min(most_s, max(least_s, seconds * self.factor)), 1
        return points

    def _interpolated(self, batch: int) -> float | None:
        return interpolate(self._batches, self._seconds, batch)


def interpolate(batches: Sequence[int], seconds: Sequence[float], batch: int) -> float | None:
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


def isotonic_regression(points: list[tuple[float, int]]) -> list[float]:
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


DISCOUNT = 0.9
MANY_PAIRS = 256
"""The most curves of pairs that a variant keeps; a Shadow's blocks and shares change with the load, so older curves are obsolete.

The limit holds per variant: Bodies report their pairs themselves, and a Body that reports ever new pairs must not evict the
curves of other functions."""
_GRID = (*range(1, 9), 12, 16, 24, 32, 48, 64, 96, 128)
_NOTHING: Mapping[int, float] = MappingProxyType({})
_Key: TypeAlias = tuple[str, int, Pair | None]
"""The key of a curve: variant, cores of the Body, its Shadows."""


class LiveLatency(LatencyModel, Protocol):
    """A latency model that learns from the latencies of served batches."""

    def observe(self, variant: str, cores: int, batch: int, seconds: float, pair: Pair | None = None) -> None:
        """Record the latency of a batch; `pair` are the Shadows that took part."""
        ...

    def discount(self, variant: str, cores: int, pair: Pair | None = None, measured: Collection[int] = ()) -> None:
        """Lower predictions: one of them alone refused a request although an instance was idle.

        `measured` are the batch sizes with recent measurements, whose predictions stay.
        """
        ...

    def forget(self, variant: str) -> None:
        """Discard the measurements of this variant: its latency has changed."""
        ...

    def spread(self, variant: str, cores: int, pair: Pair | None = None) -> float | None:
        """The mean relative error of recent predictions; 0 while unknown, None where predictions are exact by definition."""
        ...

    @property
    def revision(self) -> int:
        """Grows whenever a prediction may have changed."""
        ...

    def corrections(self, variants: Iterable[str]) -> Mapping[int, float]:
        """The ratio of measured to predicted latency by the Body's cores; only with enough measurements.

        Of several variants of a model, with or without Shadows, the latest measurement on each number of cores decides: a Body
        that was slow when it got its Shadow must not be assumed slow for as long as it has the Shadow.
        """
        ...


class GivenLatency:
    """A latency model that learns nothing: the simulation's own table.

    The table is exact by definition; if batches vary around it, only their mean is right, and the model is not `exact`.
    """

    revision = 0

    def __init__(self, model: LatencyModel, *, exact: bool = True) -> None:
        self._model = model
        self._exact = exact
        # The table's own method, without a call in between: a simulated request looks up ten times.
        self.seconds = model.seconds  # type: ignore[method-assign]

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        return self._model.seconds(variant, body_cores, batch, pair)

    def observe(self, variant: str, cores: int, batch: int, seconds: float, pair: Pair | None = None) -> None: ...

    def discount(self, variant: str, cores: int, pair: Pair | None = None, measured: Collection[int] = ()) -> None: ...

    def forget(self, variant: str) -> None: ...

    def spread(self, variant: str, cores: int, pair: Pair | None = None) -> float | None:
        del variant, cores, pair
        return None if self._exact else 0.0

    def corrections(self, variants: Iterable[str]) -> Mapping[int, float]:
        del variants
        return _NOTHING


class LearnedLatency:
    """A `LatencyModel` that starts from a profile, or from nothing, and follows the measurements."""

    def __init__(self, profile: LatencyModel | None = None) -> None:
        self.revision = 0
        self._observed = 0
        self._profile = profile
        self._curves: dict[_Key, Curve] = {}
        self._pairs: defaultdict[str, deque[_Key]] = defaultdict(deque)
        """The keys of the pairs' curves by variant, oldest first."""

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        curve = self._curves.get((variant, body_cores, pair))
        if curve is not None:
            return curve.at(batch)
        if pair is not None:
            return self._curve(variant, body_cores, pair).at(batch)
        return self._profile.seconds(variant, body_cores, batch) if self._profile is not None else None

    def observe(self, variant: str, cores: int, batch: int, seconds: float, pair: Pair | None = None) -> None:
        """Record the latency of a batch of this many samples."""
        curve = self._curve(variant, cores, pair)
        self._observed += 1
        curve.measured_last = self._observed
        if curve.observe(batch, seconds):
            self.revision += 1

    def discount(self, variant: str, cores: int, pair: Pair | None = None, measured: Collection[int] = ()) -> None:
        self._curve(variant, cores, pair).discount(DISCOUNT, measured)
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
        """Factor and ratio of the curves without Shadows, by cores; only with enough measurements against a profile."""
        return {
            cores: (curve.factor, curve.ratio)
            for (known, cores, pair), curve in self._curves.items()
            if known == variant and pair is None and curve.ratio is not None
        }

    def resume(self, variant: str, cores: int, factor: float, ratio: float) -> None:
        """Restore the corrections that an earlier process `learned` with the same profile. Later measurements take precedence."""
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
                self._evict_pairs(variant)
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

    def _evict_pairs(self, variant: str) -> None:
        """Drop the oldest curves of this variant's pairs if another would be too many."""
        if len(self._pairs[variant]) >= MANY_PAIRS:
            del self._curves[self._pairs[variant].popleft()]


FEW = 5
QUIET_S = 5.0


class RecentMeasurements:
    """The measurements of a function, by variant and instance size: the batches of each size, and when the last ended."""

    __slots__ = ("_measured",)

    def __init__(self) -> None:
        self._measured: defaultdict[tuple[str, int], dict[int, tuple[int, float]]] = defaultdict(dict)

    def clear(self) -> None:
        """Discard all measurements: a new instance's first batches are cold."""
        self._measured.clear()

    def add(self, variant: str, size: int, batch: int, now_s: float) -> None:
        """Record a batch of this size, whose latency was compared with its prediction."""
        count, _ = self._measured[variant, size].get(batch, (0, 0.0))
        self._measured[variant, size][batch] = count + 1, now_s

    def sizes(self, variant: str, size: int, now_s: float) -> list[int]:
        """The batch sizes with recent measurements; predictions for other sizes are uncertain."""
        known = self._measured.get((variant, size), {})
        return [batch for batch, (count, last_s) in known.items() if count >= FEW and now_s - last_s < QUIET_S]
