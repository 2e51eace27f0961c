"""The controller of applications: observes their members each second, calls the policy, and scales the members.

    members' counters ─▶ states (variants.states) ─▶ selector          queries by their constraints ─▶ demands ─┐
    instances, load, nodes ─▶ ApplicationObservation ◀──────────────────────────────────────────────────────────┘
                                       │ policy: ScalingPlan
                                       ▼
                      Manager.scale of each member whose number differs

A member keeps the number of instances that was set last, and starts an instance itself if a request waits for one, so that an
application answers without the controller too. For endpoints whose `gnomon/autoscaler` names another policy than `infaas` only
the variants' states are observed; that policy scales each member separately.

**Demand** is measured over `DEMAND_WINDOW_S` in samples per second, for each kind of query separately. A kind that was queried
within `com.openfaas.scale.zero-duration` remains a demand with a load near zero, so that one instance that satisfies it stays.
The label `com.openfaas.scale.min` keeps that number of instances without queries. Queries that name a variant are not part of the
demands, because no other variant can serve them: their variant gets the instances that they need. A member's last instance never
ends while it has requests.

**Workers.** Every two seconds the number of nodes is decided from their utilization and the states of the variants there (section
4.2.3). No platform adds machines itself, so the decision is only advice, shown by `gnomon app describe` and a metric.

**A variant's slowdown** is the ratio of the mean time of its batches in a period to the profiled time of batches of that size.
Where its instances are slower than the profile, which was perhaps measured on another machine, the policy gets the saturation
rate that they reach: callers who wait for their answers never ask for more, so that the profiled rate would never be exceeded.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from gnomon_core.applications import POLICY
from gnomon_core.clock import Clock, utc_now_s
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import InstanceKind, Node
from gnomon_core.functions import FunctionKey
from gnomon_core.scaling import DecisionRecord
from gnomon_core.variant_scaling import (
    DEMAND_WINDOW_S,
    ApplicationObservation,
    Demand,
    ScalingPlan,
    VariantMember,
    WorkerObservation,
    WorkerPlan,
)
from gnomon_core.variants import CORES, MEMORY_BYTES, Query, Variant, VariantState
from gnomon_gateway.applications.application import Member
from gnomon_gateway.applications.service import Applications, Endpoint
from gnomon_gateway.dispatch.latency import interpolate
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.variants.states import DEFAULT_THRESHOLDS, PERIOD_S, Lifecycle, Measurement

TICK_S = 1.0
WORKERS_PERIOD_S = 2.0
LEAST_RPS = 1e-3
"""The load of a kind of query that was queried lately, but not in the window."""
HEADROOM = 1.05
"""The ratio of capacity to load of variants that queries name: the slack of the Model-Autoscaler (INFaaS, section 5)."""
SMOOTHING = 0.5
"""The weight of the last period in a variant's slowdown: a period's noise must not change the plan."""
_SCALE_MIN = "com.openfaas.scale.min"
_LOG = logging.getLogger("gnomon.applications")

StateT = TypeVar("StateT")
Decide = Callable[[ApplicationObservation, StateT], tuple[ScalingPlan, StateT]]
"""The policy: a plan for an observation, and the state for the next one."""


@dataclass(slots=True)
class LoadWindow:
    """The load of one kind of query: cumulative samples at each tick of the last `DEMAND_WINDOW_S`."""

    samples: deque[tuple[float, int]] = field(default_factory=deque)
    last_asked_s: float = float("-inf")

    def record(self, now_s: float, total: int) -> None:
        """Record the cumulative number of queried samples."""
        before = self.samples[-1][1] if self.samples else 0
        if total > before:
            self.last_asked_s = now_s
        self.samples.append((now_s, total))
        while len(self.samples) > 1 and self.samples[1][0] <= now_s - DEMAND_WINDOW_S:
            self.samples.popleft()

    def rps(self, now_s: float) -> float:
        """Samples per second over the window; over the time since the first tick where that is shorter."""
        since_s, first = self.samples[0]
        if len(self.samples) == 1:
            return first / TICK_S
        return (self.samples[-1][1] - first) / max(TICK_S, now_s - since_s)


@dataclass(frozen=True, slots=True)
class Counts:
    """A member's counters at the end of a period."""

    at_s: float
    arrived: int
    batches: int
    samples: float
    busy_core_s: float


