"""Fitting of a MAP to a trace, with the fewest phases that the data needs.

    fit(of_times(times_s))          from gaps: SCV, skewness, ρ1, its decay, and I(w)
    fit(of_counts(counts, 1.0))     from counts: rate and I(w); counts say nothing about gaps

Candidates with 1, 2, 4 and 8 phases come from closed forms and are compared with the sample. A candidate's misfit is how far
its statistics are off, in units of the sample's own deviations, or of 2.5 % of the value where the sample knows it better: the
root mean square over SCV and skewness, that over ρ at all lags, that over I(w) at all windows, and the root mean square of these
three. 1 is what chance alone leaves.

The rate is the sample's exactly. The fewest phases win whose misfit is at most 2 and whose SCV and ρ1 are the sample's within 5 %
(or two deviations, where the sample itself does not know better). Where there are none such, the fewest phases whose misfit is
at most 1.25 times the best. Among equal numbers of phases, the smallest misfit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gnomon_planner.map_families import DECAYS, MOST_CHAINS, Shape, composed, decay_for, map2, mmpp2, modulated, regular
from gnomon_planner.maps import Map
from gnomon_planner.samples import Estimate, GapStatistics, Sample, of_map

# Fewer gaps than this say how quickly requests arrive, and no more.
FEWEST_GAPS = 30
GOOD = 2.0  # the largest misfit of a candidate that is taken for its few phases
NEARLY = 1.25  # times the best misfit, where no candidate is GOOD
SLIGHT = 0.025  # of a statistic: a smaller error is no misfit, however certain the sample is
NEAR = 0.05  # of SCV and ρ1: how near to the sample's a faithful candidate's are
# A correlation of so many deviations is not 0.
CERTAIN = 3.0
# Nor does chance take a Poisson process so many deviations away from itself.
IMPOSSIBLE = 6.0
POISSON = "Poisson"


@dataclass(frozen=True, slots=True)
class Misfit:
    """Misfit of a candidate in standard deviations of the sample; None where the sample has no such statistic."""

    moments: float | None
    correlations: float | None
    dispersions: float | None

    @property
    def total(self) -> float:
        """Root mean square of the parts that are not None; 0 if all are."""
        return _rms([part for part in (self.moments, self.correlations, self.dispersions) if part is not None]) or 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A MAP with its family and its misfit."""

    family: str
    process: Map
    model: Sample
    misfit: Misfit


@dataclass(frozen=True, slots=True)
class Fit:
    """The chosen candidate and the sample; `considered` are all candidates, best first, `notes` what the sample leaves open."""

    chosen: Candidate
    sample: Sample
    considered: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()

    @property
    def process(self) -> Map:
        """The fitted MAP."""
        return self.chosen.process

    def to_json(self) -> dict[str, Any]:
        """D0 and D1 (1/s) with the statistics of the fit; `Map.from_json` reads it."""
        return {
            **self.process.to_json(),
            "family": self.chosen.family,
            "phases": self.process.order,
            "misfit": _misfit_json(self.chosen.misfit),
            "arrivals": self.sample.arrivals,
            "duration_s": self.sample.duration_s,
            "statistics": [
                {"name": name, "sample": estimate.value, "deviation": _finite(estimate.deviation), "fit": fitted}
                for name, estimate, fitted in self.statistics()
            ],
            "considered": [
                {"family": each.family, "phases": each.process.order, "misfit": _misfit_json(each.misfit)}
                for each in self.considered
            ],
            "notes": list(self.notes),
        }

    def statistics(self) -> Iterator[tuple[str, Estimate, float]]:
        """Each statistic's name, the sample's estimate and the fit's value."""
        sample, model = self.sample, self.chosen.model
        spread = sample.dispersions[-1].value if sample.dispersions else 1.0
        yield "rate_rps", Estimate(sample.rate_rps, math.sqrt(spread * sample.arrivals) / sample.duration_s), model.rate_rps
        if sample.gaps is not None and model.gaps is not None:
            yield "scv", sample.gaps.scv, model.gaps.scv.value
            yield "skewness", sample.gaps.skewness, model.gaps.skewness.value
            for lag, mine, fitted in zip(sample.gaps.lags, sample.gaps.correlations, model.gaps.correlations, strict=True):
                yield f"correlation_lag{lag}", mine, fitted.value
        for window_s, mine, fitted in zip(sample.windows_s, sample.dispersions, model.dispersions, strict=True):
            yield f"dispersion_{window_s:.4g}s", mine, fitted.value


