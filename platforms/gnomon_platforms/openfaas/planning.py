"""What is to be written next for one function: a pure function of what is seen of it and what is wanted.

Every plan is made anew from everything, and says the same as long as it has not been seen to be carried out; so one that was
lost, sent twice or begun by a process that has died does no harm. A plan's numbers are absolute, never "one more".

    an instance waits, no spare pod ▶ raise the number ▶ a gated pod appears ▶ claim it: node, ungated ▶ healthy ▶ let it serve
    an instance is to go ▶ make its pod unready and cheap ▶ release it ▶ remove it by its uid; a spare comes for it
    nobody waits for a spare ▶ lower the number: a spare is gated, and so the first to go
    another version waits ▶ release what serves ▶ change the template ▶ each goes when its instance does
    all have the template ▶ guard it: what others change of it costs no pod that serves, and is an update like any other
    pods cannot be made (a quota, a webhook) ▶ go on with those there are; nobody waits ▶ let the number be theirs
    a pod has ended by itself ▶ remove it: it is in no ReplicaSet's number, and none removes it
    the function was removed ▶ each goes when its instance does ▶ remove the Deployment, and with it all that is left

What was written for a function, and may not be seen of it yet: informers are behind, and who wrote may have had no answer.

A plan is made from what is seen. Two things would be done otherwise each time for as long as they are not: an instance would be
given another pod than the one that it was given, and have two; and a spare would be given out that a lowered number may cost.

Whom a ReplicaSet would remove next, and so how far its number may be lowered now.

A ReplicaSet that has too many pods removes, in this order: those without a node; pending before unknown before running ones;
unready before ready ones; those with the lower deletion cost. Ties are settled by rules that we do not rely on (how many share
a node, how long they have been ready, restarts, age). So a victim that is unready and cheapest still stays, as long as another
pod is pending: lowering the number then would cost that one. The number is lowered only as far as the order begins with
victims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
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


@dataclass(frozen=True, slots=True)
class Waiting:
    """An instance that has no pod yet, as far as is seen; `claimed` is the one, by name, that it was given already."""

    id: str
    node: str
    claimed: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a function is to come to.

    `version` is the one that instances are wanted of, `waiting` those without a pod, in their order; `kept` are the pods of the
    others by name, with the cores that they are to have, None where the deployment says that. Every other pod is to go, but
    while `adopting` those that an earlier process claimed may be given to instances that are asked for again, unless they are
    `going`. `lowered` is how the number was lowered last, if it was not raised since.
    """

    version: int
    waiting: tuple[Waiting, ...] = ()
    kept: Mapping[str, int | None] = field(default_factory=dict)
    going: frozenset[str] = frozenset()
    adopting: bool = False
    lowered: Lowered | None = None

    @property
    def nobody(self) -> bool:
        """Whether no instance is there, to come or to go."""
        return not (self.waiting or self.kept or self.going)


@dataclass(frozen=True, slots=True)
class Deploy:
    """Make the Deployment, or give it the template of the wanted version; with so many pods."""

    replicas: int


@dataclass(frozen=True, slots=True)
class Scale:
    """Let the Deployment have so many pods; `lowered` where that are fewer than it had."""

    replicas: int
    lowered: Lowered | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """Give a pod to an instance: it gets its node, and the scheduler may have it."""

    pod: PodFacts
    waiting: Waiting


@dataclass(frozen=True, slots=True)
class Resize:
    """Give a pod other cores in place."""

    pod: PodFacts
    cores: int


@dataclass(frozen=True, slots=True)
class Serve:
    """Let a healthy pod be ready."""

    pod: PodFacts


@dataclass(frozen=True, slots=True)
class Retire:
    """Make a pod unready, and the first to go."""

    pod: PodFacts


@dataclass(frozen=True, slots=True)
class Release:
    """Take a pod out of its ReplicaSet's hands; the Deployment of this uid stays its owner."""

    pod: PodFacts
    owner_uid: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a pod that was released, or has ended by itself."""

    pod: PodFacts


@dataclass(frozen=True, slots=True)
class Guard:
    """Let no pod go for a template of this version that somebody else changes."""

    version: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Remove the Deployment of a function that was removed, and with it everything that is the function's."""


