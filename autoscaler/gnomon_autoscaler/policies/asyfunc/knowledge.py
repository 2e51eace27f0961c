"""Everything that follows from a model's profile and the function's settings alone, worked out once.

A policy is asked several times a second and has milliseconds; a profile of 60 blocks has thousands of times in it. What is kept
here is a pure function of the profile: dropping it changes nothing but the time of the next decision.
"""

from __future__ import annotations

from gnomon_autoscaler.policies.asyfunc.efficiency import Efficiency, calibrated
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.pairings import Pairings
from gnomon_autoscaler.policies.asyfunc.sustained import Rates
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import Observation
from gnomon_core.settings import Settings


class Knowledge:
    """One profile under one objective: rates, η and pairings."""

    def __init__(self, profile: ModelProfile, settings: Settings, options: Options) -> None:
        self.profile = profile
        self.rates = Rates(profile, settings.slo_s, settings.max_batch, settings.max_cores)
        self.kappa = calibrated(profile, settings.slo_s) if options.kappa is None else options.kappa
        self.efficiency = Efficiency.of(profile, self.kappa, overhead_counts=options.overhead_counts, objective=options.objective)
        self.pairings = Pairings(self.rates, self.efficiency, options)
        distant = profile.over_network()
        self.pairings_elsewhere = None if distant is None else self._pairings(distant, settings, options)
        """Those with the Shadow on another node; None where hand-overs over the network have no price."""
        self.parameter_bytes = profile.layers.parameter_bytes()

    def _pairings(self, profile: ModelProfile, settings: Settings, options: Options) -> Pairings:
        rates = Rates(profile, settings.slo_s, settings.max_batch, settings.max_cores)
        return Pairings(rates, self.efficiency, options)


class Known:
    """What is known of the function that is observed; made anew when its profile or settings change."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._last: Knowledge | None = None
        self._settings: Settings | None = None

    def of(self, seen: Observation) -> Knowledge | None:
        """None without a profile, or with one that knows no number of cores that the function may have."""
        profile = seen.profile
        if profile is None:
            return None
        last = self._last
        same = last is not None and (profile is last.profile or profile == last.profile) and seen.settings == self._settings
        if last is None or not same:
            last = Knowledge(profile, seen.settings, self._options)
            self._last, self._settings = last, seen.settings
        return last if last.rates.cores else None
