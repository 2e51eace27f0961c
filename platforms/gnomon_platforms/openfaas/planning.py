"""The next steps for one function: a pure function of its observed and desired state.

Gnomon decides how many pods a function has, and Kubernetes does the rest: the Deployment's ReplicaSet creates them, the scheduler
places them, and a pod without room stays Pending, which is what cluster autoscalers act on. An instance is bound to a pod by an
annotation. Until it is ready its pod may be exchanged for any other pod of the same version.

    an instance waits ▶ scale up ▶ a pod appears ▶ bind it ▶ scheduled, running ▶ resize it in place
    an instance ends, one pod fewer is needed ▶ give its pod the lowest deletion cost ▶ scale down: the ReplicaSet removes it
    an instance ends, as many pods are needed ▶ delete its pod by uid: the ReplicaSet creates another
    another version waits ▶ change the template: a rolling update removes an old pod for each new one that is ready
    the new version has no room ▶ let the rolling update remove one old pod first
    a pod has ended by itself ▶ delete it: no ReplicaSet counts it, and none deletes it
    the function was removed ▶ delete the Deployment and its dependents when no instance is left

Plans are computed from the whole state, and their numbers are absolute; so a plan that was lost, sent twice or left unfinished by
a process that has died does no harm.

A ReplicaSet removes pods in this order: those without a node; pending before running ones; unready before ready ones; those with
the lower deletion cost. So with every serving pod ready, a marked pod is removed before any of them. It may remove a pod that
still starts instead of the marked one: the marked one is then deleted by uid, and the instance of the other takes its successor.
A ReplicaSet that has not observed the mark may remove a serving pod: that one answers what it has, and its instance is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.objects.pods import PodFacts

VICTIM_COST = -1_000_000_000
BOUND_COST = 1_000
"""The deletion cost of bound pods: of two that are equal otherwise, the ReplicaSet removes the one without an instance."""


def counted(pods: Iterable[PodFacts]) -> list[PodFacts]:
    """The pods that a ReplicaSet counts: those that have neither ended nor are terminating."""
    return [pod for pod in pods if not (pod.ending or pod.ended)]


@dataclass(frozen=True, slots=True)
class Waiting:
    """An instance without an observed pod; `bound` is the name of the pod that an earlier plan gave it, if any."""

    id: str
    bound: str | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A pod of an instance: the desired cores, None if the deployment sets them, and whether the instance is ready."""

    cores: int | None = None
    serving: bool = False


@dataclass(frozen=True, slots=True)
class Desired:
    """The desired state of a function.

    `version` is that of new instances, `waiting` the instances without a pod, in their order, `kept` the pods of the others by
    name, `released` the pods of instances that have ended: no other instance takes them, because they may be broken. `vacancies`
    is how many instances have just ended by themselves: the successors of their pods are kept for the instances that will replace
    them. `furnished` is whether the Deployment's dependents exist. While `adopting`, pods of an earlier process are kept for
    instances that are still to be adopted. `blocked` is whether pods of the present template have been without room for long.
    """

    version: int
    waiting: tuple[Waiting, ...] = ()
    kept: Mapping[str, Kept] = field(default_factory=dict)
    released: frozenset[str] = frozenset()
    vacancies: int = 0
    furnished: bool = True
    adopting: bool = False
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class Deploy:
    """Create the Deployment, or set the template of the desired version, with this number of replicas."""

    replicas: int


@dataclass(frozen=True, slots=True)
class Furnish:
    """Create the missing dependents of the Deployment."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Set the Deployment's replicas."""

    replicas: int


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind a pod to an instance."""

    pod: PodFacts
    instance: str


@dataclass(frozen=True, slots=True)
class Resize:
    """Resize a pod in place."""

    pod: PodFacts
    cores: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Give a pod the lowest deletion cost."""

    pod: PodFacts


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a pod by its uid."""

    pod: PodFacts


@dataclass(frozen=True, slots=True)
class SetUnavailable:
    """Set how many pods a rolling update may remove before their successors are ready."""

    pods: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Delete the Deployment of a removed function, and with it all its dependents."""


Step: TypeAlias = Deploy | Furnish | Scale | Bind | Resize | Mark | Remove | SetUnavailable | Withdraw


