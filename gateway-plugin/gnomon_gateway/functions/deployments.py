"""The state of one deployed function: deployment, runtime, load at other replicas, and the failures of its starts.

Failed starts (`StartFailures`):

    a start fails ─▶ retried at once, calls wait ─┬─ ready ─▶ forgotten
                                                  └─ fails again ─▶ calls get 503 `function_cannot_start` until one is ready
    no node has capacity ─▶ while the function has no instance at all, calls get that refusal

Calls are refused while a retry starts or its back-off lasts. After the back-off one call is admitted, so that a function that is
started by its requests is tried again.

Other replicas (`OtherReplicas`). If several gateways share the functions, the leader decides by the load of all of them, from
their reports (`replicas.state_sync`). The counters of a replica that has left are kept, so that sums never fall; its queue is
not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.functions import FunctionSpec
from gnomon_core.interfaces import SchedulingPolicy
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import FunctionLoad, LoadCounters, SetBufferPlan
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature
from gnomon_gateway.functions.function_runtime import FunctionRuntime

_LOG = logging.getLogger("gnomon.functions")

SchedulerOf: TypeAlias = Callable[[Settings], SchedulingPolicy]
"""The factory of a function's scheduling policy."""


FINAL_FAILURES = 2
"""The first failed start is retried at once; from the second in a row on, callers get the reason."""


RETRY_S = 1.0
"""The shortest `Retry-After` of a function that cannot start."""


SHOWN_CHARACTERS = 600


LOG_ENDS = "; its log ends: "


@dataclass(slots=True)
class StartFailures:
    """The failed starts since an instance was last ready or the function was last deployed."""

    failures: int = 0
    reason: str = ""
    shortage: GnomonError | None = None
    """The last refusal of the platform to create an instance; None after one was created or has ended."""
    at_s: float = float("-inf")
    logged: str = ""

    def failed(self, now_s: float, reason: str) -> None:
        """Count an instance that ended before it was ready."""
        self.failures += 1
        self.reason, self.at_s = summary(reason), now_s

    def refused(self, now_s: float, refusal: GnomonError) -> bool:
        """Record that the platform refused an instance. Returns whether the reason is new to the function's log."""
        self.shortage, self.at_s = refusal, now_s
        is_new, self.logged = self.logged != refusal.code, refusal.code
        return is_new

    def clear_shortage(self) -> None:
        """Clear the shortage: an instance was created, or one has ended and frees its capacity."""
        self.shortage = None

    def ready(self) -> None:
        """Reset all failures: an instance is ready, so the function can start."""
        self.failures, self.reason = 0, ""

    @property
    def problem(self) -> GnomonError | None:
        """The reason as one error; None if none is known."""
        if self.failures:
            return GnomonError(
                503,
                "function_cannot_start",
                f"The function cannot start: {self.reason}",
                "Fix the function and deploy it again; `gnomon logs NAME` says more.",
                retry_after_s=RETRY_S,
            )
        return self.shortage

    def final(self, instances: int) -> bool:
        """Return whether an immediate retry is not expected to help. An instance that ends frees capacity."""
        # A shortage of capacity is temporary while the function has an instance, which frees capacity when it ends.
        return self.failures >= FINAL_FAILURES if self.failures else self.shortage is not None and not instances

    def refusal(self, now_s: float, *, starting: int, instances: int, backoff_s: float) -> GnomonError | None:
        """The error for a call while no instance is ready; None if the call should wait.

        `starting` of the function's `instances` are starting; `backoff_s` is the time until the autoscaler starts the next one.
        """
        problem, retry_s = self.problem, max(backoff_s, self.at_s + RETRY_S - now_s)
        if problem is None or not self.final(instances) or (retry_s <= 0 and not starting):
            return None
        after_s = max(RETRY_S, retry_s)
        return GnomonError(problem.status, problem.code, problem.message, problem.hint, retry_after_s=after_s)


