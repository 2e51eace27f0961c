"""The next steps for one function: a pure function of its observed and desired state.

Every plan is computed from the whole state, and stays the same until its effect is observed; so a plan that was lost, sent twice
or left unfinished by a process that has died does no harm. A plan's numbers are absolute, never increments.

    an instance waits, no spare pod ▶ scale up ▶ a gated pod appears ▶ claim it: node, no gate ▶ healthy ▶ set its readiness gate
    an instance ends ▶ make its pod unready, with the lowest deletion cost ▶ release it ▶ delete it by uid; a spare replaces it
    no instance needs a spare ▶ scale down: a spare is gated, and so removed first
    another version waits ▶ release serving pods ▶ change the template ▶ each is deleted when its instance ends
    all have the template ▶ guard it: a change by others removes no serving pod, and is an update like any other
    pods cannot be created (a quota, a webhook) ▶ continue with the existing ones; none waits ▶ scale down to their number
    a pod has ended by itself ▶ delete it: no ReplicaSet counts it, and none deletes it
    the function was removed ▶ each pod is deleted when its instance ends ▶ delete the Deployment and its dependents

`Unseen` records writes that may not be observed yet: informers lag, and a write may have had no answer. Without it, a plan would
give an instance a second pod before its first claim is observed, or claim a spare that an earlier scale-down may remove.

`removable` computes how far the number of replicas may be lowered, by the order in which a ReplicaSet removes pods: those without
a node; pending before unknown before running ones; unready before ready ones; those with the lower deletion cost. Further
criteria break ties (pods on a node, time since ready, restarts, age), and are not relied on. So an unready victim with the lowest
cost still stays while another pod is pending: a scale-down would remove that one. The number is lowered only as far as the order
begins with victims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.objects.pods import ENDED_PHASES, PodFacts

VICTIM_COST = -1_000_000_000
CLAIMED_COST = 1_000
"""The deletion cost of claimed pods, so that a spare is removed before them while both wait for a node."""
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
    """The latest possible rank of a victim when the number is lowered: a pod without a gate may start meanwhile."""
    return (
        rank(victim)
        if victim.gated
        else Rank(assigned=True, phase=_PHASES["Running"], ready=victim.ready, cost=victim.deletion_cost)
    )


def earliest(pod: PodFacts) -> Rank:
    """The earliest possible rank of any other pod: a ready pod may become unready."""
    return replace(rank(pod), ready=False)


def removable(pods: Iterable[PodFacts], victims: Collection[str]) -> int:
    """By how many a ReplicaSet's number can be lowered so that it removes only victims, given by name.

    This holds whatever pods do meanwhile, as long as no victim is claimed and no gate is removed.
    """
    pods = counted(pods)
    first = min((earliest(pod) for pod in pods if pod.name not in victims), default=None)
    return sum(first is None or latest(pod) < first for pod in pods if pod.name in victims)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A scale-down to `to`: the names of the pods that the ReplicaSet counted, and of the spares that it should remove."""

    to: int
    counted: frozenset[str]
    spares: frozenset[str]

    def possible(self, pods: Iterable[PodFacts]) -> int:
        """How many pods the ReplicaSet may count until it has removed enough; 0 from then on.

        Its cache may lack the end of pods that have ended or were deleted by others since: it would remove one more for each.
        """
        pods = tuple(pods)
        gone = self.spares - {pod.name for pod in counted(pods)}
        if len(self.counted) - len(gone) <= self.to:
            return 0
        return len((self.counted - gone) | {pod.name for pod in pods if not pod.released})


