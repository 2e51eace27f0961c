"""Policies that decide on a number of instances, and how a number becomes actions.

Most scaling policies answer one question: how many instances should this function have now? A `CountPolicy` answers it, with a
sentence that says why. Wrappers (`wrappers`) are count policies around count policies, and `ByCount` turns the outermost one into
a `ScalingPolicy`, whose decisions create and destroy instances. A policy's memory between decisions is a mapping of JSON values.
A moment in it has a key that ends in `_at_s`, so that a saved memory can be carried to another machine's clock.

**Actions.** Too few live instances: create the missing ones on nodes with most free cores. Too many: destroy the surplus and
never more, those first whose end costs least: still starting (they serve no request yet, and Kubernetes ranks them the same way),
then idle, then those with the fewest requests in flight, and of equals the youngest, which has the least warmed-up state to lose.

**Room.** `Room` is what is free on the nodes while a decision is made: no two of its actions may count on the same cores. A
node's free cores are anybody's. Those in its reserve are for Shadows, which take them first; a Body gets them where no node has
other room for it (AsyFunc, section 3.4). Example: 1 core free, 2 in reserve. A Shadow of 3 has room. A Body of 1 takes the free
one, and one of 2 that fits nowhere else takes that and 1 of the reserve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeGuard

from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.scaling import Action, CreateBody, Decision, DestroyBody, DestroyShadow, Observation, PolicyState, StateValue

Memory: TypeAlias = Mapping[str, StateValue]

TOLERANCE_S = 1e-6
"""Sums of ticks fall short of a period by less than this."""
ROUNDING = 1e-9
"""What binary fractions add: 3 × 0.7 / 0.7 is 2.9999999999999996 or 3.0000000000000004 and must count as 3."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The number of instances that a policy wants, the reason, and its memory."""

    count: int
    reason: str
    memory: Memory = field(default_factory=dict)


class CountPolicy(Protocol):
    """Decides how many instances a function should have.

    The same observation and memory give the same wish. The memory is empty at first and after a change of policy or `version`.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int:
        """Grows when an older memory can no longer be read."""
        ...

    @property
    def period_s(self) -> float:
        """Seconds between two decisions."""
        ...

    @property
    def default_scheduler(self) -> str:
        """The scheduling policy of functions that name none."""
        ...

    def wish(self, seen: Observation, memory: Memory) -> Wish: ...


def whole(instances: float) -> int:
    """Enough whole instances for a fractional need: 2.1 needs 3, 3.0000000000000004 needs 3."""
    return max(0, math.ceil(instances - ROUNDING))


def in_system(seen: Observation) -> int:
    """Requests that wait or execute."""
    return seen.queued + seen.executing


def moment(memory: Memory, key: str) -> float | None:
    """A time that the memory holds, None if it holds none."""
    value = memory.get(key)
    return float(value) if isinstance(value, int | float) else None


def goes_on(since_s: float | None, period_s: float, now_s: float) -> TypeGuard[float]:
    """Whether a period that began then has not ended. None goes on that never began, or that begins later than now."""
    return since_s is not None and 0.0 <= now_s - since_s < period_s - TOLERANCE_S


def count_in(memory: Memory, key: str) -> int | None:
    """A number of instances that the memory holds, None if it holds none."""
    value = memory.get(key)
    return int(value) if isinstance(value, int | float) else None


def inner(memory: Memory) -> Memory:
    """The memory of the wrapped policy."""
    value = memory.get("inner")
    return value if isinstance(value, Mapping) else {}


_TOLERANCE_CORES = 1e-9
"""Free cores are sums of fractions: 0.9999999999999998 of a core is one."""
_NOTHING = (0.0, 0.0, 0)


class Room:
    """Free cores, reserve and free memory by node. What is taken stays taken; of a node that is not known nothing is kept."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        seen = tuple(nodes)
        self._free = {node.name: (node.free_cores, node.reserve_cores, node.free_memory_bytes) for node in seen}
        self._pairs = {node.name for node in seen if node.pairs}

    def roomiest(self, cores: int, memory_bytes: int = 0, *, reserve: bool = False) -> str | None:
        """The node with most free cores that has room for a Body; None where none has. With `reserve` that counts as free."""
        room = {
            name: spare + held * reserve for name, (spare, held, spare_bytes) in self._free.items() if spare_bytes >= memory_bytes
        }
        return min((name for name in room if room[name] >= cores), key=lambda name: (-room[name], name), default=None)

    def take(self, node: str, cores: int, memory_bytes: int = 0) -> None:
        """A Body begins on this node, or grows; a negative amount: one ends."""
        spare = self._free.get(node, _NOTHING)[0]
        self._take(node, cores, max(0.0, cores - max(0.0, spare)), memory_bytes)

    def take_for_shadow(self, node: str, cores: int, memory_bytes: int = 0) -> None:
        """A Shadow begins on this node."""
        self._take(node, cores, cores, memory_bytes)

    def cores(self, node: str) -> int:
        """Whole free cores of a node, without its reserve; 0 for one that is not known."""
        return _whole(self._free.get(node, _NOTHING)[0])

    def makes_shadows(self, node: str) -> bool:
        """Whether the node can make Shadows now, and connect Bodies to them."""
        return node in self._pairs

    def shadow_cores(self, node: str) -> int:
        """Whole cores of a node that Shadows may have; 0 for one that is not known, or where none can be made now."""
        spare, held, _ = self._free.get(node, _NOTHING)
        return _whole(spare + held) if node in self._pairs else 0

    def others(self, node: str) -> list[str]:
        """The other nodes, those with most cores for Shadows first."""
        return sorted(self._free.keys() - {node}, key=lambda name: (-sum(self._free[name][:2]), name))

    def memory_bytes(self, node: str) -> int:
        """Free memory of a node; 0 for one that is not known."""
        return self._free.get(node, _NOTHING)[2]

    def _take(self, node: str, cores: int, most_of_reserve: float, memory_bytes: int) -> None:
        if node not in self._free:
            return
        spare, held, spare_bytes = self._free[node]
        reserved = min(held, most_of_reserve)
        self._free[node] = (spare - (cores - reserved), held - reserved, spare_bytes - memory_bytes)


