"""How long batches take, learned from those that have ended.

There is a curve over the batch size for each variant on each number of cores, and for each Shadow that a Body had. A profile,
where there is one, says what is expected; the measurements move it (`curve`). The curve of a new pair begins at the profile's
prediction for the two, scaled by what the Body's own curve has learned: a Body found to be 20 % slower than its profile is
expected to be so with a Shadow as well. Without a profile it begins at the Body's own curve.

A prediction that refuses every request would never be corrected. A refusal by prediction alone may therefore be a `doubt`
(`doubts`) that shrinks what is foretold of the batch sizes that nobody measures by a tenth, until a request is let through and
measures one of them anew: where that takes rather what was foretold before, the doubts are taken back. They are nothing that was
learned, and are not kept.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Protocol, TypeAlias

from gnomon_core.pairs import Pair
from gnomon_core.seams import LatencyModel
from gnomon_gateway.dispatch.curve import Curve

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
        """What it takes from now on is another matter."""
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
        """Its profile is another one, or its handler: what was measured of the last says nothing."""
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