Step: TypeAlias = Deploy | Scale | Claim | Resize | Serve | Retire | Release | Remove | Guard | Withdraw


def plan(deployed: DeployedFunction | None, pods: Iterable[PodFacts], wanted: Wanted) -> tuple[Step, ...]:
    """The steps that can be taken now. They do not depend on each other."""
    pods = tuple(pods)
    steps: list[Step] = [Remove(pod) for pod in pods if _left(pod) and not pod.ending and pod.name not in wanted.kept]
    if deployed is None or (deployed.removed and wanted.nobody):
        return (*steps, *_begun_or_ended(deployed, wanted))
    mine = counted(pods)
    # What the ReplicaSet's controller knows of pods may be older than what we do. While it has as many as it should, by our own
    # view, it knows of every release: it would have made a spare for each that it knows of, and removed what is too many.
    balanced = len(mine) == deployed.pods
    starved = _starved(deployed, mine)
    steps += _of_kept(pods, wanted)
    if not deployed.guarded and deployed.rolled and balanced and not wanted.waiting:
        steps.append(Guard(deployed.template_version))
    if wanted.waiting and deployed.template_version != wanted.version:
        return (*steps, *_changed(deployed, pods, wanted, settled=balanced or starved))
    others = [pod for pod in mine if pod.name not in wanted.kept]
    staying = [pod for pod in others if pod.name not in wanted.going and pod.deletion_cost != VICTIM_COST]
    usable = [pod for pod in staying if pod.instance is None or wanted.adopting]
    spares = [pod for pod in usable if pod.version == wanted.version]
    all_stay = _with_which_all_stay(deployed, pods, wanted)
    if wanted.waiting and all_stay:
        # The ReplicaSet is about to remove some: a spare that was given out now might be among them.
        return (*steps, Scale(all_stay + max(0, len(wanted.waiting) - len(spares))))
    claims = _claims(spares, wanted.waiting)
    steps += claims
    claimed = {claim.pod.name for claim in claims}
    missing = len(wanted.waiting) - len(claims)
    surplus = [pod for pod in others if pod.name not in claimed and (pod.instance is None or pod not in usable)]
    let_go = _let_go(deployed, surplus, settled=balanced or starved)
    if missing > 0:
        # The number is only raised here: whom a lower one would cost is not known while anything is under way.
        raised = max(deployed.replicas, len(mine) + missing)
        steps += [Scale(raised)] if raised != deployed.replicas else []
        # Where no more can be made, who waits may wait for the place of one that is to go.
        return (*steps, *(let_go if starved else ()))
    steps += let_go
    # With a release under way it is not known whom a lower number would cost.
    if (balanced or starved) and not deployed.restarted and not any(isinstance(step, Release) for step in let_go):
        steps += _lowered(deployed, mine, frozenset(pod.name for pod in surplus if pod.instance is None))
    return tuple(steps)


def _with_which_all_stay(deployed: DeployedFunction, pods: Iterable[PodFacts], wanted: Wanted) -> int:
    """The number with which the ReplicaSet removes no pod, whatever it has not heard of; 0 where it removes none now."""
    possible = 0 if wanted.lowered is None else wanted.lowered.possible(pods)
    number = deployed.pods if wanted.lowered is None or not possible else min(deployed.pods, wanted.lowered.to)
    needed = max(len(counted(pods)), possible)
    return needed if number < needed else 0


def _changed(deployed: DeployedFunction, pods: Collection[PodFacts], wanted: Wanted, *, settled: bool) -> list[Step]:
    """What leads to the wanted template: what serves is released first, and nothing changes before that is known."""
    kept = [pod for pod in pods if pod.name in wanted.kept]
    if kept and not settled:
        return []
    releases: list[Step] = [Release(pod, deployed.uid) for pod in counted(kept)]
    return releases or [Deploy(len(wanted.waiting))]