def plan(deployed: DeployedFunction | None, pods: Iterable[PodFacts], desired: Desired) -> tuple[Step, ...]:
    """The steps that can be taken now. They do not depend on each other."""
    pods = tuple(pods)
    steps: list[Step] = [Remove(pod) for pod in pods if pod.ended and not pod.ending and pod.name not in desired.kept]
    if deployed is None:
        return (*steps, Deploy(len(desired.waiting))) if desired.waiting else tuple(steps)
    if deployed.removed and not (desired.waiting or desired.kept):
        return (*steps, Withdraw())
    present = counted(pods)
    steps += _resizes(present, desired)
    if desired.waiting and deployed.template_version != desired.version:
        return (*steps, Deploy(_replicas(desired.version, present, desired)))
    template_pods = [pod for pod in present if pod.version == deployed.template_version]
    replicas = _replicas(deployed.template_version, present, desired)
    binds = _binds(deployed, template_pods, desired)
    used_names = {*desired.kept, *(bind.pod.name for bind in binds)}
    if binds and not desired.furnished:
        # Checked as late as this: a new leader of a thousand functions would send some thousand requests before its first write.
        steps.append(Furnish())
        binds = []
    surplus = [pod for pod in present if pod.name not in used_names]
    if len(template_pods) <= replicas:
        # No scale-down will remove these, because as many pods are needed as there are.
        removed = [Remove(pod) for pod in template_pods if pod.name in desired.released]
        surplus = [pod for pod in surplus if Remove(pod) not in removed]
    else:
        removed = []
    # An unbound pod needs no mark: its cost is lower than that of bound ones.
    unwanted = [pod for pod in surplus if pod.instance and (pod.name in desired.released or not desired.adopting)]
    marks = [Mark(pod) for pod in unwanted if pod.deletion_cost != VICTIM_COST]
    steps += [*binds, *removed, *marks]
    if replicas > deployed.replicas or (replicas < deployed.replicas and not marks and _all_ready(present, desired)):
        steps.append(Scale(replicas))
    unavailable = int(_makes_room(deployed, present, desired))
    if unavailable != deployed.max_unavailable:
        steps.append(SetUnavailable(unavailable))
    return tuple(steps)


def _replicas(version: int, present: Iterable[PodFacts], desired: Desired) -> int:
    """The number of replicas for the instances of this version; no fewer than serve in another version.

    During a rolling update the ReplicaSets have this number of ready pods together. With fewer than serve now, old pods would go
    before new ones are ready.
    """
    new = sum(pod.version == version for pod in present if pod.name in desired.kept)
    old = sum(pod.version != version for pod in present if pod.name in desired.kept)
    needed = len(desired.waiting) + desired.vacancies
    if desired.adopting:
        # Pods of an earlier process, for instances that this one may still adopt or ask for. A pod without an instance is not
        # among them: it was created by `kubectl scale`, or for an instance that was not requested again.
        others = desired.kept.keys() | desired.released
        needed = max(needed, sum(pod.version == version for pod in present if pod.instance and pod.name not in others))
    return max(new + needed, old)


def _resizes(present: Iterable[PodFacts], desired: Desired) -> list[Step]:
    """The steps that give kept pods their cores: once they run, because the template sets those that they start with."""
    steps: list[Step] = []
    for pod in present:
        kept = desired.kept.get(pod.name)
        if kept is not None and kept.cores is not None and pod.phase == "Running" and pod.cores != kept.cores:
            steps.append(Resize(pod, kept.cores))
    return steps


def _binds(deployed: DeployedFunction, template_pods: list[PodFacts], desired: Desired) -> list[Bind]:
    """Match waiting instances to free pods: the pod already given, else one that is ready, has a node, or is oldest."""
    if len(template_pods) > deployed.replicas:
        # With more pods than replicas the ReplicaSet is about to remove some: one that is bound now might be among them.
        return []
    free = [pod for pod in template_pods if pod.name not in desired.kept and pod.name not in desired.released]
    free.sort(key=lambda pod: (not pod.ready, pod.node is None, pod.created_at, pod.name))
    bound_names = {instance.bound for instance in desired.waiting}
    binds = []
    for instance in desired.waiting:
        chosen = next((pod for pod in free if pod.name == instance.bound), None)
        chosen = chosen or next((pod for pod in free if pod.name not in bound_names), None)
        if chosen is not None:
            free.remove(chosen)
            binds.append(Bind(chosen, instance.id))
    return binds


def _all_ready(present: Iterable[PodFacts], desired: Desired) -> bool:
    """True if each serving pod is ready: a ReplicaSet would remove an unready one before a marked pod that is ready."""
    serving = {name for name, kept in desired.kept.items() if kept.serving}
    return all(pod.ready for pod in present if pod.name in serving)


def _makes_room(deployed: DeployedFunction, present: Iterable[PodFacts], desired: Desired) -> bool:
    """True if the rolling update may remove an old pod before its successor is ready, until all pods have the template."""
    old = any(pod.version != deployed.template_version and pod.name in desired.kept for pod in present)
    return old and (desired.blocked or deployed.max_unavailable > 0)