def summary(reason: str) -> str:
    """The reason of an instance's end, with only the last line of its log."""
    how, ends, log = reason.partition(LOG_ENDS)
    last = log.rpartition(" | ")[2]
    return (f"{last} ({how})" if ends and last else how)[:SHOWN_CHARACTERS]


_NO_COUNTERS = LoadCounters()


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """The load of a function at one replica, or at all other replicas together.

    `latency_s`, `ratios` (measured by predicted latency, by cores) and `spread` (their mean relative error) are those of the
    replica that served last; `spread` is 0 if unknown, as from replicas of an earlier version.
    """

    counters: LoadCounters = _NO_COUNTERS
    invocations: int = 0
    latency_s: tuple[float, ...] = ()
    ratios: Mapping[int, float] = field(default_factory=dict)
    spread: float = 0.0
    in_flight: Mapping[str, int] = field(default_factory=dict)
    """Requests by instance, without idle instances."""


@dataclass(frozen=True, slots=True)
class LostInstance:
    """An instance that ended or froze, as seen by the replica that sent it batches. `served`: it had answered a batch."""

    reason: str
    served: bool = False


NO_LOAD = ReplicaLoad()


class OtherReplicas:
    """The load at other replicas. `leads` is whether this process decides, which may change; `now_s` is the counters' clock.

    With `reports_lost` False, no leader asks for lost instances, so they are not kept.
    """

    def __init__(self, *, leads: bool = True, now_s: Callable[[], float] = time.monotonic, reports_lost: bool = True) -> None:
        self.leads = leads
        self.lost: dict[str, LostInstance] = {}
        """Instances that were lost here while another process leads, until the leader has confirmed the report."""
        self._reports_lost = reports_lost
        self._now_s = now_s
        self._loads: dict[str, dict[str, ReplicaLoad]] = {}
        """The load at other replicas, by replica and function."""
        self._left_behind: dict[str, ReplicaLoad] = {}
        """The counters of replicas that have left, by function."""
        self._numbers: dict[str, int] = {}

    def lose(self, instance_id: str, lost: LostInstance) -> None:
        """Keep a lost instance for the next report to the leader."""
        if self._reports_lost:
            self.lost[instance_id] = lost

    def take_report(self, replica: str, functions: Mapping[str, Any]) -> None:
        """Take a replica's report. Functions that are not in it have not changed.

        Raises:
            KeyError, TypeError, ValueError: the document is no valid report.

        """
        read = {name: self._read(document) for name, document in functions.items()}
        self._loads.setdefault(replica, {}).update(read)
        for name in read:
            self._numbers[name] = self._numbers.get(name, 0) + 1

    def keep(self, replicas: Collection[str]) -> None:
        """Forget every replica that is not one of these, but keep its counters."""
        for replica in self._loads.keys() - set(replicas):
            for name, load in self._loads.pop(replica).items():
                self._numbers[name] = self._numbers.get(name, 0) + 1
                counted = replace(load.counters, queued=0, executing=0, oldest_wait_s=0.0)
                left = replace(load, counters=counted, in_flight={})
                self._left_behind[name] = _combined([self._left_behind.get(name, NO_LOAD), left])

    def forget(self, function: str) -> None:
        """Forget a removed function's load: a new function of that name starts from zero."""
        for functions in (self._left_behind, self._numbers, *self._loads.values()):
            functions.pop(function, None)  # type: ignore[attr-defined]

    def of(self, function: str) -> ReplicaLoad:
        """The load of a function at all other replicas together."""
        if function not in self._numbers:
            return NO_LOAD
        parts = [functions[function] for functions in self._loads.values() if function in functions]
        return _combined([self._left_behind.get(function, NO_LOAD), *parts])

    def in_flight(self, function: str, instance_id: str) -> int:
        """The number of requests that an instance executes for other replicas."""
        if function not in self._numbers:
            return 0
        return sum(
            functions[function].in_flight.get(instance_id, 0) for functions in self._loads.values() if function in functions
        )

    def stamp(self, function: str) -> int:
        """A number that changes with each report of the function."""
        return self._numbers.get(function, 0)

    def _read(self, document: Mapping[str, Any]) -> ReplicaLoad:
        idle_s = document["idle_s"]
        return ReplicaLoad(
            LoadCounters(
                arrivals=int(document["arrivals"]),
                successes=int(document["successes"]),
                concurrency_s=float(document["concurrency_s"]),
                busy_core_s=float(document["busy_core_s"]),
                queued=int(document["queued"]),
                executing=int(document["executing"]),
                oldest_wait_s=float(document["oldest_wait_s"]),
                last_request_s=0.0 if idle_s is None else self._now_s() - float(idle_s),
            ),
            int(document["invocations"]),
            tuple(map(float, document["latency_s"])),
            {int(cores): float(ratio) for cores, ratio in document["ratios"].items()},
            float(document.get("spread", 0.0)),
            {str(instance): int(count) for instance, count in document["in_flight"].items()},
        )


