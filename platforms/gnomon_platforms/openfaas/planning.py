"""What is to be written next for one function: a pure function of what is seen of it and what is wanted.

Every plan is made anew from everything, and says the same as long as it has not been seen to be carried out; so one that was
lost, sent twice or begun by a process that has died does no harm. A plan's numbers are absolute, never "one more".

    an instance waits, no spare pod ▶ raise the number ▶ a gated pod appears ▶ claim it: node, ungated ▶ healthy ▶ let it serve
    an instance is to go ▶ make its pod unready and cheap ▶ release it ▶ remove it by its uid; a spare comes for it
    nobody waits for a spare ▶ lower the number: a spare is gated, and so the first to go
    another version waits ▶ release what serves ▶ change the template ▶ each goes when its instance does
    the function was removed ▶ each goes when its instance does ▶ remove the Deployment, and with it all that is left
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.objects.pods import PodFacts
from gnomon_platforms.kubernetes.objects.removal import VICTIM_COST, counted, removable


@dataclass(frozen=True, slots=True)
class Waiting:
    """An instance that has no pod yet."""

    id: str
    node: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a function is to come to.

    `version` is the one that instances are wanted of, `waiting` those without a pod, in their order; `kept` are the pods of the
    others by name, with the cores that they are to have, None where the deployment says that. Every other pod is to go, but
    while `adopting` those that an earlier process claimed may be given to instances that are asked for again, unless they are
    `going`.
    """

    version: int
    waiting: tuple[Waiting, ...] = ()
    kept: Mapping[str, int | None] = field(default_factory=dict)
    going: frozenset[str] = frozenset()
    adopting: bool = False

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
    """Let the Deployment have so many pods."""

    replicas: int


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
    """Remove a pod that was released."""

    pod: PodFacts


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Remove the Deployment of a function that was removed, and with it everything that is the function's."""


Step: TypeAlias = Deploy | Scale | Claim | Resize | Serve | Retire | Release | Remove | Withdraw


def plan(deployed: DeployedFunction | None, pods: Iterable[PodFacts], wanted: Wanted) -> tuple[Step, ...]:
    """The steps that can be taken now. They do not depend on each other."""
    pods = tuple(pods)
    steps: list[Step] = [Remove(pod) for pod in pods if pod.released and not pod.ending and pod.name not in wanted.kept]
    if deployed is None or (deployed.removed and wanted.nobody):
        return (*steps, *_begun_or_ended(deployed, wanted))
    mine = counted(pods)
    # What the ReplicaSet's controller knows of pods may be older than what we do. While it has as many as it should, by our own
    # view, it knows of every release: it would have made a spare for each that it knows of, and removed what is too many.
    balanced = len(mine) == deployed.replicas
    steps += _of_kept(pods, wanted)
    if wanted.waiting and deployed.template_version != wanted.version:
        serving = [pod for pod in mine if pod.name in wanted.kept]
        change: list[Step] = [Release(pod, deployed.uid) for pod in serving]
        change = change or [Deploy(len(wanted.waiting))]
        return (*steps, *(change if balanced else ()))
    others = [pod for pod in mine if pod.name not in wanted.kept]
    staying = [pod for pod in others if pod.name not in wanted.going and pod.deletion_cost != VICTIM_COST]
    spares = [pod for pod in staying if pod.version == wanted.version]
    if wanted.waiting and deployed.replicas < len(mine):
        # The ReplicaSet is about to remove some: a spare that was given out now might be among them.
        return (*steps, Scale(len(mine) + max(0, len(wanted.waiting) - len(spares))))
    claims = _claims(spares, wanted.waiting)
    steps += claims
    claimed = {claim.pod.name for claim in claims}
    missing = len(wanted.waiting) - len(claims)
    if missing > 0:
        # The number is only raised here: whom a lower one would cost is not known while anything is under way.
        raised = max(deployed.replicas, len(mine) + missing)
        return (*steps, Scale(raised)) if raised != deployed.replicas else tuple(steps)
    left = [pod for pod in others if pod.name not in claimed]
    surplus = [pod for pod in left if pod.instance is None or not wanted.adopting or pod not in staying]
    for pod in surplus:
        if pod.instance is not None:
            retired = pod.deletion_cost == VICTIM_COST and not pod.serving
            if not retired:
                steps.append(Retire(pod))
            elif balanced:
                steps.append(Release(pod, deployed.uid))
    # Only a spare has its place in the order of removal from the beginning; it is certainly the first where all others are ready,
    # and the Deployment says so.
    spare = {pod.name for pod in surplus if pod.instance is None}
    number = removable(mine, spare)
    others_ready = all(pod.ready for pod in mine if pod.name not in spare) and deployed.available == len(mine) - len(spare)
    if number and balanced and others_ready and not any(isinstance(step, Release) for step in steps):
        steps.append(Scale(len(mine) - number))
    return tuple(steps)


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
    """Who gets which spare: one that runs already where it is wanted, else one that is gated still."""
    left = sorted(spares, key=lambda pod: (pod.gated, not pod.healthy, pod.created_at, pod.name))
    claims = []
    for one in waiting:
        found = next((pod for pod in left if pod.gated or pod.node == one.node), None)
        if found is not None:
            left.remove(found)
            claims.append(Claim(found, one))
    return claims
