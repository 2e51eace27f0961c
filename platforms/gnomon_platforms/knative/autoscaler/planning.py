"""The next writes for one Revision: a pure function of its observed state and of its policy's desired number of pods.

    create     ServerlessService (activators in the way) ▶ first pods ready ▶ Active
    to zero    nothing came for the window ▶ inactive, and activators into the way ▶ asked at the public Service, an activator
               answers ▶ the grace is over ▶ 0 pods
    from zero  a request waits at an activator ▶ the policy wants 1 ▶ 1 pod ▶ Active; activators leave the way when there is room

A Revision goes to zero only by a status that was written and then observed, so a new leader continues from there. A plan stays
the same until its effect is observed.

The status: `Ready` is `Active`, `ScaleTargetInitialized` and `SKSReady` together, as Knative's own reconcilers compute it,
because the Revision's reconciler relies on that. Two conditions only inform. `ScalingPolicy` has the policy that wants so many
pods, and its reason. `Shadows`, for policies that make Shadows, says whether Bodies may have some; if not, it names what is
missing in the order in which an operator would install it: Knative's feature, the volume in the template, the token, a node's
pool. Beside the conditions gateways find the plan of the buffer (`buffer_status`).

    wanted   ready pods     Active
    0        any            False, NoTraffic; TimedOut where it was still activating
    > 0      too few        Unknown, Queued
    > 0      enough         True
    unknown  too few        as it was, but True becomes Unknown
    unknown  enough         True, unless it is False

Enough is the initial scale until that was reached once, then the minimum, at least 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnomon_core.clock import rfc3339
from gnomon_platforms.knative.autoscaler.objects import NOT_OWNED, Condition, PaFacts, ScaleTarget, SksFacts, conditions
from gnomon_platforms.knative.autoscaler.rules import CSI_FEATURE, Rules
from gnomon_platforms.knative.buffer_status import BufferStatus, buffer_of, with_buffer_plan
from gnomon_platforms.knative.resources import METRIC_ANNOTATION
from gnomon_platforms.kubernetes.conflicting_autoscalers import REASON
from gnomon_platforms.kubernetes.objects.pod_template import CSI_DRIVER

SERVE, PROXY = "Serve", "Proxy"
LEAST_ACTIVATORS = 2
"""The least activators in a Revision's path: one of two may be restarted."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The decision of a Revision's policy: `desired_scale` pods, with its reason.

    `holds` is whether a request waits or executes now, `busy` whether one came within the stable window, `panic_load` the load of
    the panic window in the unit of `Rules.total`. `shadows` is whether Bodies may have Shadows, None where the policy makes none.
    `buffer` is the plan of the buffer, None where it plans none.
    """

    desired_scale: int
    holds: bool = False
    busy: bool = False
    panic_load: float = 0.0
    policy: str = ""
    reason: str = ""
    shadows: Condition | None = None
    buffer: BufferStatus | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """The observed state from which a plan is made.

    `proxied` is whether an activator answered at the public Service since it is to be in the way; None while it was not asked.
    `wakeable` is whether requests that wait at activators can be seen: without that nothing may go to zero.
    `conflict` is the message if another autoscaler sets the number of pods, which is then left alone; "" otherwise.
    """

    pa: PaFacts
    sks: SksFacts | None
    target: ScaleTarget | None
    ready: int
    rules: Rules
    demand: Demand
    proxied: bool | None
    wakeable: bool
    now_s: float
    conflict: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """The desired ServerlessService: its mode (activators in the path or not), and the number of activators."""

    mode: str
    activators: int


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The writes that are due, None where nothing is, and when to plan again.

    `probe` requests a check whether an activator answers at the public Service.
    """

    desired_scale: int
    status: Mapping[str, Any]
    route: Route | None = None
    replicas: int | None = None
    probe: bool = False
    again_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Count:
    """The number of pods wanted; `applied` says whether to write the number to the Deployment."""

    desired_scale: int
    applied: bool = True
    probe: bool = False
    again_s: float | None = None
    why: str = ""


