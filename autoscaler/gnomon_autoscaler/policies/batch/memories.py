"""Which memory size an instance has, where a platform sells that and cores follow from it (AWS Lambda), and the way to another.

What may be chosen are the sizes that the function's profile was measured with, up to what brings `gnomon/max-cores`. Before a
plan instances have the function's own size. An instance never changes its size: those of the new one are created, and as many of
the others end as the new ones that serve make up for, so that never fewer serve than are wanted or serve now. Where no place is
left for even one, within `com.openfaas.scale.max` or on the platform, one of the others makes room.

Example: six slots of 1,769 MB serve, and five of 3,538 MB are wanted. Five are created beside the six; when three of them are
ready, four of the six end, the other two when all five are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gnomon_autoscaler.by_count import cost_of_ending
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.memory_sizes import LARGEST_MB, MB_PER_CORE, MEGABYTE
from gnomon_core.scaling import Action, CreateBody, DestroyBody, Observation

MOST_SIZES = 12
"""A plan on Lambda is priced without being settled, so that twice as many sizes can be looked at as there are of cores."""


def are_sold(seen: Observation) -> bool:
    """Whether the function's instances have a memory size that cores follow from."""
    return seen.profile is not None and bool(seen.profile.memories.seconds)


def own_mb(seen: Observation) -> int:
    """The size of an instance that no plan has chosen."""
    if seen.settings.memory_mb is not None:
        return seen.settings.memory_mb
    own = (one for one in seen.instances if one.memory_mb is None and one.memory_bytes >= MEGABYTE)
    found = next(own, None)
    return found.memory_bytes // MEGABYTE if found is not None else seen.settings.cores * MB_PER_CORE


def cores_with(memory_mb: int) -> int:
    """The whole cores that an instance of that size shows: 1,792 MB are more than one."""
    return math.ceil(memory_mb / MB_PER_CORE)


def measured(seen: Observation) -> Mapping[int, tuple[float, ...]]:
    """Service times of batches 1, 2, … by the memory sizes that a plan may choose, in MB."""
    if seen.profile is None:
        return {}
    table, most = seen.profile.memories, seen.settings.max_batch
    sizes = [one for one in sorted(table.seconds) if cores_with(one) <= seen.settings.max_cores]
    if len(sizes) > MOST_SIZES:
        sizes = [sizes[round(step * (len(sizes) - 1) / (MOST_SIZES - 1))] for step in range(MOST_SIZES)]
    rows = {one: [table.at(one, batch) for batch in range(1, most + 1)] for one in sizes}
    return {one: tuple(seconds for seconds in row if seconds is not None) for one, row in rows.items() if None not in row}


def towards_memory(count: int, memory_mb: int, seen: Observation) -> tuple[Action, ...]:
    """What leads to `count` instances of this size."""
    right = [one for one in seen.live if mb_of(one) == memory_mb]
    others = sorted((one for one in seen.live if mb_of(one) != memory_mb), key=cost_of_ending)
    serving = sum(one.state is InstanceState.READY for one in right)
    missing = max(0, count - len(right))
    # Of those that serve as many stay as the new ones do not make up for; those that still start go first.
    ending = others[: max(0, len(others) - max(0, count - serving))]
    places = min(seen.settings.scale.max - len(seen.live) + len(ending), _places(seen))
    if others and missing and not ending and places <= 0 and serving == len(right):
        ending = others[:1]
    ending += sorted(right, key=cost_of_ending)[: max(0, len(right) - count)]
    # Without others that could make room a missing one is asked for in any case: who refuses it says why.
    created = min(missing, max(0, places)) if others else missing
    create = CreateBody(seen.settings.cores, None, memory_mb)
    return (*(DestroyBody(one.id) for one in ending), *[create] * created)


def mb_of(one: Instance) -> int:
    """An instance's memory size."""
    return one.memory_bytes // MEGABYTE


def _places(seen: Observation) -> int:
    """How many more instances there may be; one takes the place of the largest, whatever its size."""
    return sum(node.free_memory_bytes // (LARGEST_MB * MEGABYTE) for node in seen.nodes)