def _whole(cores: float) -> int:
    return max(0, int(cores + _TOLERANCE_CORES))


class ByCount:
    """A full scaling policy around a count policy.

    It needs nothing special of a platform: one that cannot be told the node or the victim chooses by itself.
    """

    needs: frozenset[str] = frozenset()

    def __init__(self, counter: CountPolicy) -> None:
        self.counter = counter
        self.name = counter.name
        self.version = counter.version
        self.period_s = counter.period_s
        self.default_scheduler = counter.default_scheduler

    def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Actions towards the count that the policy wants."""
        ours = state.policy == self.name and state.version == self.version
        memory: Memory = state.values if ours else {}
        wish = self.counter.wish(seen, memory)
        # Shadows are of another policy, which the function had before: this one knows nothing to do with them.
        left = tuple(DestroyShadow(shadow.id) for shadow in seen.shadows)
        decision = Decision(left + towards(wish.count, seen), wish.reason, wish.count)
        return decision, PolicyState(self.name, self.version, wish.memory)


def towards(count: int, seen: Observation) -> tuple[Action, ...]:
    """Actions that bring the number of live instances to `count`."""
    live = seen.live
    surplus = len(live) - count
    if surplus > 0:
        return tuple(DestroyBody(victim.id) for victim in sorted(live, key=cost_of_ending)[:surplus])
    return creations(-surplus, seen.settings.cores, seen, Room(seen.nodes)) if surplus else ()


def cost_of_ending(instance: Instance) -> tuple[bool, bool, int, float, str]:
    """Sort key of victims: the instance with the smallest key ends first (starting, then idle, then youngest)."""
    starting = instance.state is InstanceState.STARTING
    return (not starting, instance.busy, instance.in_flight, -instance.started_s, instance.id)


def creations(number: int, cores: int, seen: Observation, room: Room) -> tuple[CreateBody, ...]:
    """New instances of `cores`, each on the node with most free cores, which it reserves."""
    # What an instance of this function takes is known once there is one; until then only cores are looked at.
    memory_bytes = max((instance.memory_bytes for instance in seen.instances), default=0)
    found: list[CreateBody] = []
    for _ in range(number):
        # No node has enough free cores: the platform decides, and may refuse.
        place = room.roomiest(cores, memory_bytes)
        if place is not None:
            room.take(place, cores, memory_bytes)
        found.append(CreateBody(cores, place))
    return tuple(found)
