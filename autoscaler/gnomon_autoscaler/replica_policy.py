"""Replica policies, which decide on a number of instances, and the actions that lead to the number.

Most scaling policies answer one question: how many instances should this function have now? A `ReplicaPolicy` answers it, with a
sentence that says why. Wrappers (`wrappers`) are replica policies around replica policies, and `ReplicaPolicyAdapter` turns the
outermost one into a `ScalingPolicy`, whose decisions create and destroy instances. A policy's memory between decisions is a
mapping of JSON values. A time in it has a key that ends in `_at_s`, so that a saved memory can be carried to another machine's
clock.

**Actions.** Too few live instances: create the missing ones on nodes with most free cores. Too many: destroy the surplus and
never more, those first whose end costs least: still starting (they serve no request yet, and Kubernetes ranks them the same way),
then idle, then those with the fewest requests in flight, and of equals the youngest, which has the least warmed-up state to lose.

**Free capacity.** `FreeCapacity` tracks the nodes' free capacity during one decision, so that no two of its actions use the same
cores. A node's free cores are available to all instances. Its reserve is for Shadows, which use it first; a Body uses it only if
no node has enough free cores (AsyFunc, section 3.4). Example: 1 core free, 2 in reserve. A Shadow of 3 fits. A Body of 1 takes
the free core; a Body of 2 that fits nowhere else takes the free core and 1 of the reserve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeAlias, TypeGuard

from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.interfaces import ScalingPolicy
from gnomon_core.scaling import (
    Action,
    CreateBody,
    Decision,
    DestroyBody,
    DestroyShadow,
    Observation,
    PolicyState,
    Resize,
    StateValue,
)

Memory: TypeAlias = Mapping[str, StateValue]

TOLERANCE_S = 1e-6
"""The rounding error of sums of ticks: they fall short of a period by less than this."""
ROUNDING = 1e-9
"""Rounding errors of binary fractions: 3 × 0.7 / 0.7 is 2.9999999999999996 or 3.0000000000000004 and must count as 3."""


@dataclass(frozen=True, slots=True)
class DesiredCount:
    """The number of instances that a policy wants, the reason, and its memory."""

    count: int
    reason: str
    memory: Memory = field(default_factory=dict)


Wish = DesiredCount
"""Former name of `DesiredCount`; installed plug-ins import it."""


class ReplicaPolicy(Protocol):
    """A policy that decides on the number of a function's instances.

    The same observation and memory give the same count. The memory is empty at first and after a change of policy or `version`.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int:
        """The version of the memory's format. A memory of another version is discarded."""
        ...

    @property
    def period_s(self) -> float:
        """Seconds between two decisions."""
        ...

    @property
    def default_scheduler(self) -> str:
        """The scheduling policy of functions that name none."""
        ...

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount: ...


def whole(instances: float) -> int:
    """Round a fractional number of instances up, tolerating rounding errors: 2.1 is 3, 3.0000000000000004 is 3."""
    return max(0, math.ceil(instances - ROUNDING))


def in_system(observation: Observation) -> int:
    """The number of requests that wait or execute."""
    return observation.queued + observation.executing


def timestamp_in(memory: Memory, key: str) -> float | None:
    """A time in the memory; None if there is none."""
    value = memory.get(key)
    return float(value) if isinstance(value, _NUMBERS) else None


def count_in(memory: Memory, key: str) -> int | None:
    """A number of instances in the memory; None if there is none."""
    value = memory.get(key)
    return int(value) if isinstance(value, _NUMBERS) else None


def counts_in(memory: Memory, key: str) -> list[tuple[float, int]]:
    """Numbers of instances in the memory, each with its time, which is under the key with `_at_s`; none if there are none."""
    times, counts = memory.get(f"{key}_at_s"), memory.get(key)
    if not isinstance(times, tuple) or not isinstance(counts, tuple):
        return []
    return [
        (float(at_s), int(count))
        for at_s, count in zip(times, counts, strict=True)
        if isinstance(at_s, _NUMBERS) and isinstance(count, _NUMBERS)
    ]


_NUMBERS = (int, float)


def within_period(since_s: float | None, period_s: float, now_s: float) -> TypeGuard[float]:
    """Return whether a period that began at `since_s` has not ended.

    False for a period that never began, or that begins in the future: a restored clock may be behind the saved one.
    """
    return since_s is not None and 0.0 <= now_s - since_s < period_s - TOLERANCE_S


_MAPPINGS = (dict, Mapping)
"""Types of a mapping, the usual one first: the check against an abstract class takes a microsecond."""


def inner_memory(memory: Memory) -> Memory:
    """The memory of the wrapped policy."""
    value = memory.get("inner")
    return value if isinstance(value, _MAPPINGS) else {}


_TOLERANCE_CORES = 1e-9
"""Rounding error of free cores, which are sums of fractions: 0.9999999999999998 of a core is one."""
_NOTHING = (0.0, 0.0, 0)


