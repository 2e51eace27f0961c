"""The sizes of instances that a plan may choose (`gnomon/plan-cores`), and the actions towards a size.

A size is a number of cores, or MB of memory on platforms that size instances by memory. A plan may choose the numbers of cores
for which the function's profile has service times, up to `gnomon/max-cores` and the cores of the largest node. Instances are
resized in place if their node has the cores, the least busy first; missing ones are created. An instance of another size ends
once enough of the right size serve, or, if its node is full, when more of the others exist than are needed and its cores are
required. A change thus never reduces the serving capacity.

An instance with a pending resize counts as having its new size: no second resize is requested, of it or of another instance, and
a later plan may withdraw the resize. Its service times are those of the new size only once it has the cores.

**Memory sizes**, on platforms that size instances by memory (AWS Lambda).

A plan may choose the sizes at which the function's profile was measured, up to the memory that corresponds to `gnomon/max-cores`.
Without a plan instances have the function's own size. An instance never changes its size: instances of the new size are created,
and old ones end as ready new ones replace them, so that no fewer serve than are wanted or serve now. If not even one can be
created, within `com.openfaas.scale.max` or on the platform, one of the old instances ends to free capacity.

Example: six slots of 1,769 MB serve, and five of 3,538 MB are wanted. Five are created in addition; when three of them are ready,
four of the six end, and the other two when all five are ready.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from gnomon_autoscaler.replica_policy import FreeCapacity, actions_towards, creations, victim_order
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.lambda_pricing import LARGEST_MB, MB_PER_CORE
from gnomon_core.profiles import LatencyTable
from gnomon_core.scaling import Action, CreateBody, DestroyBody, Observation, Resize
from gnomon_core.units import MEGABYTE

MOST_MEMORIES = 12
"""The most memory sizes of a plan. Plans on Lambda are priced without being settled, so that more sizes fit into a decision."""


def are_sold(observation: Observation) -> bool:
    """Return whether the function's instances have a memory size that cores follow from."""
    return observation.profile is not None and bool(observation.profile.memories.seconds)


def own_mb(observation: Observation) -> int:
    """The memory size of instances without a plan, in MB."""
    if observation.settings.memory_mb is not None:
        return observation.settings.memory_mb
    own = (instance for instance in observation.instances if instance.memory_mb is None and instance.memory_bytes >= MEGABYTE)
    first = next(own, None)
    return first.memory_bytes // MEGABYTE if first is not None else observation.settings.cores * MB_PER_CORE


def cores_with(memory_mb: int) -> int:
    """The number of cores that an instance of that size reports, rounded up: two for 1,792 MB."""
    return math.ceil(memory_mb / MB_PER_CORE)


def measured(observation: Observation) -> Mapping[int, tuple[float, ...]]:
    """Service times of batches 1, 2, … by the memory sizes that a plan may choose, in MB."""
    if observation.profile is None:
        return {}
    table, most = observation.profile.memories, observation.settings.max_batch
    sizes = [size for size in sorted(table.seconds) if cores_with(size) <= observation.settings.max_cores]
    if len(sizes) > MOST_MEMORIES:
        sizes = [sizes[round(step * (len(sizes) - 1) / (MOST_MEMORIES - 1))] for step in range(MOST_MEMORIES)]
    rows = {size: [table.at(size, batch) for batch in range(1, most + 1)] for size in sizes}
    return {size: tuple(seconds for seconds in row if seconds is not None) for size, row in rows.items() if None not in row}


def towards_memory(count: int, memory_mb: int, observation: Observation) -> tuple[Action, ...]:
    """Actions that lead to `count` instances of this memory size."""
    of_size = [instance for instance in observation.live if mb_of(instance) == memory_mb]
    other_sizes = sorted((instance for instance in observation.live if mb_of(instance) != memory_mb), key=victim_order)
    serving = sum(instance.state is InstanceState.READY for instance in of_size)
    missing = max(0, count - len(of_size))
    # Keep as many serving instances as new ones do not replace yet; instances that still start end first.
    ending = other_sizes[: max(0, len(other_sizes) - max(0, count - serving))]
    places = min(observation.settings.scale.max - len(observation.live) + len(ending), _places(observation))
    if other_sizes and missing and not ending and places <= 0 and serving == len(of_size):
        ending = other_sizes[:1]
    ending += sorted(of_size, key=victim_order)[: max(0, len(of_size) - count)]
    # Without others that could free capacity, request the missing ones anyway: the platform's refusal says why.
    created = min(missing, max(0, places)) if other_sizes else missing
    create = CreateBody(observation.settings.cores, None, memory_mb)
    return (*(DestroyBody(instance.id) for instance in ending), *[create] * created)


def mb_of(instance: Instance) -> int:
    """An instance's memory size."""
    return instance.memory_bytes // MEGABYTE


