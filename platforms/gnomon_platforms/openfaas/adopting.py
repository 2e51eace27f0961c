"""Instances that another process has begun: which pods go on as instances here, and as what."""

from __future__ import annotations

from dataclasses import replace

from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionSpec
from gnomon_core.seam_values import InstanceRequest
from gnomon_platforms.beginning import starting
from gnomon_platforms.kubernetes.nodes import Given, given_to
from gnomon_platforms.kubernetes.objects.pods import ENDED_PHASES, PodFacts
from gnomon_platforms.kubernetes.objects.removal import VICTIM_COST


def may_be_found(pod: PodFacts, version: int, *, placed: bool) -> bool:
    """Whether a pod can go on as the instance that it was given to, up to this version; `placed` asks for its node as well."""
    return adoptable(pod, version) and not (placed and pod.node is None)


def adoptable(pod: PodFacts, version: int) -> bool:
    """Whether a pod that was given to an instance can go on as that: it was not on its way out, and is not of a later version."""
    ended = pod.ending or pod.phase in ENDED_PHASES or pod.deletion_cost == VICTIM_COST
    return not ended and pod.version <= version


def cores_of_instance(pod: PodFacts) -> int:
    """How many cores the instance of a pod has."""
    return max(1, round(pod.cores))


def cores_in_use(pod: PodFacts) -> int:
    """How many of them its instance uses by now: a pod that serves does so with what it had, until its node has come to it."""
    return max(1, round(pod.effective_cores or pod.cores)) if pod.serving else cores_of_instance(pod)


def instance_of(pod: PodFacts, spec: FunctionSpec, now_s: float) -> tuple[Instance, InstanceRequest, Given]:
    """The instance of a pod that was given to one, as if it had been asked for now, and the room that it has."""
    assert pod.instance is not None
    cores = cores_of_instance(pod)
    request = InstanceRequest(spec, pod.version, cores, pod.node, {})
    began = starting(pod.instance, request, pod.node or "", pod.memory_bytes, now_s)
    instance = replace(began, cores=cores_in_use(pod))
    return instance, request, given_to(spec, cores, pod.node or "")