@dataclass(slots=True)
class MemberWatch:
    """The state of a member between two periods."""

    counts: Counts
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    load_rps: float = 0.0
    slowdown: float = 1.0

    def measured(self, measurement: Measurement) -> None:
        """Take a period's measurement. Without enough batches the slowdown returns to 1: the contention may have ended."""
        self.load_rps = measurement.rate_rps
        self.lifecycle = self.lifecycle.measured(measurement)
        slowdown = measurement.slowdown if measurement.batches >= DEFAULT_THRESHOLDS.least_batches else 1.0
        self.slowdown += SMOOTHING * (slowdown - self.slowdown)

    def reached(self, variant: Variant) -> Variant:
        """The variant with the saturation rate that its instances reach now, at most the profiled one."""
        return replace(variant, saturation_rps=variant.saturation_rps / max(1.0, self.slowdown))


@dataclass(slots=True)
class Watched(Generic[StateT]):
    """The state of an endpoint between two ticks."""

    endpoint: Endpoint
    state: StateT
    demands: dict[Query, LoadWindow] = field(default_factory=dict)
    members: dict[str, MemberWatch] = field(default_factory=dict)
    instances: Mapping[str, int] = field(default_factory=dict)
    workers_at_s: float = float("-inf")


class ApplicationController(Generic[StateT]):
    """Scales the members of applications. `initial` is the state of the policy before its first decision.

    `decide_workers` advises on machines; `leads` is whether this process decides; `now` gives seconds since 1970.
    """

    def __init__(
        self,
        applications: Applications,
        manager: Manager,
        decide: Decide[StateT],
        initial: StateT,
        clock: Clock,
        *,
        decide_workers: Callable[[Sequence[WorkerObservation]], WorkerPlan],
        now: Callable[[], float] = utc_now_s,
    ) -> None:
        self._applications = applications
        self._manager = manager
        self._decide = decide
        self._decide_workers = decide_workers
        self._initial = initial
        self._clock = clock
        self._now = now
        self._watched: dict[FunctionKey, Watched[StateT]] = {}

    async def run(self) -> None:
        """Observe and scale every application each second, until cancelled."""
        while True:
            await self._clock.sleep(TICK_S)
            endpoints = {endpoint.spec.key: endpoint for endpoint in self._applications.endpoints()}
            for gone in self._watched.keys() - endpoints.keys():
                del self._watched[gone]
            for key, endpoint in endpoints.items():
                watched = self._watched.get(key)
                # Removed and declared again under its name, an application begins anew.
                if watched is None or watched.endpoint is not endpoint:
                    watched = self._watched[key] = Watched(endpoint, self._initial)
                try:
                    await self._tick(endpoint, watched)
                except Exception:  # noqa: BLE001 - the other applications must still be scaled
                    _LOG.exception("application %s is not scaled: internal error", endpoint.key)

    async def _tick(self, endpoint: Endpoint, watched: Watched[StateT]) -> None:
        now_s = self._clock.now_s()
        members = dict(endpoint.application.members)
        self._watch_members(endpoint, watched, members, now_s)
        self._record_demands(endpoint, watched, now_s)
        if not endpoint.together or not members:
            return
        observation, nodes = self._observation(endpoint, watched, members, now_s)
        if nodes and now_s - watched.workers_at_s >= WORKERS_PERIOD_S:
            watched.workers_at_s = now_s
            endpoint.workers = self._decide_workers(worker_observations(nodes, self._states(watched, members)))
        nothing = not watched.demands and not observation.demands and not watched.instances
        if nothing and not any(member.running for member in observation.members):
            return
        plan, watched.state = await asyncio.to_thread(self._decide, observation, watched.state)
        instances = bounded(endpoint, plan, _named(watched, members, now_s), observation)
        self._log_decision(endpoint, watched, plan, instances)
        for variant, member in members.items():
            await self._scale(endpoint, member, instances.get(variant, 0))

    # Observation

    def _watch_members(self, endpoint: Endpoint, watched: Watched[StateT], members: Mapping[str, Member], now_s: float) -> None:
        """Measure each member's last period, and tell the selector its state."""
        for gone in watched.members.keys() - members.keys():
            del watched.members[gone]
        for name, member in members.items():
            counts = counts_of(member.runtime, now_s)
            watch = watched.members.get(name)
            if watch is None or watch.counts.arrived > counts.arrived:
                watch = watched.members[name] = MemberWatch(counts)
            ready = member.runtime.ready
            watch.lifecycle = watch.lifecycle.loaded() if ready else watch.lifecycle.unloaded()
            if now_s - watch.counts.at_s >= PERIOD_S:
                measurement = measurement_of(member.variant, watch.counts, counts, ready)
                watch.counts = counts
                watch.measured(measurement)
            peak_rps = member.variant.saturation_rps * max(1, ready)
            endpoint.application.report(name, watch.lifecycle.state, watch.load_rps / peak_rps)

    @staticmethod
    def _record_demands(endpoint: Endpoint, watched: Watched[StateT], now_s: float) -> None:
        """Record what has been asked for, and forget what has not been for the time after which functions scale to zero."""
        demands = endpoint.application.demands
        for query, total in demands.items():
            watched.demands.setdefault(query, LoadWindow()).record(now_s, total)
        idle_s = endpoint.spec.settings.scale.zero_duration_s
        for query, window in list(watched.demands.items()):
            if now_s - window.last_asked_s >= idle_s:
                del watched.demands[query]
                demands.pop(query, None)

    def _observation(
        self, endpoint: Endpoint, watched: Watched[StateT], members: Mapping[str, Member], now_s: float
    ) -> tuple[ApplicationObservation, tuple[Node, ...]]:
        """The application, and the nodes that there are."""
        observed_members: list[VariantMember] = []
        nodes: tuple[Node, ...] = ()
        own_resources = {CORES: 0.0, MEMORY_BYTES: 0.0}
        for name, member in members.items():
            load = self._manager.instances.load(member.runtime.name)
            live = () if load is None else [instance for instance in load.instances if instance.kind is InstanceKind.BODY]
            nodes = nodes if load is None else load.nodes
            running = sum(1 for instance in live if instance.state.value in ("starting", "ready"))
            for kind, amount in member.variant.resources.items():
                own_resources[kind] = own_resources.get(kind, 0.0) + running * amount
            watch = watched.members[name]
            ready = min(running, member.runtime.ready)
            load_rps, state = watch.load_rps, watch.lifecycle.state
            variant = watch.reached(member.variant)
            observed_members.append(VariantMember(variant, running, ready, load_rps, state, last_rps=load_rps))
        demands = tuple(_demands(endpoint, watched, members, now_s))
        return ApplicationObservation(
            now_s, str(endpoint.key), tuple(observed_members), demands, capacity(nodes, own_resources)
        ), nodes

    def _states(self, watched: Watched[StateT], members: Mapping[str, Member]) -> list[tuple[str, VariantState]]:
        """The node of each instance that answers, with its variant's state."""
        return [
            (instance.node, watched.members[name].lifecycle.state)
            for name, member in members.items()
            for instance in self._manager.instances.seen(member.runtime.name)
            if instance.kind is InstanceKind.BODY and instance.state.value == "ready"
        ]

    # Decisions

    def _log_decision(
        self, endpoint: Endpoint, watched: Watched[StateT], plan: ScalingPlan, instances: Mapping[str, int]
    ) -> None:
        if instances == watched.instances and endpoint.decisions:
            return
        watched.instances = instances
        at = self._now()
        endpoint.decisions.appendleft(DecisionRecord(at, POLICY, sum(instances.values()), (), plan.reason, "", at))
        _LOG.info("application %s: %s", endpoint.key, plan.reason)

    async def _scale(self, endpoint: Endpoint, member: Member, count: int) -> None:
        key = member.runtime.key
        status = self._manager.status(key)
        if status is None or status.replicas == count or (not count and member.runtime.busy):
            return
        try:
            await self._manager.scale(key, count)
        except GnomonError as error:
            _LOG.warning("application %s: %s is not scaled to %d: %s", endpoint.key, member.variant.id, count, error)