@dataclass(frozen=True, slots=True)
class Waiting:
    """An instance without an observed pod; `claimed` is the name of the pod that an earlier plan gave it."""

    id: str
    node: str
    claimed: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The desired state of a function.

    `version` is that of new instances, `waiting` the instances without a pod, in their order; `kept` are the pods of the other
    instances by name, with their desired cores, None if the deployment sets them. All other pods are to be removed, but while
    `adopting`, pods that an earlier process claimed may be given to new instances, unless they are `going`. `lowered` is the last
    scale-down, if there was no scale-up since.
    """

    version: int
    waiting: tuple[Waiting, ...] = ()
    kept: Mapping[str, int | None] = field(default_factory=dict)
    going: frozenset[str] = frozenset()
    adopting: bool = False
    lowered: Lowered | None = None

    @property
    def nobody(self) -> bool:
        """Whether the function has no instance that runs, starts or ends."""
        return not (self.waiting or self.kept or self.going)


@dataclass(frozen=True, slots=True)
class Deploy:
    """Create the Deployment, or set the template of the desired version, with this number of replicas."""

    replicas: int


@dataclass(frozen=True, slots=True)
class Scale:
    """Set the Deployment's replicas; `lowered` is set for a scale-down."""

    replicas: int
    lowered: Lowered | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """Bind a pod to an instance: set its node affinity and remove its scheduling gate."""

    pod: PodFacts
    waiting: Waiting


@dataclass(frozen=True, slots=True)
class Resize:
    """Resize a pod in place."""

    pod: PodFacts
    cores: int


@dataclass(frozen=True, slots=True)
class Serve:
    """Set the readiness gate of a healthy pod."""

    pod: PodFacts


@dataclass(frozen=True, slots=True)
class Retire:
    """Make a pod unready, with the lowest deletion cost."""

    pod: PodFacts


@dataclass(frozen=True, slots=True)
class Release:
    """Release a pod from its ReplicaSet; the Deployment with this uid becomes its owner."""

    pod: PodFacts
    owner_uid: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a pod that was released, or has ended by itself."""

    pod: PodFacts


@dataclass(frozen=True, slots=True)
class Guard:
    """Set the guarded update strategy: others' changes of this version's template then remove no serving pod."""

    version: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Delete the Deployment of a removed function, and with it all its dependents."""


Step: TypeAlias = Deploy | Scale | Claim | Resize | Serve | Retire | Release | Remove | Guard | Withdraw


def plan(deployed: DeployedFunction | None, pods: Iterable[PodFacts], wanted: Wanted) -> tuple[Step, ...]:
    """The steps that can be taken now. They do not depend on each other."""
    pods = tuple(pods)
    steps: list[Step] = [Remove(pod) for pod in pods if _left(pod) and not pod.ending and pod.name not in wanted.kept]
    if deployed is None or (deployed.removed and wanted.nobody):
        return (*steps, *_begun_or_ended(deployed, wanted))
    mine = counted(pods)
    # The ReplicaSet controller's cache may be older than ours. If it has the right number of pods in our view, it has seen every
    # release: it would have created a spare for each release that it has seen, and removed surplus pods.
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
        # The ReplicaSet is about to remove pods: a spare that is claimed now might be among them.
        return (*steps, Scale(all_stay + max(0, len(wanted.waiting) - len(spares))))
    claims = _claims(spares, wanted.waiting)
    steps += claims
    claimed = {claim.pod.name for claim in claims}
    missing = len(wanted.waiting) - len(claims)
    surplus = [pod for pod in others if pod.name not in claimed and (pod.instance is None or pod not in usable)]
    let_go = _let_go(deployed, surplus, settled=balanced or starved)
    if missing > 0:
        # Only scale up here: while steps are in flight it is uncertain which pods a scale-down would remove.
        raised = max(deployed.replicas, len(mine) + missing)
        steps += [Scale(raised)] if raised != deployed.replicas else []
        # If no more pods can be created, a waiting instance may need the quota of a pod that is to be removed.
        return (*steps, *(let_go if starved else ()))
    steps += let_go
    # While a release is in flight it is uncertain which pods a scale-down would remove.
    if (balanced or starved) and not deployed.restarted and not any(isinstance(step, Release) for step in let_go):
        steps += _lowered(deployed, mine, frozenset(pod.name for pod in surplus if pod.instance is None))
    return tuple(steps)


