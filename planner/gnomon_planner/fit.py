"""Fitting of a MAP to the statistics of recorded arrivals, with the fewest phases that they need.

    fit(sample_of_times(times_s))          from gaps: SCV, skewness, ρ1 (lag-1 autocorrelation), its decay, and I(w)
    fit(sample_of_counts(counts, 1.0))     from counts: rate and I(w); counts say nothing about gaps

Candidates with 1, 2, 4 and 8 phases come from closed forms and are compared with the sample. A candidate's misfit is how far
its statistics are off, in units of the sample's own deviations, or of 2.5 % of the value where the sample knows it better: the
root mean square over SCV and skewness, that over ρ at all lags, that over I(w) at all windows, and the root mean square of these
three. A misfit of 1 is expected from chance alone.

The rate is the sample's exactly. Of the candidates whose misfit is at most 2 and whose SCV and ρ1 are within 5 % of the sample's
(or within two deviations, if those are larger), the one with the fewest phases is taken. If there is none, the fewest phases with
a misfit of at most 1.25 times the best. Among equal numbers of phases the smallest misfit wins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gnomon_planner.map_families import DECAYS, MAX_CHAINS, Shape, decay_for, erlang_mixture, kpc, map2, mmpp2, mmpp_of_counts
from gnomon_planner.maps import Map
from gnomon_planner.samples import Estimate, GapStatistics, Sample, statistics_of_map

# Fewer gaps than this give a rate, but no shape.
MIN_GAPS = 30
GOOD_MISFIT = 2.0  # the largest misfit of a candidate that may win by its few phases
MISFIT_FACTOR = 1.25  # of the best misfit, where no candidate is below `GOOD_MISFIT`
MIN_RELATIVE_ERROR = 0.025  # of a statistic: the least deviation that errors are measured in, however certain the sample is
FAITHFUL_ERROR = 0.05  # relative error of SCV and ρ1 up to which a candidate is faithful
# A correlation of this many standard deviations is significant.
SIGNIFICANT_DEVIATIONS = 3.0
# I(w) of a Poisson process is not this many standard deviations above 1 by chance.
POISSON_DEVIATIONS = 6.0
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
                {"family": candidate.family, "phases": candidate.process.order, "misfit": _misfit_json(candidate.misfit)}
                for candidate in self.considered
            ],
            "notes": list(self.notes),
        }

    def statistics(self) -> Iterator[tuple[str, Estimate, float]]:
        """Each statistic's name, the sample's estimate and the fit's value."""
        sample, model = self.sample, self.chosen.model
        long_dispersion = sample.dispersions[-1].value if sample.dispersions else 1.0
        yield (
            "rate_rps",
            Estimate(sample.rate_rps, math.sqrt(long_dispersion * sample.arrivals) / sample.duration_s),
            model.rate_rps,
        )
        if sample.gaps is not None and model.gaps is not None:
            yield "scv", sample.gaps.scv, model.gaps.scv.value
            yield "skewness", sample.gaps.skewness, model.gaps.skewness.value
            for lag, estimate, fitted in zip(sample.gaps.lags, sample.gaps.correlations, model.gaps.correlations, strict=True):
                yield f"correlation_lag{lag}", estimate, fitted.value
        for window_s, estimate, fitted in zip(sample.windows_s, sample.dispersions, model.dispersions, strict=True):
            yield f"dispersion_{window_s:.4g}s", estimate, fitted.value


def fit(sample: Sample) -> Fit:
    """The MAP of a sample. Any sample has one: what it cannot decide is decided for the simplest process and noted."""
    notes: list[str] = []
    if sample.arrivals < MIN_GAPS or not sample.windows_s:
        notes.append(f"{sample.arrivals:.0f} arrivals or gaps say how quickly requests arrive, not how evenly: Poisson.")
        process = Map.poisson(sample.rate_rps)
        poisson = Candidate(POISSON, process, statistics_of_map(process, sample), Misfit(None, None, None))
        return Fit(poisson, sample, (poisson,), tuple(notes))
    candidates = [_candidate(family, process.rescaled(sample.rate_rps), sample) for family, process in _candidates(sample)]
    candidates.sort(key=lambda candidate: candidate.misfit.total)
    chosen = _simplest([candidate for candidate in candidates if _faithful(candidate, sample)], GOOD_MISFIT)
    if chosen is None:
        chosen = _simplest(candidates, max(GOOD_MISFIT, MISFIT_FACTOR * candidates[0].misfit.total))
    assert chosen is not None
    notes += _notes(sample, chosen)
    return Fit(chosen, sample, tuple(candidates), tuple(notes))


def _simplest(candidates: list[Candidate], max_misfit: float) -> Candidate | None:
    """The fewest phases below the bar; sorting was stable, so that among equals the smallest misfit comes first."""
    return min(
        (candidate for candidate in candidates if candidate.misfit.total <= max_misfit),
        key=lambda candidate: candidate.process.order,
        default=None,
    )