def add_counters(first: LoadCounters, second: LoadCounters) -> LoadCounters:
    """The sum of the counters of two queues of one function."""
    if second is _NO_COUNTERS:
        return first
    return LoadCounters(
        arrivals=first.arrivals + second.arrivals,
        successes=first.successes + second.successes,
        concurrency_s=first.concurrency_s + second.concurrency_s,
        busy_core_s=first.busy_core_s + second.busy_core_s,
        queued=first.queued + second.queued,
        executing=first.executing + second.executing,
        oldest_wait_s=max(first.oldest_wait_s, second.oldest_wait_s),
        last_request_s=max(first.last_request_s, second.last_request_s),
    )


def _combined(parts: list[ReplicaLoad]) -> ReplicaLoad:
    whole = NO_LOAD
    for part in sorted(parts, key=lambda part: part.counters.last_request_s):
        whole = ReplicaLoad(
            add_counters(whole.counters, part.counters),
            whole.invocations + part.invocations,
            part.latency_s or whole.latency_s,
            part.ratios or whole.ratios,
            part.spread or whole.spread,
            {**whole.in_flight, **part.in_flight},
        )
    return whole


@dataclass(slots=True)
class Deployed:
    """A function while it is deployed.

    `version` grows whenever instances must be replaced. `keep_old` is the number of instances that served when the last rolling
    update began, so that no fewer serve until the new ones do. `draining` are instances that get no further batches, `retired`
    those of them that free capacity for the present version. `profile` is the profile of the function's model, `plan` the buffer
    plan in force, None for the deployed limits. `been_ready` says that an instance has been ready since the function was
    deployed, or since this process manages it. `engine` is the engine of its model, for its users.
    """

    spec: FunctionSpec
    version: int
    revision: str
    secrets: Mapping[str, bytes]
    created_at: float
    runtime: FunctionRuntime
    profile: ModelProfile | None = None
    keep_old: int = 0
    draining: set[str] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)

    other_replicas: OtherReplicas = field(default_factory=OtherReplicas)
    plan: SetBufferPlan | None = None
    start_failures: StartFailures = field(default_factory=StartFailures)
    been_ready: bool = False
    engine: str = ""
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.runtime.name

    def update(
        self, spec: FunctionSpec, policy: SchedulerOf, signature: ModelSignature | None, profile: ModelProfile | None
    ) -> None:
        """Use another deployment from now on. The buffer plan stays as long as the settings that it was made for."""
        # A plan was made for a latency objective and a largest batch, which the new settings may have changed.
        plan = self.plan if spec.settings == self.spec.settings else None
        self.spec, self.profile, self.plan = spec, profile, None
        self.runtime.update(spec.settings, policy(spec.settings), signature, profile)
        self.plan_buffer(plan, policy)

    def plan_buffer(self, plan: SetBufferPlan | None, policy: SchedulerOf) -> None:
        """Make batches within the plan's limits from now on; None restores the deployed limits."""
        if plan == self.plan:
            return
        settings = self.spec.settings
        if plan is not None:
            settings = replace(settings, max_batch=plan.max_batch, max_wait_s=plan.max_wait_s)
        self.runtime.plan_buffer(policy(settings), settings.max_batch)
        self.plan = plan

    async def answer_all(self, error: GnomonError, *, starting: int = 0) -> None:
        """Answer the requests of a function that has ended; returns once none is in flight or the deadlines have passed.

        `error` answers requests for which no instance is ready, unless some are `starting`.
        """
        self.runtime.end(error)
        self.runtime.fail_unserved(starting=starting)
        try:
            await asyncio.wait_for(self.runtime.drain_all(), self.spec.settings.deadline_s + 5.0)
        except TimeoutError:
            _LOG.warning("%s has ended while requests were still executing after their deadline", self.name)

    def seen(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        """The instances with what the dispatcher knows of each: in flight, busy, draining."""
        return tuple(self._seen(instance) for instance in instances)

    def current(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        """The instances of the present version, with the dispatcher's view of each."""
        return tuple([self._seen(instance) for instance in instances if instance.version == self.version])

    def live(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        """The Bodies of the present version that serve or start."""
        return tuple(
            instance
            for instance in self.current(instances)
            if instance.kind is InstanceKind.BODY and instance.state is not InstanceState.DRAINING
        )

    def old(self, instances: Sequence[Instance], state: InstanceState = InstanceState.READY) -> tuple[Instance, ...]:
        """The Bodies of earlier versions in this state. Their Shadows end with them."""
        return tuple(
            instance
            for instance in instances
            if instance.kind is InstanceKind.BODY
            and instance.version < self.version
            and instance.id not in self.draining
            and instance.state is state
        )

    def replaceable(self, instances: Sequence[Instance], desired: int | None) -> tuple[Instance, ...]:
        """The instances of earlier versions that ready instances of the present version replace."""
        old = self.old(instances)
        live = self.live(instances)
        ready = sum(instance.state is InstanceState.READY for instance in live)
        # Example: three served before, two are wanted, and one new instance is ready: one old instance stays until the second is.
        needed = max(0, min(self.keep_old, max(len(live), 1) if desired is None else desired) - ready)
        return old[: max(0, len(old) - needed)]

    def load(self, instances: Sequence[Instance], nodes: tuple[Node, ...]) -> FunctionLoad:
        """The load for the autoscaler, without the instances of earlier versions, which the rolling update manages."""
        runtime, other_load, current = self.runtime, self.other_replicas.of(self.name), self.current(instances)
        counters = runtime.load()
        # Another replica may have left long ago: the replica that served last knows the latencies.
        load = NO_LOAD if counters.last_request_s > other_load.counters.last_request_s else other_load
        return FunctionLoad(
            settings=self.spec.settings,
            counters=add_counters(counters, other_load.counters),
            instances=current,
            nodes=nodes,
            latency_s=load.latency_s or runtime.latency_s() or other_load.latency_s,
            profile=runtime.profile(load.ratios),
            latency_spread=load.spread
            or runtime.latency_spread([instance.size for instance in current if instance.kind is InstanceKind.BODY]),
            plan=self.plan,
        )

    def stamp(self, instances: Sequence[Instance]) -> object:
        """A value that changes whenever `load` changes, except for the nodes. Cheaper to make and to compare."""
        return self.stamp_without_requests(instances), self.other_replicas.stamp(self.name), self.runtime.events()

    def stamp_without_requests(self, instances: Sequence[Instance]) -> object:
        """The part of `stamp` that no request changes."""
        return self.spec.settings, self.plan, self.profile, self.version, instances, len(self.draining)

    def counters(self) -> LoadCounters:
        """The counters of `load`."""
        return add_counters(self.runtime.load(), self.other_replicas.of(self.name).counters)

    def _seen(self, instance: Instance) -> Instance:
        in_flight = self.runtime.in_flight(instance.id) + self.other_replicas.in_flight(self.name, instance.id)
        state = InstanceState.DRAINING if instance.id in self.draining else instance.state
        if state is instance.state and in_flight == instance.in_flight:
            return instance  # the usual case: a copy costs more than the rest of `load`
        return replace(instance, state=state, busy=in_flight > 0, in_flight=in_flight)