class FreeCapacity:
    """Free cores, reserve and free memory by node. Capacity that was taken stays taken; unknown nodes are ignored.

    Most decisions create nothing, so the nodes are read only at the first use.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = tuple(nodes)

    @cached_property
    def _free(self) -> dict[str, tuple[float, float, int]]:
        return {node.name: (node.free_cores, node.reserve_cores, node.free_memory_bytes) for node in self._nodes}

    @cached_property
    def _makes_shadows(self) -> set[str]:
        return {node.name for node in self._nodes if node.pairs}

    def best_node(self, cores: int, memory_bytes: int = 0, *, reserve: bool = False) -> str | None:
        """The node with most free cores on which a Body fits; None if there is none. With `reserve`, the reserve is free too."""
        fitting = {
            name: free_cores + reserved * reserve
            for name, (free_cores, reserved, free_bytes) in self._free.items()
            if free_bytes >= memory_bytes
        }
        # Of equal nodes the first by name, so that a decision depends on nothing but its observation.
        return min((name for name in fitting if fitting[name] >= cores), key=lambda name: (-fitting[name], name), default=None)

    def take(self, node: str, cores: int, memory_bytes: int = 0) -> None:
        """Take capacity for a Body that starts or grows on this node; negative amounts release it."""
        free_cores = self._free.get(node, _NOTHING)[0]
        self._take(node, cores, max(0.0, cores - max(0.0, free_cores)), memory_bytes)

    def take_for_shadow(self, node: str, cores: int, memory_bytes: int = 0) -> None:
        """Take capacity for a Shadow on this node."""
        self._take(node, cores, cores, memory_bytes)

    def cores(self, node: str) -> int:
        """Whole free cores of a node, without its reserve; 0 for an unknown node."""
        return _whole_cores(self._free.get(node, _NOTHING)[0])

    def makes_shadows(self, node: str) -> bool:
        """Return whether the node can make Shadows now, and connect Bodies to them."""
        return node in self._makes_shadows

    def shadow_cores(self, node: str) -> int:
        """Whole cores of a node for Shadows; 0 for an unknown node, or one that makes no Shadows now."""
        free_cores, reserved, _ = self._free.get(node, _NOTHING)
        return _whole_cores(free_cores + reserved) if node in self._makes_shadows else 0

    def other_nodes(self, node: str) -> list[str]:
        """The other nodes, those with most cores for Shadows first."""
        return sorted(self._free.keys() - {node}, key=lambda name: (-sum(self._free[name][:2]), name))

    def memory_bytes(self, node: str) -> int:
        """Free memory of a node; 0 for an unknown node."""
        return self._free.get(node, _NOTHING)[2]

    def _take(self, node: str, cores: int, most_of_reserve: float, memory_bytes: int) -> None:
        if node not in self._free:
            return
        free_cores, reserved, free_bytes = self._free[node]
        from_reserve = min(reserved, most_of_reserve)
        self._free[node] = (free_cores - (cores - from_reserve), reserved - from_reserve, free_bytes - memory_bytes)


def _whole_cores(cores: float) -> int:
    return max(0, int(cores + _TOLERANCE_CORES))


def memory_of(state: PolicyState, name: str, version: int) -> Memory:
    """The policy's memory; empty if the state is another policy's or of another version."""
    return state.values if (state.policy, state.version) == (name, version) else {}


class ReplicaPolicyAdapter:
    """A `ScalingPolicy` around a replica policy.

    It needs no capability of a platform: a platform that accepts no node or no victim chooses by itself.
    """

    needs: frozenset[str] = frozenset()
    is_quick = True
    """True if a decision takes microseconds, so that it is made on the event loop."""

    def __init__(self, policy: ReplicaPolicy) -> None:
        self._policy = policy
        # Read once: each wrapper passes these on from the policy that it wraps.
        self.name = policy.name
        self.version = policy.version
        self.period_s = policy.period_s
        self.default_scheduler = policy.default_scheduler

    def decide(self, observation: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Actions towards the count that the policy wants."""
        desired = self._policy.desired_count(observation, memory_of(state, self.name, self.version))
        # Shadows of the function's former policy: no replica policy uses Shadows.
        shadows = tuple([DestroyShadow(shadow.id) for shadow in observation.shadows])
        decision = Decision(shadows + self.actions(desired.count, observation), desired.reason, desired.count)
        return decision, PolicyState(self.name, self.version, desired.memory)

    def actions(self, count: int, observation: Observation) -> tuple[Action, ...]:
        """Actions that bring the number of live instances to `count`."""
        return (*own_cores(observation), *actions_towards(count, observation))


def decides_on_count(policy: ScalingPolicy | None) -> bool:
    """Return whether the policy decides on a number of instances alone, within microseconds."""
    return isinstance(policy, ReplicaPolicyAdapter) and policy.is_quick


def actions_towards(count: int, observation: Observation) -> tuple[Action, ...]:
    """Actions that bring the number of live instances to `count`."""
    live = observation.live
    surplus = len(live) - count
    if surplus > 0:
        return tuple(DestroyBody(victim.id) for victim in sorted(live, key=victim_order)[:surplus])
    return creations(-surplus, observation.settings.cores, observation, FreeCapacity(observation.nodes)) if surplus else ()


def own_cores(observation: Observation) -> tuple[Resize, ...]:
    """Resizes of Bodies that a former policy has let borrow cores: they have the function's own cores from now on."""
    borrowing = [body for body in observation.ready if body.idle_cores is not None]
    return tuple([Resize(body.id, observation.settings.cores) for body in borrowing])


def victim_order(instance: Instance) -> tuple[bool, bool, int, float, str]:
    """Sort key of victims: the instance with the smallest key ends first (starting, then idle, then youngest)."""
    starting = instance.state is InstanceState.STARTING
    return (not starting, instance.busy, instance.in_flight, -instance.started_s, instance.id)


def creations(number: int, cores: int, observation: Observation, capacity: FreeCapacity) -> tuple[CreateBody, ...]:
    """New instances of `cores`, each on the node with most free cores, which it takes."""
    # The memory of this function's instances is known once there is one; until then only cores are checked.
    memory_bytes = max((instance.memory_bytes for instance in observation.instances), default=0)
    created: list[CreateBody] = []
    for _ in range(number):
        node = capacity.best_node(cores, memory_bytes)
        if node is not None:
            capacity.take(node, cores, memory_bytes)
        # With None, as no node has enough free cores, the platform decides, and may refuse.
        created.append(CreateBody(cores, node))
    return tuple(created)