def _faithful(candidate: Candidate, sample: Sample) -> bool:
    """Return whether SCV and ρ1 are within their tolerances of the sample's; an insignificant ρ1 has a wider one.

    A Poisson process has I(w) = 1 ± √(2w/duration). Where one burst makes up most of I(w), the sample's own deviation is as large
    as its value and does not reject I = 1; the deviation of the Poisson process does.
    """
    if candidate.process.order == 1 and _too_bursty_for_poisson(sample):
        return False
    if sample.gaps is None or candidate.model.gaps is None:
        return True
    scv, fitted_scv = sample.gaps.scv, candidate.model.gaps.scv.value
    if abs(fitted_scv - scv.value) > max(FAITHFUL_ERROR * scv.value, 2.0 * scv.deviation):
        return False
    for estimate, fitted in zip(sample.gaps.correlations[:1], candidate.model.gaps.correlations, strict=False):
        tolerance = 2.0 * estimate.deviation if abs(estimate.value) < SIGNIFICANT_DEVIATIONS * estimate.deviation else 0.0
        return abs(fitted.value - estimate.value) <= max(FAITHFUL_ERROR * abs(estimate.value), tolerance)
    return True


def _too_bursty_for_poisson(sample: Sample) -> bool:
    """Return whether the counts are too variable for a Poisson process."""
    return any(
        dispersion.value > 1.0 + POISSON_DEVIATIONS * math.sqrt(2.0 * window_s / sample.duration_s)
        for window_s, dispersion in zip(sample.windows_s, sample.dispersions, strict=True)
    )


def _candidates(sample: Sample) -> Iterator[tuple[str, Map]]:
    yield POISSON, Map.poisson(sample.rate_rps)
    if sample.gaps is not None:
        yield from _candidates_of_gaps(1.0 / sample.rate_rps, sample.gaps, sample)
    for chains in range(1, MAX_CHAINS + 1):
        process = mmpp_of_counts(sample, chains)
        if process is not None:
            yield f"MMPP({process.order}) of counts", process


def _candidates_of_gaps(mean_s: float, gaps: GapStatistics, sample: Sample) -> Iterator[tuple[str, Map]]:
    scv, skewness = gaps.scv.value, gaps.skewness.value
    if scv < 0.5:  # noqa: PLR2004 - what two phases cannot have
        yield "steps", erlang_mixture(mean_s, scv)
    decays = {"ρ1": decay_for(scv, gaps.correlations[0].value)} if gaps.lags else {"nothing": 0.0}
    if scv > 1.0 and gaps.lags:
        decays["ρ at all lags"] = _decay_of_correlations(gaps)
        # I(∞) = c² + (c² − 1)·γ/(1 − γ)
        slow = max(sample.dispersions[-1].value - scv, 0.0) / max(scv - 1.0, 1e-9)
        decays["I(w)"] = slow / (1.0 + slow)
    for source, decay in decays.items():
        # Where an MMPP(2) has the same distribution as the MAP(2), its rates are easier to interpret.
        is_mmpp = scv > 1.0 and decay > 0.0
        process, _ = (mmpp2 if is_mmpp else map2)(mean_s, Shape(scv, skewness, decay))
        if process.order > 1:
            yield f"{'MMPP' if is_mmpp else 'MAP'}(2) by {source}", process
        # A sample's ρ1 may by chance exceed what its c² allows; then c² is set by ρ1 = γ·(1 − 1/c²)/2.
        share = 2.0 * gaps.correlations[0].value / decay if is_mmpp and source != "ρ1" else 1.0
        if 0.0 < share < 1.0 and abs(1.0 / (1.0 - share) - scv) <= FAITHFUL_ERROR * scv:
            process, _ = mmpp2(mean_s, Shape(1.0 / (1.0 - share), skewness, decay))
            yield f"MMPP(2) by ρ1 and {source}", process
    for factors in (2, 3):
        product = kpc(mean_s, gaps, factors)
        if product is not None:
            yield f"KPC({product.order})", product


def _decay_of_correlations(gaps: GapStatistics) -> float:
    """The γ whose γᵏ·(1 − 1/c²)/2 is nearest to ρ at all lags, each weighted by its deviation."""
    at_lag_0 = (1.0 - 1.0 / gaps.scv.value) / 2.0

    def error(decay: float) -> float:
        pairs = zip(gaps.lags, gaps.correlations, strict=True)
        return math.fsum(
            ((estimate.value - at_lag_0 * float(decay) ** lag) / max(estimate.deviation, 1e-9)) ** 2 for lag, estimate in pairs
        )

    return min(DECAYS, key=error)


def _candidate(family: str, process: Map, sample: Sample) -> Candidate:
    model = statistics_of_map(process, sample)
    moments = correlations = None
    if sample.gaps is not None and model.gaps is not None:
        moments = _rms_error((sample.gaps.scv, sample.gaps.skewness), (model.gaps.scv, model.gaps.skewness))
        correlations = _rms_error(sample.gaps.correlations, model.gaps.correlations)
    return Candidate(family, process, model, Misfit(moments, correlations, _rms_error(sample.dispersions, model.dispersions)))


def _rms_error(sample: tuple[Estimate, ...], model: tuple[Estimate, ...]) -> float | None:
    pairs = zip(sample, model, strict=True)
    return _rms(
        [
            (fitted.value - estimate.value) / max(estimate.deviation, MIN_RELATIVE_ERROR * abs(estimate.value), 1e-9)
            for estimate, fitted in pairs
        ]
    )


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
    if chosen.misfit.total > GOOD_MISFIT:
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