def fit(sample: Sample) -> Fit:
    """The MAP of a sample. Any sample has one: what it cannot decide is decided for the simplest process and noted."""
    notes: list[str] = []
    if sample.arrivals < FEWEST_GAPS or not sample.windows_s:
        notes.append(f"{sample.arrivals:.0f} arrivals or gaps say how quickly requests arrive, not how evenly: Poisson.")
        process = Map.poisson(sample.rate_rps)
        only = Candidate(POISSON, process, of_map(process, sample), Misfit(None, None, None))
        return Fit(only, sample, (only,), tuple(notes))
    candidates = [_judged(family, process.rescaled(sample.rate_rps), sample) for family, process in _candidates(sample)]
    candidates.sort(key=lambda each: each.misfit.total)
    chosen = _simplest([each for each in candidates if _faithful(each, sample)], GOOD)
    if chosen is None:
        chosen = _simplest(candidates, max(GOOD, NEARLY * candidates[0].misfit.total))
    assert chosen is not None
    notes += _notes(sample, chosen)
    return Fit(chosen, sample, tuple(candidates), tuple(notes))


def _simplest(candidates: list[Candidate], bar: float) -> Candidate | None:
    """The fewest phases below the bar; sorting was stable, so that among equals the smallest misfit comes first."""
    return min((each for each in candidates if each.misfit.total <= bar), key=lambda each: each.process.order, default=None)


def _faithful(candidate: Candidate, sample: Sample) -> bool:
    """Return whether SCV and ρ1 are the sample's, as nearly as was promised; ρ1 only where it is not 0 by chance.

    A Poisson process is known to the end: I(w) = 1 ± √(2w/duration). Where one burst makes most of I(w), the sample's own
    deviation is as large as its value and says nothing against 1; the process's says it.
    """
    if candidate.process.order == 1 and _bursts(sample):
        return False
    if sample.gaps is None or candidate.model.gaps is None:
        return True
    scv, found = sample.gaps.scv, candidate.model.gaps.scv.value
    if abs(found - scv.value) > max(NEAR * scv.value, 2.0 * scv.deviation):
        return False
    for mine, theirs in zip(sample.gaps.correlations[:1], candidate.model.gaps.correlations, strict=False):
        by_chance = 2.0 * mine.deviation if abs(mine.value) < CERTAIN * mine.deviation else 0.0
        return abs(theirs.value - mine.value) <= max(NEAR * abs(mine.value), by_chance)
    return True


def _bursts(sample: Sample) -> bool:
    """Return whether the counts are too variable for a Poisson process."""
    return any(
        found.value > 1.0 + IMPOSSIBLE * math.sqrt(2.0 * window_s / sample.duration_s)
        for window_s, found in zip(sample.windows_s, sample.dispersions, strict=True)
    )


def _candidates(sample: Sample) -> Iterator[tuple[str, Map]]:
    yield POISSON, Map.poisson(sample.rate_rps)
    if sample.gaps is not None:
        yield from _of_gaps(1.0 / sample.rate_rps, sample.gaps, sample)
    for chains in range(1, MOST_CHAINS + 1):
        process = modulated(sample, chains)
        if process is not None:
            yield f"MMPP({process.order}) of counts", process


