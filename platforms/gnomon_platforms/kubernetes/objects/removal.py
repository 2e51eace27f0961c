"""Whom a ReplicaSet would remove next, and so how far its number may be lowered now.

A ReplicaSet that has too many pods removes, in this order: those without a node; pending before unknown before running ones;
unready before ready ones; those with the lower deletion cost. Ties are settled by rules that we do not rely on (how many share
a node, how long they have been ready, restarts, age). So a victim that is unready and cheapest still stays, as long as another
pod is pending: lowering the number then would cost that one. The number is lowered only as far as the order begins with
victims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

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


def removable(pods: Iterable[PodFacts], victims: Collection[str]) -> int:
    """By how many a ReplicaSet's number can be lowered now without costing anybody but the victims, given by name.

    Pods of the same rank may go in any order, so a rank counts only if all of it are victims.
    """
    ordered = sorted(counted(pods), key=rank)
    gone = 0
    while gone < len(ordered) and ordered[gone].name in victims:
        gone += 1
    # Those after it that have the rank of a victim might go in its place.
    while 0 < gone < len(ordered) and rank(ordered[gone - 1]) == rank(ordered[gone]):
        gone -= 1
    return gone