def _with_which_all_stay(deployed: DeployedFunction, pods: Iterable[PodFacts], wanted: Wanted) -> int:
    """The number with which the ReplicaSet removes no pod, however stale its cache is; 0 if it removes none now."""
    possible = 0 if wanted.lowered is None else wanted.lowered.possible(pods)
    number = deployed.pods if wanted.lowered is None or not possible else min(deployed.pods, wanted.lowered.to)
    needed = max(len(counted(pods)), possible)
    return needed if number < needed else 0


def _changed(deployed: DeployedFunction, pods: Collection[PodFacts], wanted: Wanted, *, settled: bool) -> list[Step]:
    """The steps to the desired template: serving pods are released first, and the template changes after that is observed."""
    kept = [pod for pod in pods if pod.name in wanted.kept]
    if kept and not settled:
        return []
    releases: list[Step] = [Release(pod, deployed.uid) for pod in counted(kept)]
    return releases or [Deploy(len(wanted.waiting))]


def _let_go(deployed: DeployedFunction, surplus: Iterable[PodFacts], *, settled: bool) -> list[Step]:
    """The steps for pods of ended instances: make them unready first, then release them from the ReplicaSet."""
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
    """The scale-down by these spares, and by pods that cannot be created.

    Only a spare's rank is fixed from its creation. A spare is certainly removed first if all other pods are ready, and the
    Deployment's status agrees.
    """
    if not all(pod.ready for pod in mine if pod.name not in spares) or deployed.available != len(mine) - len(spares):
        return []
    number = len(mine) - removable(mine, spares)
    if number >= deployed.replicas:
        return []
    return [Scale(number, Lowered(number, frozenset(pod.name for pod in mine), spares))]


def _starved(deployed: DeployedFunction, mine: Collection[PodFacts]) -> bool:
    """Whether the ReplicaSet cannot create its missing pods, and has seen every release that matters.

    Its status counts pods before the failed attempt. A pod created since could hide a release that it has not seen; but then the
    number of ready pods differs: the released one counts as ready for it, and the new one is not ready yet.
    """
    known = (len(mine), sum(pod.ready for pod in mine)) == (deployed.counted, deployed.available)
    return bool(deployed.failure) and known and len(mine) < deployed.pods


def _left(pod: PodFacts) -> bool:
    """Whether only Gnomon deletes this pod: no ReplicaSet counts it any more."""
    return pod.released or pod.phase in ENDED_PHASES


def _begun_or_ended(deployed: DeployedFunction | None, wanted: Wanted) -> tuple[Step, ...]:
    """The first and the last step of a function: create its Deployment, or delete it."""
    if deployed is not None:
        return (Withdraw(),)
    return (Deploy(len(wanted.waiting)),) if wanted.waiting else ()


def _of_kept(pods: Iterable[PodFacts], wanted: Wanted) -> list[Step]:
    """The steps for pods that have an instance: resize them, and set their readiness gates."""
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
    """Match spares to instances: the pod already claimed, else one that runs on the desired node, else a gated one."""
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
    """Writes that may not be observed yet: `claimed` has each instance's pod by name, `lowered` is the last scale-down."""

    def __init__(self) -> None:
        self.claimed: dict[str, str] = {}
        self.lowered: Lowered | None = None

    def sent(self, step: Step) -> None:
        """Record a step before it is written: it may be executed even if there is no answer."""
        if isinstance(step, Claim):
            self.claimed[step.waiting.id] = step.pod.name
        elif isinstance(step, Scale) and step.lowered is not None:
            self.lowered = step.lowered

    def written(self, step: Step) -> None:
        """Record an executed step: a scale-up ends the effect of an earlier scale-down."""
        if isinstance(step, Scale):
            self.lowered = step.lowered

    def forget(self, instance_id: str) -> None:
        """Forget an instance that has ended."""
        self.claimed.pop(instance_id, None)