def bounded(
    endpoint: Endpoint, plan: ScalingPlan, named: Mapping[str, int], observation: ApplicationObservation
) -> dict[str, int]:
    """The plan with the instances of named variants: at most `scale.max` of each member, and `scale.min` of all by label."""
    scale = endpoint.spec.settings.scale
    planned = {name: max(plan.instances.get(name, 0), named.get(name, 0)) for name in plan.instances.keys() | named.keys()}
    counts = {name: min(count, scale.max) for name, count in planned.items() if count > 0}
    missing = scale.min - sum(counts.values()) if _SCALE_MIN in endpoint.spec.labels else 0
    if missing > 0:
        cheapest = min(observation.members, key=lambda member: (member.variant.cost_per_s, member.variant.inference_s)).variant.id
        counts[cheapest] = min(scale.max, counts.get(cheapest, 0) + missing)
    return counts


def counts_of(runtime: FunctionRuntime, now_s: float) -> Counts:
    """A member's counters now."""
    load, sizes = runtime.load(), runtime.metrics.batch_sizes
    return Counts(now_s, load.arrivals, sum(sizes.counts), sizes.total, load.busy_core_s)


def measurement_of(variant: Variant, before: Counts, after: Counts, ready: int) -> Measurement:
    """The readings of a variant's instances in a period.

    Example: 10 batches of 4 samples took 0.6 core seconds on 1 core, 60 ms each; the variant's batches of 4 take 50 ms: it is
    slower by 1.2.
    """
    period_s = max(1e-9, after.at_s - before.at_s)
    batches, samples = after.batches - before.batches, after.samples - before.samples
    slowdown = 1.0
    if batches > 0:
        taken_s = (after.busy_core_s - before.busy_core_s) / variant.cores / batches
        sizes = sorted(variant.latency_s)
        expected_s = interpolate(sizes, [variant.latency_s[size] for size in sizes], max(1, round(samples / batches)))
        slowdown = taken_s / expected_s if expected_s else 1.0
    per_request = samples / (after.arrived - before.arrived) if after.arrived > before.arrived and samples else 1.0
    rate_rps = (after.arrived - before.arrived) * max(1.0, per_request) / period_s
    return Measurement(rate_rps, variant.saturation_rps * max(1, ready), slowdown, max(0, batches))


