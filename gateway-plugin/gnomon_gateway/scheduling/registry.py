"""The scheduling policies by name. A policy is one line of `BUILT_IN`.

Those of third parties are entry points of the group `gnomon.scheduling_policies` (`gnomon_core.policy_registry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from gnomon_core.interfaces import SchedulingPolicy
from gnomon_core.policy_registry import GROUPS, Kind, PolicyPlugin
from gnomon_core.settings import Settings
from gnomon_gateway.scheduling.policies import Adaptive, AdaptiveFill, AdaptivePaper, Economical, Fixed, Immediate

Schedulers: TypeAlias = Mapping[str, PolicyPlugin[SchedulingPolicy]]

BUILT_IN: Schedulers = MappingProxyType(
    {
        "adaptive": PolicyPlugin(
            lambda settings: Adaptive(settings.slo_s, settings.max_wait_s),
            "sends what waits as soon as an instance is idle, unless waiting for company is worth it",
        ),
        "adaptive-fill": PolicyPlugin(
            lambda settings: AdaptiveFill(settings.slo_s, settings.max_wait_s),
            "fills batches as far as the objective allows: the fewest batches, for who pays by the batch",
        ),
        "adaptive-paper": PolicyPlugin(
            lambda settings: AdaptivePaper(settings.slo_s),
            "Algorithm 3 as printed in AsyFunc: spends the objective on waiting, drops what cannot meet it",
        ),
        "economical": PolicyPlugin(
            lambda settings: Economical(settings.slo_s),
            "sends what waits at once, in the smallest batches with about the best rate, on as many cores as the wait calls for",
        ),
        "fixed": PolicyPlugin(
            lambda settings: Fixed(settings.max_batch, settings.max_wait_s or 0.0),
            "sends a batch when it is full or its oldest request has waited gnomon/max-wait-ms",
        ),
        "immediate": PolicyPlugin(lambda _: Immediate(), "sends whatever waits as soon as an instance is idle"),
    }
)
SCHEDULING: Kind[SchedulingPolicy] = Kind("scheduling policy", "gnomon/scheduler", GROUPS[1], BUILT_IN)


def scheduling_policy(name: str, settings: Settings, schedulers: Schedulers = BUILT_IN) -> SchedulingPolicy:
    """A new policy for a function with these settings.

    Raises:
        GnomonError: 400 `unknown_policy`, naming the known ones; or what it or its own settings' table has against them.

    """
    return SCHEDULING.policy(name, settings, schedulers)