def _places(observation: Observation) -> int:
    """The number of instances that the free memory allows, each counted at the largest size."""
    return sum(node.free_memory_bytes // (LARGEST_MB * MEGABYTE) for node in observation.nodes)


MOST_SIZES = 5
SMALL_BATCH = 8
"""The largest batch up to which `MOST_SIZES` numbers of cores are evaluated. Larger batches take more of the second that a
decision may take: only the next smaller and larger numbers are evaluated then, and a large change takes several plans."""


def may_have(observation: Observation) -> Mapping[int, tuple[float, ...]]:
    """Service times of batches 1, 2, … by the sizes that a plan may choose; empty without a choice."""
    settings = observation.settings
    if settings.plan_cores != "any" or observation.profile is None:
        return {}
    if are_sold(observation):
        return measured(observation)
    if settings.memory_mb is not None:
        return {}
    largest = min(settings.max_cores, max((node.cores for node in observation.nodes), default=0))
    known = (cores for cores in _known(observation.profile.whole, largest) if cores <= largest)
    rows = {cores: _row(observation.profile.whole, cores, settings.max_batch) for cores in known}
    rows = {cores: row for cores, row in sorted(rows.items()) if row}
    kept = _kept(list(rows), settings.cores, settings.max_batch)
    return {cores: row for cores, row in rows.items() if cores in kept}


def own_size(observation: Observation) -> int:
    """The size of instances without a plan."""
    return own_mb(observation) if are_sold(observation) else observation.settings.cores


def all_cores(observation: Observation) -> float:
    """The cores that all instances may have together: their present or pending cores, and the free ones."""
    if are_sold(observation):
        return math.inf
    return sum(instance.given_cores for instance in observation.live) + sum(node.free_cores for node in observation.nodes)


def sized(observation: Observation, size: int) -> Observation:
    """The observation with this size of instances in place of the function's own."""
    settings, profile = observation.settings, observation.profile
    if are_sold(observation) and profile is not None:
        if size == own_mb(observation):
            return replace(observation, settings=replace(settings, memory_mb=size))
        bought = replace(settings, memory_mb=size, cores=cores_with(size))
        return replace(observation, settings=bought, latency_s=_row(profile.memories, size, settings.max_batch))
    if size == settings.cores:
        return observation
    row = _row(profile.whole, size, settings.max_batch) if profile is not None else ()
    return replace(observation, settings=replace(settings, cores=size), latency_s=row)


def towards_size(count: int, observation: Observation) -> tuple[Action, ...]:
    """Actions that lead to `count` instances of the size in `observation.settings`."""
    if are_sold(observation):
        return towards_memory(count, own_mb(observation), observation)
    cores = observation.settings.cores
    other_sizes = sorted((instance for instance in observation.live if instance.given_cores != cores), key=victim_order)
    if not other_sizes:
        return actions_towards(count, observation)
    of_size = [instance for instance in observation.live if instance.given_cores == cores]
    missing = max(0, count - len(of_size))
    if not missing:
        serving = sum(instance.cores == instance.given_cores == cores for instance in observation.ready)
        ending = (
            [*other_sizes, *sorted(of_size, key=victim_order)[: len(of_size) - count]]
            if serving >= min(count, len(of_size))
            else []
        )
        return tuple(DestroyBody(instance.id) for instance in ending)
    capacity = FreeCapacity(observation.nodes)
    ready = [instance for instance in other_sizes if instance.state is InstanceState.READY]
    resized = _resized(ready, missing, cores, capacity)
    unchanged = [instance for instance in other_sizes if all(action.id != instance.id for action in resized)]
    created = creations(missing - len(resized), cores, observation, capacity) if not unchanged else ()
    if unchanged and len(resized) < missing:
        # No capacity is left: end some serving instances that will not be needed, to free it.
        surplus = max(0, len(observation.ready) - count)
        return (*resized, *(DestroyBody(instance.id) for instance in _victims_for_growth(unchanged, surplus, cores, capacity)))
    return (*resized, *created)


def _resized(other_sizes: list[Instance], limit: int, cores: int, capacity: FreeCapacity) -> tuple[Resize, ...]:
    """Resizes in place to `cores`, where the node has the cores; instances that shrink go first, to free cores for others."""
    resizes: list[Resize] = []
    for instance in sorted(other_sizes, key=lambda instance: instance.given_cores < cores):
        additional_cores = cores - instance.given_cores
        if len(resizes) < limit and additional_cores <= capacity.cores(instance.node):
            capacity.take(instance.node, additional_cores)
            resizes.append(Resize(instance.id, cores))
    return tuple(resizes)


def _victims_for_growth(instances: list[Instance], surplus: int, cores: int, capacity: FreeCapacity) -> list[Instance]:
    """The surplus instances whose end frees the cores by which another instance on their node can grow."""
    for grown in reversed(instances):
        lacking = cores - grown.given_cores - capacity.cores(grown.node)
        ending: list[Instance] = []
        for instance in instances:
            if lacking > 0 and instance is not grown and instance.node == grown.node and len(ending) < surplus:
                ending.append(instance)
                lacking -= instance.given_cores
        if ending and lacking <= 0:
            return ending
    return []


def _kept(numbers: list[int], cores: int, max_batch: int) -> set[int]:
    """The numbers of cores to evaluate, out of the possible ones."""
    if max_batch > SMALL_BATCH:
        fewer, more = [number for number in numbers if number < cores], [number for number in numbers if number > cores]
        return {*fewer[-1:], *more[:1], *({cores} & set(numbers))}
    last = len(numbers) - 1
    return set(numbers) if last < MOST_SIZES else {numbers[round(step * last / (MOST_SIZES - 1))] for step in range(MOST_SIZES)}


def _known(table: LatencyTable, largest: int) -> set[int]:
    """Measured numbers of cores; with a declared serial fraction powers of two beyond them."""
    measured = set(table.seconds)
    powers = {2**power for power in range(largest.bit_length())} if table.serial_fraction is not None else set()
    return measured | powers


def _row(table: LatencyTable, cores: int, most: int) -> tuple[float, ...]:
    """The service times of batches of 1, 2, … `most`; empty if one is unknown."""
    seconds_of_batches = [table.at(cores, batch) for batch in range(1, most + 1)]
    return tuple(seconds for seconds in seconds_of_batches if seconds is not None) if None not in seconds_of_batches else ()
