"""The next writes for one Revision: a pure function of its observed state and of its policy's desired number of pods.

    create     ServerlessService (activators in the way) ▶ first pods ready ▶ Active
    to zero    nothing came for the window ▶ inactive, and activators into the way ▶ asked at the public Service, an activator
               answers ▶ the grace is over ▶ 0 pods
    from zero  a request waits at an activator ▶ the policy wants 1 ▶ 1 pod ▶ Active; activators leave the way when there is room

A Revision goes to zero only by a status that was written and then observed, so a new leader continues from there. A plan stays
the same until its effect is observed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnomon_platforms.knative.autoscaler.objects import Condition, PaFacts, ScaleTarget, SksFacts
from gnomon_platforms.knative.autoscaler.rules import Rules
from gnomon_platforms.knative.autoscaler.status import KEEP, Outcome, not_owned, status
from gnomon_platforms.knative.buffer_status import BufferStatus
from gnomon_platforms.knative.resources import METRIC_ANNOTATION
from gnomon_platforms.kubernetes.conflicting_autoscalers import REASON

SERVE, PROXY = "Serve", "Proxy"
LEAST_ACTIVATORS = 2
"""One of two may be restarted."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The decision of a Revision's policy, with its reason.

    `holds` is whether a request waits or executes now, `busy` whether one came within the stable window, `panic_load` the load of
    the panic window in the unit of `Rules.total`. `shadows` is whether Bodies may have Shadows, None where the policy makes none.
    `buffer` is the plan of the buffer, None where it plans none.
    """

    wanted: int
    holds: bool = False
    busy: bool = False
    panic_load: float = 0.0
    policy: str = ""
    reason: str = ""
    shadows: Condition | None = None
    buffer: BufferStatus | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """The observed state from which a plan is made.

    `proxied` is whether an activator answered at the public Service since it is to be in the way; None while it was not asked.
    `wakeable` is whether requests that wait at activators can be seen: without that nothing may go to zero.
    `rival` is what is said where somebody else counts the pods, which are then left alone.
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
    rival: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """The desired ServerlessService: its mode (activators in the path or not), and the number of activators."""

    mode: str
    activators: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes, and when to plan again. `probe` requests a check whether an activator answers at the public Service."""

    want: int
    status: Mapping[str, Any]
    route: Route | None = None
    replicas: int | None = None
    probe: bool = False
    again_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Count:
    """So many pods are wanted; `applied` is whether that is to be written to the Deployment."""

    want: int
    applied: bool = True
    probe: bool = False
    again_s: float | None = None
    why: str = ""


def plan(seen: Seen) -> Plan:
    """The next writes. They do not depend on each other."""
    pa, sks = seen.pa, seen.sks
    if sks is not None and sks.owner_uid != pa.uid:
        return Plan(KEEP, not_owned(pa, seen.now_s))
    if sks is None or not sks.private_service:
        route = Route(PROXY, LEAST_ACTIVATORS)
        outcome = _outcome(seen, _Count(KEEP, applied=False))
        return Plan(KEEP, status(pa, sks, outcome, seen.now_s), route if _differs(sks, pa, route) else None)
    count = _count(seen)
    route = _route(seen, count.want)
    target = seen.target
    scaled = count.applied and target is not None and target.replicas != count.want
    return Plan(
        count.want,
        status(pa, sks, _outcome(seen, count), seen.now_s),
        route if _differs(sks, pa, route) else None,
        count.want if scaled else None,
        count.probe,
        count.again_s,
    )


def kept_annotations(pa: PaFacts) -> dict[str, str]:
    """The ServerlessService's annotations: the PodAutoscaler's without the metric."""
    return {key: text for key, text in pa.annotations.items() if key != METRIC_ANNOTATION}


def first_scale(pa: PaFacts, rules: Rules) -> int:
    """How many ready pods are enough for now."""
    return max(rules.min_scale, 1 if pa.initialized else rules.initial_scale)


def _outcome(seen: Seen, count: _Count) -> Outcome:
    if seen.rival:
        return Outcome(count.want, seen.ready, 1, REASON, seen.rival, buffer=seen.demand.buffer)
    said = [seen.rules.trouble, count.why, seen.demand.reason]
    return Outcome(
        count.want,
        seen.ready,
        first_scale(seen.pa, seen.rules),
        seen.demand.policy or seen.rules.settings.autoscaler,
        " ".join(part for part in said if part),
        seen.demand.shadows,
        seen.demand.buffer,
    )


def _count(seen: Seen) -> _Count:
    """How many pods: the policy's number within Knative's bounds, and never 0 before nothing can be lost by it."""
    pa, rules, demand = seen.pa, seen.rules, seen.demand
    if seen.rival:
        # None before the first were ready: a Revision that is inactive then has failed for ever.
        there = seen.target.replicas if seen.target is not None else 0
        return _Count(there if there or pa.initialized else KEEP, applied=False)
    wanted = demand.wanted
    if wanted > 0 and demand.busy:
        wanted = max(wanted, rules.activation_scale)
    least = rules.min_scale
    if not pa.initialized and pa.reachable and rules.initial_scale > 1:
        least = max(least, rules.initial_scale)
    if wanted < least:
        wanted = least
    elif rules.max_scale:
        wanted = min(wanted, rules.max_scale)
    return _Count(wanted) if wanted else _to_zero(seen)


def _to_zero(seen: Seen) -> _Count:
    """The steps from some pods to none, by what the status says that has been seen."""
    pa, rules, now_s = seen.pa, seen.rules, seen.now_s
    if not rules.to_zero:
        return _Count(1, why="Scaling to zero is switched off.")
    active = pa.active
    if active.status == "Unknown":
        left_s = active.since_s + rules.activation_limit_s - now_s
        if active.since_s and left_s < 0.0:
            return _Count(0, why="It could not be activated in time.")
        return _Count(KEEP, applied=False, again_s=left_s if active.since_s else None)
    if active.status == "True":
        return _from_active(seen, now_s - active.since_s)
    return _last_pods(seen, now_s - active.since_s)


def _from_active(seen: Seen, active_s: float) -> _Count:
    """Make it inactive, once it was active for the stable window; the pods stay until that is seen."""
    if not seen.wakeable:
        return _Count(1, why="Activators do not tell whether requests wait, so it stays at 1.", again_s=1.0)
    left_s = seen.rules.window_s - active_s
    return _Count(1, again_s=left_s) if left_s > 0.0 else _Count(0, applied=False)


def _last_pods(seen: Seen, inactive_s: float) -> _Count:  # noqa: PLR0911 - one for each thing that may keep them
    """Whether the last pods of an inactive Revision may go."""
    rules, sks = seen.rules, seen.sks
    assert sks is not None
    if seen.target is not None and seen.target.replicas == 0:
        return _Count(0)
    if not seen.wakeable:
        return _Count(0, applied=False, why="Activators do not tell whether requests wait, so pods stay.", again_s=1.0)
    always = rules.burst_capacity == -1.0
    if not always and not (seen.proxied and sks.mode == PROXY):
        return _Count(0, applied=False, probe=sks.mode == PROXY)
    if seen.demand.holds:
        # The policy is about to hear of it.
        return _Count(0, applied=False, again_s=1.0)
    if inactive_s >= max(rules.grace_s, rules.retention_s):
        return _Count(0)
    if inactive_s < rules.retention_s:
        return _Count(0, applied=False, again_s=rules.retention_s - inactive_s)
    # They may have been in the way for the whole grace before: then there is nothing to wait for.
    proxied_s = seen.now_s - sks.proxied_since_s if sks.proxied_since_s is not None else 0.0
    left_s = rules.grace_s - max(proxied_s, inactive_s)
    return _Count(0) if left_s <= 0.0 else _Count(0, applied=False, again_s=left_s)


def _route(seen: Seen, want: int) -> Route:
    """Activators are in the way unless pods are wanted and have room for a burst."""
    rules = seen.rules
    burst, takes = rules.burst_capacity, seen.ready * rules.total
    if burst == 0.0:
        room, activators = 0.0, LEAST_ACTIVATORS
    else:
        room = math.floor(takes - burst - seen.demand.panic_load) if burst > 0.0 else -1.0
        activators = max(LEAST_ACTIVATORS, math.ceil((takes + max(burst, 0.0)) / rules.activator_capacity))
    return Route(SERVE if want > 0 and room >= 0.0 else PROXY, activators)


def _differs(sks: SksFacts | None, pa: PaFacts, route: Route) -> bool:
    """Whether the ServerlessService does not say what it is to say."""
    return sks is None or (sks.mode, sks.activators, sks.protocol, sks.target, sks.labels, sks.annotations) != (
        route.mode,
        route.activators,
        pa.protocol,
        pa.target,
        pa.labels,
        kept_annotations(pa),
    )
