"""`hpa`: the rule of Kubernetes' horizontal pod autoscaler for CPU.

Every 15 s: desired = ceil(instances × use / target), where use is the percentage of their cores that the ready instances kept
busy in the last 15 s and the target is `gnomon/target-cpu-percent`. Within 10 % of the target nothing changes. Instances that
still start count as idle when it would grow and not at all when it would shrink, and must not turn growth into its opposite.
One decision adds at most as many as there are, or 4 (a `RateLimit` around this policy); a lower count must last 300 s, or
`com.openfaas.scale.down.window` where that is set (a `DownDelay`).

Example: 3 instances at 90 % with a target of 60 %: ceil(3 × 1.5) = 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_autoscaler.replica_policy import DesiredCount, Memory, whole
from gnomon_core.scaling import Observation
from gnomon_core.settings import Settings

# Defaults of kube-controller-manager (--horizontal-pod-autoscaler-tolerance) and of autoscaling/v2's behavior.scaleUp: per 15 s
# the larger of 100 % and 4 pods; behavior.scaleDown.stabilizationWindowSeconds is 300.
TOLERANCE = 0.1
MAX_UP_FACTOR = 2.0
MAX_UP_BY = 4
STABILIZATION_S = 300.0


def stabilization_s(settings: Settings) -> float:
    """The seconds for which a lower count must last."""
    return settings.scale.down_window_s or STABILIZATION_S


@dataclass(frozen=True, slots=True)
class Hpa:
    """CPU use against its target. With the same instances, more load never asks for fewer."""

    name: str = "hpa"
    version: int = 1
    period_s: float = 15.0
    default_scheduler: str = "immediate"

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:  # noqa: ARG002 - it remembers nothing
        live_count = max(1, len(observation.live))
        cores = sum(instance.cores for instance in observation.ready)
        if not cores:
            return DesiredCount(live_count, f"no instance is ready to be measured: {live_count}")
        target = observation.settings.target_cpu_percent
        busy_cores = observation.history.mean(observation.history.busy_cores, self.period_s)
        use_percent = 100.0 * busy_cores / cores
        ratio = use_percent / target
        reason = f"{use_percent:.0f} % CPU in {self.period_s:g} s, target {target:g} %"
        if abs(ratio - 1.0) <= TOLERANCE:
            return DesiredCount(live_count, f"{reason}: within {TOLERANCE:.0%}, {live_count}")
        if len(observation.ready) == len(observation.live) or ratio < 1.0:
            count = max(1, whole(len(observation.ready) * ratio))
            return DesiredCount(count, f"{reason}: {len(observation.ready)} × {ratio:.2f} = {count}")
        # Starting instances count as idle (Kubernetes: pods without metrics use 0 % when scaling up), so they dilute the ratio.
        diluted = ratio * len(observation.ready) / live_count
        count = max(live_count, whole(live_count * diluted)) if diluted > 1.0 + TOLERANCE else live_count
        return DesiredCount(count, f"{reason}: {live_count} with those that start × {diluted:.2f} = {count}")
