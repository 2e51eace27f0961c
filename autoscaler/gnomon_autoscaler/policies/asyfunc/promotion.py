"""Bodies out of Shadows: where model-level scaling wants one more Body, a Shadow may load the rest of the model and become it.

A long burst then needs no second cold start, and no further cores: those of the Shadow are the Body's. A Shadow qualifies that
works for a ready Body, whose cores sustain no less than a Body of c_best does, and on whose node the rest of the model fits. Of
several the one that would sustain most comes first.

A promotion is a creation in every other respect: of the number of Bodies that bounds, operators and Algorithm 1 have decided on.
docs/decisions/0015-promotion-and-resizing.md has worked examples.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gnomon_autoscaler.policies.asyfunc.knowledge import Knowledge
from gnomon_autoscaler.policies.asyfunc.model_level import configurations
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.room import Room
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.scaling import Observation


def promotable(known: Knowledge, options: Options, seen: Observation, rate_rps: float, memory_bytes: int) -> list[Instance]:
    """The Shadows that can become Bodies now, the best first; no two count on the same memory. None without the option."""
    if not options.promotion:
        return []
    least_rps = configurations(known, rate_rps)[0].rate_rps
    serving = {body.id for body in seen.ready}
    able = [shadow for shadow in seen.shadows if shadow.state is InstanceState.READY and shadow.partner in serving]
    room = Room(seen.nodes)
    found: list[Instance] = []
    for shadow in sorted(able, key=lambda each: (-known.rates.rate_rps(each.cores), each.id)):
        more_bytes = max(0, memory_bytes - shadow.memory_bytes)
        if known.rates.rate_rps(shadow.cores) >= least_rps and room.memory_bytes(shadow.node) >= more_bytes:
            room.take(shadow.node, 0, more_bytes)
            found.append(shadow)
    return found


def as_bodies(seen: Observation, promoted: Collection[str]) -> Observation:
    """The same with these Shadows as the Bodies that they become."""
    if not promoted:
        return seen
    return replace(seen, instances=tuple(_as_body(one) if one.id in promoted else one for one in seen.instances))


def _as_body(shadow: Instance) -> Instance:
    return replace(shadow, kind=InstanceKind.BODY, state=InstanceState.STARTING, partner=None, pair=None)