def _demands(endpoint: Endpoint, watched: Watched[StateT], members: Mapping[str, Member], now_s: float) -> list[Demand]:
    """The constraints of present and recent queries, each that some variant satisfies."""
    found = [
        Demand(
            window.rps(now_s),
            query.latency_s,
            query.accuracy,
            query.cost_per_s,
            query.architecture or "",
            query.accuracy_floor,
        )
        for query, window in watched.demands.items()
        if query.variant is None
    ]
    merged = merge(found, [member.variant for member in members.values()])
    accepted = [replace(demand, load_rps=max(LEAST_RPS, demand.load_rps)) for demand in merged]
    if not accepted and _SCALE_MIN in endpoint.spec.labels and endpoint.spec.settings.scale.min:
        accepted.append(Demand(LEAST_RPS))
    return accepted


def merge(demands: Iterable[Demand], variants: Sequence[Variant]) -> list[Demand]:
    """The demands that some variant satisfies; those that the same variants satisfy are one, of their total load.

    The policy decides the same for both, and its time grows with the number of demands, which clients choose. Where the wished
    accuracy is that of no variant, the demand is for its floor.
    """
    by_variants: dict[tuple[tuple[str, ...], tuple[str, ...]], Demand] = {}
    for asked in demands:
        demand = asked.among(variants)
        if demand is None:
            continue
        accepting, at_floor = (
            tuple(variant.id for variant in variants if accepted.accepts(variant)) for accepted in (demand, demand.at_floor)
        )
        other = by_variants.get((accepting, at_floor))
        total_rps = demand.load_rps + (other.load_rps if other is not None else 0.0)
        by_variants[accepting, at_floor] = replace(other or demand, load_rps=total_rps)
    return list(by_variants.values())


def _named(watched: Watched[StateT], members: Mapping[str, Member], now_s: float) -> dict[str, int]:
    """The instances that queries need which name their variant."""
    load_rps: dict[str, float] = {}
    for query, window in watched.demands.items():
        if query.variant is not None and query.variant in members:
            load_rps[query.variant] = load_rps.get(query.variant, 0.0) + window.rps(now_s)
    peaks_rps = {name: watched.members[name].reached(members[name].variant).saturation_rps for name in load_rps}
    return {name: max(1, math.ceil(HEADROOM * load / peaks_rps[name])) for name, load in load_rps.items()}


def worker_observations(nodes: Sequence[Node], states: Sequence[tuple[str, VariantState]]) -> list[WorkerObservation]:
    """The nodes as the policy of workers sees them: the allocated shares, and the states of the application's variants there."""
    return [
        WorkerObservation(
            node.name,
            utilization={
                CORES: 1.0 - node.free_cores / max(1, node.cores),
                MEMORY_BYTES: 1.0 - node.free_memory_bytes / max(1, node.memory_bytes),
            },
            states=tuple(state for name, state in states if name == node.name),
        )
        for node in nodes
    ]


def capacity(nodes: tuple[Node, ...], own_resources: Mapping[str, float]) -> dict[str, float]:
    """The resources that an application may use: those that are free on the nodes, and those of its own instances."""
    cores, memory = sum(node.cores for node in nodes), sum(node.memory_bytes for node in nodes)
    return {
        CORES: min(float(cores), sum(node.free_cores for node in nodes) + own_resources[CORES]),
        MEMORY_BYTES: min(float(memory), sum(node.free_memory_bytes for node in nodes) + own_resources[MEMORY_BYTES]),
    }
