"""`opt`: the policy that sees the future. It exists in simulations only, as the measure of the others (AsyFunc, section 2.1).

At each look it has as many instances as the densest stretch of arrivals needs that begins before its next look and is half as
long as the objective: what is served at the rate at which it comes, over half the objective, has the other half to be executed
in. With instances that load in no time nothing is missing, and nothing is there that is not needed.
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
"""Stretches that are looked at for each look."""


@dataclass(frozen=True, slots=True)
class Opt:
    """A clairvoyant policy: the instances that the coming arrivals will need. `arrivals_s` is ascending."""

    arrivals_s: Sequence[float]
    name: str = "opt"
    version: int = 1
    period_s: float = 0.5
    default_scheduler: str = "adaptive"

    def desired_count(self, seen: Observation, memory: Memory) -> DesiredCount:  # noqa: ARG002 - it remembers nothing
        stretch_s = seen.settings.slo_s / 2
        begins_s = [seen.now_s + step * self.period_s / STEPS for step in range(STEPS)]
        rate_rps = max(self._coming(begin_s, stretch_s) for begin_s in begins_s) / stretch_s
        one = capacity(seen.latency_s, seen.settings.slo_s, rate_rps)
        if one is None:
            return DesiredCount(max(1, len(seen.live)), "no latency is known")
        count = max(1, whole(rate_rps / one.rate_rps))
        return DesiredCount(
            count, f"{rate_rps:.2f} rps will come / {one.rate_rps:.2f} rps per instance at b = {one.batch} = {count}"
        )

    def _coming(self, begin_s: float, length_s: float) -> int:
        return bisect_left(self.arrivals_s, begin_s + length_s) - bisect_left(self.arrivals_s, begin_s)


def most_instances(arrivals_s: Sequence[float], latency_s: Sequence[float], slo_s: float) -> int:
    """No more than this does `opt` ever want: the densest half objective, at what an instance does with batches of one."""
    stretch_s = slo_s / 2
    densest = max([bisect_left(arrivals_s, at_s + stretch_s, row) - row for row, at_s in enumerate(arrivals_s)], default=0)
    alone = capacity(latency_s, slo_s, 0.0)
    return max(1, whole(densest / stretch_s / alone.rate_rps)) if alone is not None else 1


def with_opt(arrivals_s: Sequence[float]) -> Policies:
    """The built-in policies and `opt` for these arrivals."""
    return {
        **BUILT_IN,
        "opt": replica_policy_plugin(lambda _: Opt(arrivals_s), "What the arrivals will need; in simulations only."),
    }


def without_loading(profile: Profile) -> Profile:
    """The profile with a load time of 0."""
    return replace(profile, load_s=0.0)
