"""How long batches take, learned from those that have ended.

Per (variant, cores) there is a moving mean for every batch size that was seen. A profile, where there is one, says what is
expected; the measurements scale it as a whole, so that a machine twice as slow is believed to be so for sizes not yet seen as
well. The means are smoothed into a curve that never falls with the batch size (pool adjacent violators, weighted by how often
each size was seen), and read in between on straight lines. Beyond the largest size the curve goes on in proportion.

A prediction that refuses every request would never be corrected. Each refusal by prediction alone is therefore a `doubt` that
shrinks the curve by a tenth, until a request is let through and measures it anew.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol

from gnomon_core.pairs import Pair
from gnomon_core.seams import LatencyModel

WEIGHT = 0.2
"""Of the newest measurement in a moving mean; the first few weigh more: 1, 1/2, 1/3 …"""
DOUBT = 0.9
_REFIT = 0.05
_REFIT_S = 1e-4
"""A tenth of a millisecond is below what any timer keeps to. Batches shorter than that differ by a half from one to the next."""
_GRID = (1, 2, 4, 8, 16, 32, 64, 128)
_MOST_SEEN = 20


class LiveLatency(LatencyModel, Protocol):
    """A latency model that hears how its predictions turned out."""

    def observe(self, variant: str, cores: int, batch: int, seconds: float, pair: Pair | None = None) -> None:
        """A batch has ended, which this Shadow helped with where there is one."""
        ...

    def doubt(self, variant: str, cores: int) -> None:
        """A request was refused because of a prediction alone, although an instance was idle."""
        ...


class GivenLatency:
    """A latency model that is right by definition and learns nothing: a simulation's own table."""

    def __init__(self, model: LatencyModel) -> None:
        self._model = model

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        return self._model.seconds(variant, body_cores, batch, pair)

    def observe(self, variant: str, cores: int, batch: int, seconds: float, pair: Pair | None = None) -> None: ...

    def doubt(self, variant: str, cores: int) -> None: ...


class LearnedLatency:
    """A `LatencyModel` that starts from a profile, or from nothing, and follows what is measured."""

    def __init__(self, profile: LatencyModel | None = None) -> None:
        self._profile = profile
        self._curves: dict[tuple[str, int, Pair | None], _Curve] = {}

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        curve = self._curves.get((variant, body_cores, pair))
        if curve is not None:
            return curve.at(batch)
        return self._profile.seconds(variant, body_cores, batch, pair) if self._profile is not None else None

    def observe(self, variant: str, cores: int, batch: int, seconds: float, pair: Pair | None = None) -> None:
        """A batch of this many samples took this long."""
        curve = self._curves.get((variant, cores, pair))
        if curve is None:
            curve = self._curves[variant, cores, pair] = _Curve(self._expected(variant, cores, pair))
        curve.observe(batch, seconds)

    def doubt(self, variant: str, cores: int) -> None:
        curve = self._curves.get((variant, cores, None))
        if curve is None:
            curve = self._curves[variant, cores, None] = _Curve(self._expected(variant, cores, None))
        curve.scale(DOUBT)

    def _expected(self, variant: str, cores: int, pair: Pair | None) -> dict[int, float]:
        if self._profile is None:
            return {}
        known = ((batch, self._profile.seconds(variant, cores, batch, pair)) for batch in _GRID)
        return {batch: seconds for batch, seconds in known if seconds is not None}


class _Curve:
    """Seconds over batch size for one variant on one number of cores."""

    __slots__ = ("_batches", "_expected", "_factor", "_fitted", "_fitted_factor", "_means", "_read", "_seconds", "_seen")

    def __init__(self, expected: dict[int, float]) -> None:
        self._expected = expected
        self._factor = 1.0
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
            seconds = self._read[batch] = self._between(batch)
            return seconds

    def observe(self, batch: int, seconds: float) -> None:
        expected = self._expected.get(batch)
        if expected:
            self._factor += WEIGHT * (seconds / expected - self._factor)
        seen = self._seen.get(batch, 0)
        if seen < _MOST_SEEN:
            seen += 1
            self._seen[batch] = seen
        mean = self._means.get(batch, seconds)
        mean += (WEIGHT if WEIGHT * seen > 1 else 1 / seen) * (seconds - mean)
        self._means[batch] = mean
        # A fit costs microseconds per known size: it is made again when a mean has moved enough to matter.
        fitted = self._fitted.get(batch)
        moved = fitted is None or abs(mean - fitted) > max(_REFIT * mean, _REFIT_S)
        if moved or abs(self._factor - self._fitted_factor) > _REFIT * self._factor:
            self._fit()

    def scale(self, factor: float) -> None:
        self._factor *= factor
        self._means = {batch: mean * factor for batch, mean in self._means.items()}
        self._fit()

    def _between(self, batch: int) -> float | None:
        batches, seconds = self._batches, self._seconds
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

    def _fit(self) -> None:
        points = {batch: (seconds * self._factor, 1) for batch, seconds in self._expected.items()}
        points |= {batch: (mean, self._seen[batch]) for batch, mean in self._means.items()}
        self._batches = sorted(points)
        self._seconds = never_falling([points[batch] for batch in self._batches])
        self._fitted, self._fitted_factor = dict(self._means), self._factor
        self._read = {}


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