def plan(observed: Observed) -> DesiredState:
    """Plan the next writes, which do not depend on each other."""
    pa, sks = observed.pa, observed.sks
    if sks is not None and sks.owner_uid != pa.uid:
        return DesiredState(KEEP, not_owned(pa, observed.now_s))
    if sks is None or not sks.private_service:
        route = Route(PROXY, LEAST_ACTIVATORS)
        outcome = _outcome(observed, _Count(KEEP, applied=False))
        return DesiredState(KEEP, status(pa, sks, outcome, observed.now_s), route if _is_outdated(sks, pa, route) else None)
    count = _count(observed)
    route = _route(observed, count.desired_scale)
    target = observed.target
    scaled = count.applied and target is not None and target.replicas != count.desired_scale
    return DesiredState(
        count.desired_scale,
        status(pa, sks, _outcome(observed, count), observed.now_s),
        route if _is_outdated(sks, pa, route) else None,
        count.desired_scale if scaled else None,
        count.probe,
        count.again_s,
    )


def service_annotations(pa: PaFacts) -> dict[str, str]:
    """The ServerlessService's annotations: the PodAutoscaler's without the metric."""
    return {key: text for key, text in pa.annotations.items() if key != METRIC_ANNOTATION}


def first_scale(pa: PaFacts, rules: Rules) -> int:
    """The number of ready pods that suffice for now."""
    return max(rules.min_scale, 1 if pa.initialized else rules.initial_scale)


def _outcome(observed: Observed, count: _Count) -> Outcome:
    if observed.conflict:
        return Outcome(count.desired_scale, observed.ready, 1, REASON, observed.conflict, buffer=observed.demand.buffer)
    reasons = [observed.rules.trouble, count.why, observed.demand.reason]
    return Outcome(
        count.desired_scale,
        observed.ready,
        first_scale(observed.pa, observed.rules),
        observed.demand.policy or observed.rules.settings.autoscaler,
        " ".join(part for part in reasons if part),
        observed.demand.shadows,
        observed.demand.buffer,
    )


def _count(observed: Observed) -> _Count:
    """The policy's number of pods within Knative's bounds; 0 only if that can lose no request."""
    pa, rules, demand = observed.pa, observed.rules, observed.demand
    if observed.conflict:
        # KEEP before the first pods were ready: Knative marks a Revision that is inactive then as failed for good.
        replicas = observed.target.replicas if observed.target is not None else 0
        return _Count(replicas if replicas or pa.initialized else KEEP, applied=False)
    pods = demand.desired_scale
    if pods > 0 and demand.busy:
        pods = max(pods, rules.activation_scale)
    least = rules.min_scale
    if not pa.initialized and pa.reachable and rules.initial_scale > 1:
        least = max(least, rules.initial_scale)
    if pods < least:
        pods = least
    elif rules.max_scale:
        pods = min(pods, rules.max_scale)
    return _Count(pods) if pods else _to_zero(observed)


def _to_zero(observed: Observed) -> _Count:
    """The next step of scaling to zero, by the status that was written and observed: a new leader continues from there."""
    pa, rules, now_s = observed.pa, observed.rules, observed.now_s
    if not rules.to_zero:
        return _Count(1, why="Scaling to zero is switched off.")
    active = pa.active
    if active.status == "Unknown":
        left_s = active.since_s + rules.activation_limit_s - now_s
        if active.since_s and left_s < 0.0:
            return _Count(0, why="It could not be activated in time.")
        return _Count(KEEP, applied=False, again_s=left_s if active.since_s else None)
    if active.status == "True":
        return _from_active(observed, now_s - active.since_s)
    return _remove_last_pods(observed, now_s - active.since_s)


def _from_active(observed: Observed, active_s: float) -> _Count:
    """Make the Revision inactive once it was active for the stable window; its pods stay until that status is observed."""
    if not observed.wakeable:
        return _Count(1, why="Activators do not tell whether requests wait, so it stays at 1.", again_s=1.0)
    left_s = observed.rules.window_s - active_s
    return _Count(1, again_s=left_s) if left_s > 0.0 else _Count(0, applied=False)


