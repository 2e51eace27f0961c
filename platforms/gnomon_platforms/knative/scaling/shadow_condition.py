"""Why a Revision's Bodies work alone although its policy makes Shadows: the condition `Shadows` of its PodAutoscaler.

It only informs, and is there for policies that make Shadows alone. What is missing is told in the order in which one would mend
it: the feature of Knative's, the volume in the template, what the autoscaler was told, the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_platforms.knative.scaling.configuration import CSI_FEATURE
from gnomon_platforms.knative.scaling.objects import Condition
from gnomon_platforms.kubernetes.objects.pod_template import CSI_DRIVER

VOLUMES_DISABLED, NO_VOLUME, NOT_CONFIGURED, NO_POOL = "VolumesDisabled", "NoVolume", "NotConfigured", "NoPool"
"""What may be missing."""


@dataclass(frozen=True, slots=True)
class Means:
    """What Shadows need: Revisions may have the volume, this one has it, a token for coordinators, and a pool that is ready."""

    allowed: bool
    mounted: bool
    told: bool
    pooled: bool


def shadows(means: Means) -> Condition:
    """Whether Bodies may have Shadows, and why not."""
    if not means.mounted and not means.allowed:
        why = f"{CSI_FEATURE} is not enabled in config-features: pods cannot have the volume of their node's coordinator."
        return _alone(VOLUMES_DISABLED, why)
    if not means.mounted:
        return _alone(NO_VOLUME, f"The template has no volume of driver {CSI_DRIVER}.")
    if not means.told:
        return _alone(NOT_CONFIGURED, "The autoscaler was given no --coordinator-token.")
    if not means.pooled:
        return _alone(NO_POOL, "No node's coordinator can make Shadows now.")
    return Condition("True", "Possible")


def _alone(reason: str, why: str) -> Condition:
    return Condition("False", reason, f"{why} Bodies work alone.")
