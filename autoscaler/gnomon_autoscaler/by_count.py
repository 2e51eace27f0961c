"""From a number of instances to actions.

Too few live instances: create the missing ones, each on the node with most room. Too many: destroy the surplus and never more,
those first whose end costs least: still starting (they serve nobody yet, and Kubernetes ranks them the same way), then idle, then
those with the fewest requests in flight, and of equals the youngest, which has the least warmed-up state to lose.
"""

from __future__ import annotations

from collections.abc import Mapping

from gnomon_autoscaler.counting import CountPolicy, Memory
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.scaling import Action, CreateBody, Decision, DestroyBody, Observation, PolicyState


class ByCount:
    """A full scaling policy around a count policy.

    It needs nothing special of a platform: one that cannot be told the node or the victim chooses by itself.
    """

    needs: frozenset[str] = frozenset()

    def __init__(self, counter: CountPolicy) -> None:
        self.counter = counter
        self.name = counter.name
        self.period_s = counter.period_s
        self.default_scheduler = counter.default_scheduler

    def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Actions towards the count that the policy wishes for."""
        ours = (state.policy, state.version) == (self.name, self.counter.version)
        memory: Memory = state.values if ours else {}
        wish = self.counter.wish(seen, memory)
        decision = Decision(towards(wish.count, seen), wish.reason, wish.count)
        return decision, PolicyState(self.name, self.counter.version, wish.memory)


def towards(count: int, seen: Observation) -> tuple[Action, ...]:
    """What makes the number of live instances `count`."""
    surplus = len(seen.live) - count
    if surplus > 0:
        return tuple(DestroyBody(victim.id) for victim in sorted(seen.live, key=_cost_of_ending)[:surplus])
    return _creations(-surplus, seen)


def _cost_of_ending(instance: Instance) -> tuple[bool, bool, int, float, str]:
    starting = instance.state is InstanceState.STARTING
    return (not starting, instance.busy, instance.in_flight, -instance.started_s, instance.id)


def _creations(number: int, seen: Observation) -> tuple[Action, ...]:
    cores = seen.settings.cores
    # What an instance of this function takes is known once there is one; until then only cores are looked at.
    memory_bytes = max((instance.memory_bytes for instance in seen.instances), default=0)
    free: dict[str, tuple[float, int]] = {node.name: (node.free_cores, node.free_memory_bytes) for node in seen.nodes}
    actions: list[Action] = []
    for _ in range(number):
        place = _roomiest(free, cores, memory_bytes)
        if place is not None:
            free[place] = (free[place][0] - cores, free[place][1] - memory_bytes)
        actions.append(CreateBody(cores, place))
    return tuple(actions)


def _roomiest(free: Mapping[str, tuple[float, int]], cores: int, memory_bytes: int) -> str | None:
    """The node with most free cores that has room; None leaves it to the platform, which may refuse."""
    room = [name for name, (spare, spare_bytes) in free.items() if spare >= cores and spare_bytes >= memory_bytes]
    return min(room, key=lambda name: (-free[name][0], name), default=None)
