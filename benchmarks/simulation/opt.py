"""`opt`: a clairvoyant policy, for simulations only, as the bound that other policies are compared with (AsyFunc, section 2.1).

At each decision it takes the largest number of arrivals in any window of half the objective that begins before its next decision,
and has the instances that serve them at that rate: requests that are served at their arrival rate over half the objective have
the other half for their execution. With instances that load in no time none is missing and none is idle.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gnomon_autoscaler.policies.rates import capacity
from gnomon_autoscaler.registry import BUILT_IN, Policies, replica_policy_plugin
from gnomon_autoscaler.replica_policy import DesiredCount, Memory, whole
from gnomon_core.scaling import Observation
from gnomon_simulator.profiles import Profile

STEPS = 8
"""Windows that are evaluated for each decision."""


@dataclass(frozen=True, slots=True)
class Opt:
    """A clairvoyant policy: the instances that the coming arrivals will need. `arrivals_s` is ascending."""

    arrivals_s: Sequence[float]
    name: str = "opt"
    version: int = 1
    period_s: float = 0.5
    default_scheduler: str = "adaptive"

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:  # noqa: ARG002 - it remembers nothing
        stretch_s = observation.settings.slo_s / 2
        begins_s = [observation.now_s + step * self.period_s / STEPS for step in range(STEPS)]
        rate_rps = max(self._coming(begin_s, stretch_s) for begin_s in begins_s) / stretch_s
        per_instance = capacity(observation.latency_s, observation.settings.slo_s, rate_rps)
        if per_instance is None:
            return DesiredCount(max(1, len(observation.live)), "no latency is known")
        count = max(1, whole(rate_rps / per_instance.rate_rps))
        return DesiredCount(
            count,
            f"{rate_rps:.2f} rps will come / {per_instance.rate_rps:.2f} rps per instance at b = {per_instance.batch} = {count}",
        )

    def _coming(self, begin_s: float, length_s: float) -> int:
        return bisect_left(self.arrivals_s, begin_s + length_s) - bisect_left(self.arrivals_s, begin_s)


def most_instances(arrivals_s: Sequence[float], latency_s: Sequence[float], slo_s: float) -> int:
    """Upper bound of the instances of `opt`: the most arrivals in half an objective, at an instance's rate for batches of 1."""
    stretch_s = slo_s / 2
    max_arrivals = max(
        [bisect_left(arrivals_s, at_s + stretch_s, index) - index for index, at_s in enumerate(arrivals_s)], default=0
    )
    unbatched = capacity(latency_s, slo_s, 0.0)
    return max(1, whole(max_arrivals / stretch_s / unbatched.rate_rps)) if unbatched is not None else 1


def with_opt(arrivals_s: Sequence[float]) -> Policies:
    """The built-in policies and `opt` for these arrivals."""
    return {
        **BUILT_IN,
        "opt": replica_policy_plugin(lambda _: Opt(arrivals_s), "What the arrivals will need; in simulations only."),
    }


def without_loading(profile: Profile) -> Profile:
    """The profile with a load time of 0."""
    return replace(profile, load_s=0.0)
