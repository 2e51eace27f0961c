"""Shadows for what ready Bodies lack until further ones have started, by AsyFunc's pairings (`policies.asyfunc`).

    rule wants n ─▶ n > what the ready Bodies answer with their Shadows   a Shadow for the next Body that has none
                    n is met without the Shadow of least η                that Shadow ends
                    n has lasted for a Body's load time                   a Body starts

A Shadow has at most as many cores as its Body. A model without a profile of its blocks, one whose blocks do not pay, and nodes
that make no Shadows or have no room for one have none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gnomon_autoscaler.policies.asyfunc.lls import (
    Demand,
    LayerLevel,
    Tick,
    best_pairing,
    orphans,
    shadow_memory_bytes,
)
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge, KnowledgeCache
from gnomon_autoscaler.policies.gnomon.replay import Help
from gnomon_autoscaler.replica_policy import DesiredCount, FreeCapacity
from gnomon_core.scaling import Action, CreateBody, Decision, DestroyBody, DestroyShadow, Observation
from gnomon_core.settings import Settings


@dataclass(slots=True)
class Pairs:
    """The pairings of a function's Bodies, cached: they follow from its profile and settings alone."""

    _cache: KnowledgeCache | None = field(default=None, init=False)
    _options: Options = field(default_factory=Options, init=False)
    _settings: Settings | None = field(default=None, init=False)
    _narrow: Settings | None = field(default=None, init=False)

    def of(self, observation: Observation) -> tuple[Knowledge, Options] | None:
        """The pairings, and AsyFunc's options for this function; None without a profile."""
        settings = observation.settings
        if self._cache is None or settings.weight_mode != self._options.weight_mode:
            self._options = Options(weight_mode=settings.weight_mode)
            self._cache = KnowledgeCache(self._options)
        if self._narrow is None or settings is not self._settings:
            # A Shadow of more cores than its Body would only wait for it.
            self._settings, self._narrow = settings, replace(settings, max_cores=settings.cores)
        knowledge = self._cache.known(observation.profile, self._narrow)
        return None if knowledge is None else (knowledge, self._options)


def help_of(pairs: Pairs, observation: Observation, one_rps: float) -> Help | None:
    """The help of Shadows for the ready Bodies, on the cores that these have and that are free; None for nothing.

    `one_rps` is what a Body answers. A Shadow costs as much of a Body as it has of its memory or its cores, whichever is more.
    """
    found, ready = pairs.of(observation), observation.ready
    if found is None or not ready:
        return None
    knowledge, options = found
    capacity = FreeCapacity(observation.nodes)
    for shadow in observation.shadows:
        capacity.take_for_shadow(shadow.node, -shadow.cores, -shadow.memory_bytes)
    gains, costs, loads_s = list[float](), list[float](), list[float]()
    for body in ready:
        chosen = best_pairing(knowledge, options, body, math.inf, capacity)
        if chosen is None:
            continue
        pair, elsewhere = chosen.pair, chosen.pair.node is not None
        memory_bytes = shadow_memory_bytes(knowledge, options, chosen.parameter_bytes, elsewhere=elsewhere)
        capacity.take_for_shadow(pair.node or body.node, pair.shadow_cores, memory_bytes)
        gains.append(chosen.rate_rps / knowledge.rates.rate_rps(body.cores) - 1)
        costs.append(max(pair.shadow_cores / body.cores, memory_bytes / max(1, body.memory_bytes)))
        loads_s.append(knowledge.pairings.load_s(chosen.parameter_bytes))
    if not gains:
        return None
    return Help(sum(gains) / len(ready), one_rps * sum(gains) / len(gains), sum(costs) / len(costs), max(loads_s))


def with_shadows(
    desired: DesiredCount, target_count: int | None, pairs: Pairs, observation: Observation, bodies: Sequence[Action]
) -> Decision:
    """The decision with these actions for Bodies, and Shadows so that the ready ones answer as much as `target_count` ones."""
    level = shadows_for(target_count, pairs, observation, bodies)
    reason = "; ".join(text for text in (desired.reason, level.reason) if text)
    # Shadows first: they help sooner, and a refused Body must not delay them.
    return Decision((*level.released, *level.created, *bodies), reason, desired.count)


def shadows_for(target_count: int | None, pairs: Pairs, observation: Observation, bodies: Sequence[Action]) -> LayerLevel:
    """The Shadows that start or end so that the ready Bodies answer as much as `target_count` ones; None ends all.

    They take the capacity that the new Bodies among the actions `bodies` leave.
    """
    if target_count is None and not observation.shadows:
        return LayerLevel()
    ending = {action.id for action in bodies if isinstance(action, DestroyBody)}
    capacity = FreeCapacity(observation.nodes)
    memory_bytes = max((body.memory_bytes for body in observation.live), default=0)
    for action in bodies:
        if isinstance(action, CreateBody) and action.node is not None:
            capacity.take(action.node, action.cores, memory_bytes)
    found = pairs.of(observation) if target_count is not None else None
    lost = orphans(observation, ending)
    if target_count is None or found is None:
        serving = {body.id for body in observation.live} - ending
        remaining = (shadow for shadow in observation.shadows if shadow.partner in serving)
        return LayerLevel(released=(*lost, *(DestroyShadow(shadow.id) for shadow in remaining)))
    knowledge, options = found
    serving_bodies = tuple(body for body in observation.ready if body.id not in ending)
    target_rps = target_count * knowledge.rates.rate_rps(observation.settings.cores)
    demand = Demand(target_rps, target_rps, f"{target_count} Bodies' worth is wanted")
    level = Tick(knowledge, options, observation, serving_bodies).scale_to(demand, capacity)
    return replace(level, released=(*lost, *level.released))