def _of_gaps(mean_s: float, gaps: GapStatistics, sample: Sample) -> Iterator[tuple[str, Map]]:
    scv, skewness = gaps.scv.value, gaps.skewness.value
    if scv < 0.5:  # noqa: PLR2004 - what two phases cannot have
        yield "steps", regular(mean_s, scv)
    decays = {"ρ1": decay_for(scv, gaps.correlations[0].value)} if gaps.lags else {"nothing": 0.0}
    if scv > 1.0 and gaps.lags:
        decays["ρ at all lags"] = _decay_of_correlations(gaps)
        # I(∞) = c² + (c² − 1)·γ/(1 − γ)
        slow = max(sample.dispersions[-1].value - scv, 0.0) / max(scv - 1.0, 1e-9)
        decays["I(w)"] = slow / (1.0 + slow)
    for by, decay in decays.items():
        # Where an MMPP(2) has the same law as the MAP(2), its rates are the ones that people can read.
        modulated_two = scv > 1.0 and decay > 0.0
        process, _ = (mmpp2 if modulated_two else map2)(mean_s, Shape(scv, skewness, decay))
        if process.order > 1:
            yield f"{'MMPP' if modulated_two else 'MAP'}(2) by {by}", process
        # A sample's ρ1 may by chance be more than its c² allows; then c² is moved as far as ρ1 = γ·(1 − 1/c²)/2 asks for.
        share = 2.0 * gaps.correlations[0].value / decay if modulated_two and by != "ρ1" else 1.0
        if 0.0 < share < 1.0 and abs(1.0 / (1.0 - share) - scv) <= NEAR * scv:
            process, _ = mmpp2(mean_s, Shape(1.0 / (1.0 - share), skewness, decay))
            yield f"MMPP(2) by ρ1 and {by}", process
    for factors in (2, 3):
        product = composed(mean_s, gaps, factors)
        if product is not None:
            yield f"KPC({product.order})", product


def _decay_of_correlations(gaps: GapStatistics) -> float:
    """The γ whose γᵏ·(1 − 1/c²)/2 is nearest to ρ at all lags, each weighted by its deviation."""
    reach = (1.0 - 1.0 / gaps.scv.value) / 2.0

    def error(decay: float) -> float:
        pairs = zip(gaps.lags, gaps.correlations, strict=True)
        return math.fsum(((mine.value - reach * float(decay) ** lag) / max(mine.deviation, 1e-9)) ** 2 for lag, mine in pairs)

    return min(DECAYS, key=error)


def _judged(family: str, process: Map, sample: Sample) -> Candidate:
    model = of_map(process, sample)
    moments = correlations = None
    if sample.gaps is not None and model.gaps is not None:
        moments = _off((sample.gaps.scv, sample.gaps.skewness), (model.gaps.scv, model.gaps.skewness))
        correlations = _off(sample.gaps.correlations, model.gaps.correlations)
    return Candidate(family, process, model, Misfit(moments, correlations, _off(sample.dispersions, model.dispersions)))


def _off(sample: tuple[Estimate, ...], model: tuple[Estimate, ...]) -> float | None:
    pairs = zip(sample, model, strict=True)
    return _rms([(theirs.value - mine.value) / max(mine.deviation, SLIGHT * abs(mine.value), 1e-9) for mine, theirs in pairs])


def _rms(values: list[float]) -> float | None:
    return math.sqrt(math.fsum(value**2 for value in values) / len(values)) if values else None


def _notes(sample: Sample, chosen: Candidate) -> Iterator[str]:
    if sample.gaps is not None and chosen.model.gaps is not None:
        scv, fitted = sample.gaps.scv.value, chosen.model.gaps.scv.value
        if scv < fitted - max(0.05 * fitted, 2.0 * min(sample.gaps.scv.deviation, 1.0)):
            phases = f"{chosen.process.order} phases" if chosen.process.order > 1 else "one phase"
            yield f"The gaps are more regular (SCV {scv:.3g}) than {phases} can be: {fitted:.3g}."
    if sample.windows_s and sample.dispersions[0].value < 1.0 - 4.0 * sample.dispersions[0].deviation and sample.gaps is None:
        yield "Counts vary less than a Poisson process's; how evenly they come within a bin was not recorded: Poisson there."
    if chosen.misfit.total > GOOD:
        yield f"No candidate is within chance of the sample: the best is off by {chosen.misfit.total:.1f} deviations."


def _misfit_json(misfit: Misfit) -> dict[str, float | None]:
    return {
        "total": _finite(misfit.total),
        "moments": _finite(misfit.moments),
        "correlations": _finite(misfit.correlations),
        "dispersions": _finite(misfit.dispersions),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
