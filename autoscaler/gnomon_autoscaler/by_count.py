"""From a number of instances to actions.

Too few live instances: create the missing ones, each on the node with most room. Too many: destroy the surplus and never more,
those first whose end costs least: still starting (they serve nobody yet, and Kubernetes ranks them the same way), then idle, then
those with the fewest requests in flight, and of equals the youngest, which has the least warmed-up state to lose.
"""

from __future__ import annotations

from gnomon_autoscaler.counting import CountPolicy, Memory
from gnomon_autoscaler.room import Room
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.scaling import Action, CreateBody, Decision, DestroyBody, DestroyShadow, Observation, PolicyState


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
        # Shadows are of another policy, which the function had before: this one knows nothing to do with them.
        left = tuple(DestroyShadow(shadow.id) for shadow in seen.shadows)
        decision = Decision(left + towards(wish.count, seen), wish.reason, wish.count)
        return decision, PolicyState(self.name, self.counter.version, wish.memory)


def towards(count: int, seen: Observation) -> tuple[Action, ...]:
    """What makes the number of live instances `count`."""
    live = seen.live
    surplus = len(live) - count
    if surplus > 0:
        return tuple(DestroyBody(victim.id) for victim in sorted(live, key=cost_of_ending)[:surplus])
    return creations(-surplus, seen.settings.cores, seen, Room(seen.nodes)) if surplus else ()


def cost_of_ending(instance: Instance) -> tuple[bool, bool, int, float, str]:
    """What orders victims: the first to end is the least."""
    starting = instance.state is InstanceState.STARTING
    return (not starting, instance.busy, instance.in_flight, -instance.started_s, instance.id)


def creations(number: int, cores: int, seen: Observation, room: Room) -> tuple[CreateBody, ...]:
    """New instances of so many cores, each on the node with most room, which it takes."""
    # What an instance of this function takes is known once there is one; until then only cores are looked at.
    memory_bytes = max((instance.memory_bytes for instance in seen.instances), default=0)
    found: list[CreateBody] = []
    for _ in range(number):
        # No node has room: that is left to the platform, which may refuse.
        place = room.roomiest(cores, memory_bytes)
        if place is not None:
            room.take(place, cores, memory_bytes)
        found.append(CreateBody(cores, place))
    return tuple(found)