def _remove_last_pods(observed: Observed, inactive_s: float) -> _Count:  # noqa: PLR0911 - one for each thing that may keep them
    """Decide whether the last pods of an inactive Revision may be removed."""
    rules, sks = observed.rules, observed.sks
    assert sks is not None
    if observed.target is not None and observed.target.replicas == 0:
        return _Count(0)
    if not observed.wakeable:
        return _Count(0, applied=False, why="Activators do not tell whether requests wait, so pods stay.", again_s=1.0)
    always = rules.burst_capacity == -1.0
    if not always and not (observed.proxied and sks.mode == PROXY):
        return _Count(0, applied=False, probe=sks.mode == PROXY)
    if observed.demand.holds:
        # The policy decides again within a second and asks for pods: removing them first would lose the waiting request.
        return _Count(0, applied=False, again_s=1.0)
    if inactive_s >= max(rules.grace_s, rules.retention_s):
        return _Count(0)
    if inactive_s < rules.retention_s:
        return _Count(0, applied=False, again_s=rules.retention_s - inactive_s)
    # Activators may have been in the path for the whole grace period already: then there is nothing left to wait for.
    proxied_s = observed.now_s - sks.proxied_since_s if sks.proxied_since_s is not None else 0.0
    left_s = rules.grace_s - max(proxied_s, inactive_s)
    return _Count(0) if left_s <= 0.0 else _Count(0, applied=False, again_s=left_s)


def _route(observed: Observed, desired_scale: int) -> Route:
    """Route through activators unless pods are wanted and have spare capacity for a burst."""
    rules = observed.rules
    burst, capacity = rules.burst_capacity, observed.ready * rules.total
    if burst == 0.0:
        spare, activators = 0.0, LEAST_ACTIVATORS
    else:
        spare = math.floor(capacity - burst - observed.demand.panic_load) if burst > 0.0 else -1.0
        activators = max(LEAST_ACTIVATORS, math.ceil((capacity + max(burst, 0.0)) / rules.activator_capacity))
    return Route(SERVE if desired_scale > 0 and spare >= 0.0 else PROXY, activators)


def _is_outdated(sks: SksFacts | None, pa: PaFacts, route: Route) -> bool:
    """True if the ServerlessService differs from the desired one."""
    return sks is None or (sks.mode, sks.activators, sks.protocol, sks.target, sks.labels, sks.annotations) != (
        route.mode,
        route.activators,
        pa.protocol,
        pa.target,
        pa.labels,
        service_annotations(pa),
    )


KEEP = -1
"""Keep the present number of pods: the desired number is unknown."""
INFORMATIONAL = frozenset({"ScalingPolicy", "Shadows"})
READY_CONDITIONS = ("Active", "ScaleTargetInitialized", "SKSReady")
MAX_MESSAGE = 1000