def _let_go(deployed: DeployedFunction, surplus: Iterable[PodFacts], *, settled: bool) -> list[Step]:
    """What becomes of pods that nobody wants and some instance had: unready first, then out of the ReplicaSet's hands."""
    steps: list[Step] = []
    for pod in surplus:
        if pod.instance is None:
            continue
        if pod.serving or pod.deletion_cost != VICTIM_COST:
            steps.append(Retire(pod))
        elif settled:
            steps.append(Release(pod, deployed.uid))
    return steps


def _lowered(deployed: DeployedFunction, mine: Collection[PodFacts], spares: frozenset[str]) -> list[Step]:
    """The number without these spares, and without pods that cannot be made.

    Only a spare has its place in the order of removal from the beginning; it is certainly the first where all others are ready,
    and the Deployment says so.
    """
    if not all(pod.ready for pod in mine if pod.name not in spares) or deployed.available != len(mine) - len(spares):
        return []
    number = len(mine) - removable(mine, spares)
    if number >= deployed.replicas:
        return []
    return [Scale(number, Lowered(number, frozenset(pod.name for pod in mine), spares))]


def _starved(deployed: DeployedFunction, mine: Collection[PodFacts]) -> bool:
    """Whether the ReplicaSet cannot make the pods that it lacks, and knows of every release that costs somebody.

    Its status is of what it had before it tried. A pod that it has made since could stand for one of whose release it has not
    heard; but that one is ready as far as it knows, and the new one is not yet.
    """
    known = (len(mine), sum(pod.ready for pod in mine)) == (deployed.counted, deployed.available)
    return bool(deployed.failure) and known and len(mine) < deployed.pods


def _left(pod: PodFacts) -> bool:
    """Whether nobody but us removes a pod: no ReplicaSet counts it any more."""
    return pod.released or pod.phase in ENDED_PHASES


def _begun_or_ended(deployed: DeployedFunction | None, wanted: Wanted) -> tuple[Step, ...]:
    """What comes before everything else, and after it: the Deployment itself."""
    if deployed is not None:
        return (Withdraw(),)
    return (Deploy(len(wanted.waiting)),) if wanted.waiting else ()


def _of_kept(pods: Iterable[PodFacts], wanted: Wanted) -> list[Step]:
    """Pods that have an instance: their cores, and whether they serve."""
    steps: list[Step] = []
    for pod in pods:
        if pod.name not in wanted.kept or pod.ending:
            continue
        cores = wanted.kept[pod.name]
        if cores is not None and pod.phase == "Running" and pod.cores != cores:
            steps.append(Resize(pod, cores))
        elif pod.healthy and not pod.serving and not pod.released:
            steps.append(Serve(pod))
    return steps


def _claims(spares: list[PodFacts], waiting: Iterable[Waiting]) -> list[Claim]:
    """Who gets which spare: what it was given already, else one that runs where it is wanted, else one that is gated still."""
    waiting = tuple(waiting)
    left = sorted(spares, key=lambda pod: (pod.gated, not pod.healthy, pod.created_at, pod.name))
    free = {pod.name for pod in left} - {one.claimed for one in waiting}
    claims = []
    for one in waiting:
        able = [pod for pod in left if pod.gated or pod.node == one.node]
        given = next((pod for pod in able if pod.name == one.claimed), None)
        found = given or next((pod for pod in able if pod.name in free), None)
        if found is not None:
            left.remove(found)
            claims.append(Claim(found, one))
    return claims


class Unseen:
    """`claimed` is the pod, by name, that each instance was to be given; `lowered` how the number was lowered last."""

    def __init__(self) -> None:
        self.claimed: dict[str, str] = {}
        self.lowered: Lowered | None = None

    def sent(self, step: Step) -> None:
        """A step is about to be written. It may be carried out although nobody says so."""
        if isinstance(step, Claim):
            self.claimed[step.waiting.id] = step.pod.name
        elif isinstance(step, Scale) and step.lowered is not None:
            self.lowered = step.lowered

    def written(self, step: Step) -> None:
        """A step was carried out: a number that was raised costs nobody."""
        if isinstance(step, Scale):
            self.lowered = step.lowered

    def forget(self, instance_id: str) -> None:
        """An instance has ended."""
        self.claimed.pop(instance_id, None)
