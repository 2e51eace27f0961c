"""Policies that follow no load: `fixed`, and the one for functions whose replicas a foreign provider scales.

`fixed` has as many instances as the function's minimum, or as an operator asked for. It also stands in for a policy that fails,
because nothing can go wrong in it. A minimum of 0 means one instance while the function is in use and none after
`scale.zero-duration` without a request.

`Provided` opens as many slots as the provider's replicas take requests at once. A slot is the right to have one batch under way
there. The function's node in the observation is named like the function, and its cores are the places that its replicas offer.
With none, one slot is opened while a request waits, which wakes the function. Example: 3 replicas that take 4 requests each offer
12 places. With 10 slots, 2 are opened; when a replica ends, 4 are closed, idle ones first, and batches under way are answered.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_autoscaler.replica_policy import DesiredCount, Memory, in_system, victim_order
from gnomon_core.scaling import Action, CreateBody, Decision, DestroyBody, Observation, PolicyState


@dataclass(frozen=True, slots=True)
class Fixed:
    """The scaling policy `fixed`: the function's minimum, or the number that an operator requested."""

    name: str = "fixed"
    version: int = 1
    period_s: float = 5.0
    default_scheduler: str = "immediate"

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:  # noqa: ARG002 - it remembers nothing
        count = observation.settings.scale.least
        return DesiredCount(count, f"fixed at {count}")


class Provided:
    """The policy for a foreign provider: one slot for each request that its replicas take at once."""

    name = "provided"
    period_s = 1.0
    default_scheduler = "immediate"
    needs: frozenset[str] = frozenset()

    def decide(self, observation: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Actions that match the number of slots to the number of places; `state` is not used."""
        del state
        places = sum(node.cores for node in observation.nodes if node.name == observation.function)
        count = places or (1 if in_system(observation) else 0)
        surplus = len(observation.live) - count
        ending = sorted(observation.live, key=victim_order)[: max(0, surplus)]
        actions: list[Action] = [DestroyBody(slot.id) for slot in ending]
        actions += [CreateBody(observation.settings.cores, observation.function)] * max(0, -surplus)
        return Decision(tuple(actions), _reason(places, count), count), PolicyState(self.name, 1)


def _reason(places: int, count: int) -> str:
    if places:
        return f"the provider's replicas take {places} requests at once"
    return "a request waits, and the provider has no replica: one is requested" if count else "the provider has no replica"