NO_TRAFFIC = Condition("False", "NoTraffic", "The target is not receiving traffic.")
TIMED_OUT = Condition("False", "TimedOut", "The target could not be activated.")
QUEUED = Condition("Unknown", "Queued", "Requests to the target are being buffered as resources are provisioned.")
TRUE = Condition("True")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The content of a status. `desired_scale` is the number of pods or KEEP, `threshold` how many ready ones are enough.

    `shadows` is whether Bodies may have Shadows, None where the policy makes none; `buffer` the plan of the buffer, likewise.
    """

    desired_scale: int
    ready: int
    threshold: int
    policy: str
    reason: str
    shadows: Condition | None = None
    buffer: BufferStatus | None = None


def status(pa: PaFacts, sks: SksFacts | None, outcome: Outcome, now_s: float) -> dict[str, Any]:
    """The whole status. Unchanged conditions keep their transition time, so an unchanged status equals the old one."""
    service = sks.service if sks is not None else ""
    parts = {
        "Active": _active(pa, outcome, service),
        "ScaleTargetInitialized": _initialized(pa, outcome, service),
        "SKSReady": _sks_ready(sks),
        "ScalingPolicy": _policy(pa, outcome),
    }
    if outcome.shadows is not None:
        parts["Shadows"] = outcome.shadows
    parts["Ready"] = _ready(parts)
    found: dict[str, Any] = {
        **pa.status,
        "conditions": [_condition_document(kind, condition, pa, now_s) for kind, condition in sorted(parts.items())],
        "observedGeneration": pa.generation,
        "serviceName": service,
        "metricsServiceName": sks.private_service if sks is not None else "",
        "actualScale": outcome.ready,
    }
    if outcome.desired_scale != KEEP:
        found["desiredScale"] = outcome.desired_scale
    return with_buffer_plan(found, outcome.buffer)


def not_owned(pa: PaFacts, now_s: float) -> dict[str, Any]:
    """The status if the ServerlessService of that name has another owner."""
    message = f'There is an existing ServerlessService "{pa.key.name}" that we do not own.'
    parts = {
        "Active": Condition("False", NOT_OWNED, message),
        "ScaleTargetInitialized": pa.condition("ScaleTargetInitialized"),
        "SKSReady": Condition("Unknown", "NotReady", message),
    }
    parts["Ready"] = _ready(parts)
    listed = [_condition_document(kind, condition, pa, now_s) for kind, condition in sorted(parts.items())]
    names = {name: pa.status.get(name) or "" for name in ("serviceName", "metricsServiceName")}
    return {**pa.status, **names, "conditions": listed, "observedGeneration": pa.generation}


def _active(pa: PaFacts, outcome: Outcome, service: str) -> Condition:
    before = pa.active.status
    if outcome.desired_scale == 0 or (outcome.threshold == 0 and service):
        return TIMED_OUT if before == "Unknown" and outcome.threshold > 0 else NO_TRAFFIC
    going = outcome.desired_scale > 0 or before != "False"
    if not going:
        kept = pa.condition("Active")
        return Condition(kept.status, kept.reason, kept.message)
    return TRUE if outcome.threshold and outcome.ready >= outcome.threshold else QUEUED


def _initialized(pa: PaFacts, outcome: Outcome, service: str) -> Condition:
    """ScaleTargetInitialized stays True once it was: a Revision that was ready once has not failed."""
    if pa.initialized or (outcome.ready >= outcome.threshold and service):
        return TRUE
    return Condition("Unknown")


def _sks_ready(sks: SksFacts | None) -> Condition:
    if sks is not None and sks.ready and sks.private_service:
        return TRUE
    message = "No Private Service Name" if sks is None or not sks.private_service else sks.message
    return Condition("Unknown", "NotReady", message)


def _policy(pa: PaFacts, outcome: Outcome) -> Condition:
    """Change the reason only with the number or the plan that it explains: the figures in it change every second."""
    before = pa.condition("ScalingPolicy")
    same = outcome.desired_scale in (KEEP, pa.status.get("desiredScale")) and outcome.buffer == buffer_of(pa.status)
    if before.message and same and before.reason == outcome.policy:
        return Condition(before.status, before.reason, before.message)
    return Condition("True", outcome.policy, outcome.reason[:MAX_MESSAGE])


def _ready(parts: Mapping[str, Condition]) -> Condition:
    """The condition Ready: the first condition that is False, else the first that is not True."""
    for status_ in ("False", "Unknown"):
        for kind in READY_CONDITIONS:
            condition = parts[kind]
            if condition.status == status_:
                return Condition(status_, condition.reason, condition.message)
    return TRUE


def _condition_document(kind: str, condition: Condition, pa: PaFacts, now_s: float) -> dict[str, Any]:
    before = conditions(pa.status).get(kind)
    same = before is not None and (before.status, before.reason, before.message) == (
        condition.status,
        condition.reason,
        condition.message,
    )
    since_s = before.since_s if same and before is not None else now_s
    document: dict[str, Any] = {"type": kind, "status": condition.status, "lastTransitionTime": rfc3339(since_s, "seconds")}
    document |= {name: text for name, text in (("reason", condition.reason), ("message", condition.message)) if text}
    if kind in INFORMATIONAL:
        document["severity"] = "Info"
    return document


VOLUMES_DISABLED, NO_VOLUME, NOT_CONFIGURED, NO_POOL = "VolumesDisabled", "NoVolume", "NotConfigured", "NoPool"
"""Reasons for which Shadows cannot be created."""


@dataclass(frozen=True, slots=True)
class ShadowPrerequisites:
    """The prerequisites of Shadows: the CSI volume is allowed and mounted, coordinators have a token, a pool is ready."""

    allowed: bool
    mounted: bool
    coordinators: bool
    pooled: bool


def shadows(prerequisites: ShadowPrerequisites) -> Condition:
    """Condition: may Bodies have Shadows, and if not, the reason."""
    if not prerequisites.mounted and not prerequisites.allowed:
        why = f"{CSI_FEATURE} is not enabled in config-features: pods cannot have the volume of their node's coordinator."
        return _no_shadows(VOLUMES_DISABLED, why)
    if not prerequisites.mounted:
        return _no_shadows(NO_VOLUME, f"The template has no volume of driver {CSI_DRIVER}.")
    if not prerequisites.coordinators:
        return _no_shadows(NOT_CONFIGURED, "The autoscaler was given no --coordinator-token.")
    if not prerequisites.pooled:
        return _no_shadows(NO_POOL, "No node's coordinator can make Shadows now.")
    return Condition("True", "Possible")


def _no_shadows(reason: str, why: str) -> Condition:
    return Condition("False", reason, f"{why} Bodies work alone.")
