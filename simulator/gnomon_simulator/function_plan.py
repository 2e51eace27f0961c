"""What is to be simulated of one function: its settings, its profile, who calls it when, and what breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gnomon_autoscaler import BUILT_IN, Policies
from gnomon_autoscaler.registry import decides_by_profile
from gnomon_core.errors import bad_request
from gnomon_core.interfaces import ScalingPolicy
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.latency import GivenLatency, LearnedLatency, LiveLatency
from gnomon_gateway.scheduling.registry import SCHEDULING, Schedulers
from gnomon_simulator.profiles import Profile


@dataclass(frozen=True, slots=True)
class FunctionPlan:
    """A function to simulate.

    `knowledge` says what the gateway knows of its latency: "given" (the profile's table, right by definition), "profiled" (the
    table as a first guess, corrected by what is measured) or "learned" (nothing but what is measured). `warm` instances are ready
    at second 0, when the function is deployed and the autoscaler is told so; `looks_from_s` is when its rhythm of half seconds
    begins. `crashes_s` is when the oldest ready Body dies, `shadow_crashes_s` the oldest ready Shadow. `policies` and
    `schedulers` are those that the settings may name. `on_demand_s` is what a request takes on the functions beside the
    instances, which serve what the policy lets overflow; None where there are none.
    """

    name: str
    settings: Settings
    profile: Profile
    arrivals_s: Sequence[float]
    knowledge: str = "profiled"
    warm: int = 0
    looks_from_s: float = 0.0
    crashes_s: Sequence[float] = ()
    shadow_crashes_s: Sequence[float] = ()
    policies: Policies = field(default_factory=lambda: BUILT_IN)
    schedulers: Schedulers = field(default_factory=lambda: SCHEDULING.built_in)
    on_demand_s: float | None = None

    def latency(self) -> LiveLatency:
        """What the gateway knows at first."""
        if self.knowledge == "given":
            return GivenLatency(self.profile, exact=self.profile.noise.factor() is None)
        return LearnedLatency(self.profile if self.knowledge == "profiled" else None)

    def check(self, policy: ScalingPolicy) -> None:
        """Raise a 400 `bad_plan` for what cannot be simulated; `policy` is the one that the settings name."""
        if self.knowledge not in ("given", "profiled", "learned"):
            raise bad_request("bad_plan", f"knowledge {self.knowledge!r} is not known.", "It is given, profiled or learned.")
        variant = self.profile.variant
        if decides_by_profile(policy) and self.profile.model is None:
            raise bad_request(
                "bad_plan",
                f"{policy.name} decides by a model's profile, and {variant} has only a table of latencies.",
                "Name a profile that `gnomon models profile MODEL` wrote.",
            )
        if self.profile.seconds(variant, self.settings.cores, 1) is None:
            measured = ", ".join(str(cores) for cores in sorted(self.profile.latency.seconds))
            raise bad_request(
                "bad_plan",
                f"The profile of {variant} has no latency on {self.settings.cores} cores.",
                f"It was measured on {measured}; set gnomon/cores to one of them.",
            )
