"""Whom a ReplicaSet would remove next, and so how far its number may be lowered now.

A ReplicaSet that has too many pods removes, in this order: those without a node; pending before unknown before running ones;
unready before ready ones; those with the lower deletion cost. Ties are settled by rules that we do not rely on (how many share
a node, how long they have been ready, restarts, age). So a victim that is unready and cheapest still stays, as long as another
pod is pending: lowering the number then would cost that one. The number is lowered only as far as the order begins with
victims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from gnomon_platforms.kubernetes.objects.pods import ENDED_PHASES, PodFacts

VICTIM_COST = -1_000_000_000
CLAIMED_COST = 1_000
"""Of pods that stand for an instance, so that a spare one goes before them while both wait for a node."""
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """A pod's place in the order of removal; the lower goes first."""

    assigned: bool
    phase: int
    ready: bool
    cost: int


def rank(pod: PodFacts) -> Rank:
    """A pod's place in the order of removal."""
    return Rank(pod.node is not None, _PHASES.get(pod.phase, 1), pod.ready, pod.deletion_cost)


def counted(pods: Iterable[PodFacts]) -> list[PodFacts]:
    """The pods that a ReplicaSet counts: neither ended, nor ending, nor released."""
    return [pod for pod in pods if not (pod.ending or pod.released or pod.phase in ENDED_PHASES)]


def latest(victim: PodFacts) -> Rank:
    """The place that a victim may have come to by the time the number is lowered: a pod that is not gated may start meanwhile."""
    return (
        rank(victim)
        if victim.gated
        else Rank(assigned=True, phase=_PHASES["Running"], ready=victim.ready, cost=victim.deletion_cost)
    )


def earliest(pod: PodFacts) -> Rank:
    """The place that any other pod may have come to: one that is ready may be so no longer."""
    return replace(rank(pod), ready=False)


def removable(pods: Iterable[PodFacts], victims: Collection[str]) -> int:
    """By how many a ReplicaSet's number can be lowered now without costing anybody but the victims, given by name.

    It holds whatever pods do until the number is lowered, as long as nobody is given a victim and no gate is lifted.
    """
    pods = counted(pods)
    first = min((earliest(pod) for pod in pods if pod.name not in victims), default=None)
    return sum(first is None or latest(pod) < first for pod in pods if pod.name in victims)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A number that was lowered to `to`: the names of the pods that the ReplicaSet counted, and of the spares that are to go."""

    to: int
    counted: frozenset[str]
    spares: frozenset[str]

    def possible(self, pods: Iterable[PodFacts]) -> int:
        """How many pods the ReplicaSet may count as long as it has not removed as many as it was to; 0 from then on.

        It may not have heard of those that ended since, by themselves or by somebody else's doing, and would remove one more
        for each.
        """
        pods = tuple(pods)
        gone = self.spares - {pod.name for pod in counted(pods)}
        if len(self.counted) - len(gone) <= self.to:
            return 0
        return len((self.counted - gone) | {pod.name for pod in pods if not pod.released})
