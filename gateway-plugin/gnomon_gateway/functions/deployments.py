"""The state of one deployed function: its deployment, its runtime, and which of its instances are wanted.

A stored function that cannot be served, for example because its secret was deleted, is retried (`UnservedFunctions`):

    cannot be served ▶ reason in its log ▶ retried every five seconds ─┬─ served ──▶ forgotten
                                                                       └─ removed ─▶ forgotten

Meanwhile the API lists the function without replicas, and calls get 503: a temporary failure is no 404.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.functions import FunctionKey, FunctionSpec, parse_key
from gnomon_core.interfaces import SchedulingPolicy, StoredFunction
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import FunctionLoad, LoadCounters, SetBufferPlan
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature
from gnomon_gateway.dispatch.dispatcher import function_removed
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.functions.health import StartFailures
from gnomon_gateway.functions.service import FunctionDetail, FunctionStatus
from gnomon_gateway.metrics import PairMetrics
from gnomon_gateway.replicas.state_sync import NO_LOAD, OtherReplicas, add_counters

_LOG = logging.getLogger("gnomon.functions")

SchedulerOf: TypeAlias = Callable[[Settings], SchedulingPolicy]
"""Makes the scheduling policy of a function with these settings."""


@dataclass(slots=True)
class Deployed:
    """A function while it is deployed.

    `version` grows whenever instances must be replaced. `keep_old` is the number of instances that served when the last rolling
    update began, so that no fewer serve until the new ones do. `draining` are instances that get no further batches, `retired`
    those of them that free capacity for the present version. `profile` is the profile of the function's model, `elsewhere` the
    load at other replicas, `plan` the buffer plan in force, None for the deployed limits. `been_ready` is whether an instance has
    been ready since the function was deployed, or since this process manages it.
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

    elsewhere: OtherReplicas = field(default_factory=OtherReplicas)
    plan: SetBufferPlan | None = None
    start_failures: StartFailures = field(default_factory=StartFailures)
    been_ready: bool = False

    @property
    def name(self) -> str:
        return self.runtime.name

    def update(
        self, spec: FunctionSpec, policy: SchedulerOf, signature: ModelSignature | None, profile: ModelProfile | None
    ) -> None:
        """Use another deployment from now on. The buffer plan stays as long as the settings that it was made for."""
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

    async def answer_all(self) -> None:
        """The function is removed: answer its requests, and return once none is in flight or the deadlines have passed."""
        self.runtime.removed()
        if not self.runtime.ready:
            self.runtime.fail_waiting(function_removed())
        try:
            await asyncio.wait_for(self.runtime.drain_all(), self.spec.settings.deadline_s + 5.0)
        except TimeoutError:
            _LOG.warning("%s was removed while requests were still executing after their deadline", self.name)

    def seen(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        """These instances, with the dispatcher's view of each: in flight, busy, draining."""
        return tuple(self._seen(instance) for instance in instances)

    def current(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        """The instances of the present version, with the dispatcher's view of each."""
        return tuple(self._seen(instance) for instance in instances if instance.version == self.version)

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

    def replaceable(self, instances: Sequence[Instance], wanted: int | None) -> tuple[Instance, ...]:
        """The instances of earlier versions that ready instances of the present version replace."""
        old = self.old(instances)
        live = self.live(instances)
        ready = sum(instance.state is InstanceState.READY for instance in live)
        # Example: three served before, two are wanted, and one new instance is ready: one old instance stays until the second is.
        needed = max(0, min(self.keep_old, max(len(live), 1) if wanted is None else wanted) - ready)
        return old[: max(0, len(old) - needed)]

    def load(self, instances: Sequence[Instance], nodes: tuple[Node, ...]) -> FunctionLoad:
        """The load for the autoscaler, without the instances of earlier versions, which the rolling update manages."""
        runtime, others, current = self.runtime, self.elsewhere.of(self.name), self.current(instances)
        counters = runtime.load()
        # Another replica may have left long ago: the replica that served last knows the latencies.
        told = NO_LOAD if counters.last_request_s > others.counters.last_request_s else others
        return FunctionLoad(
            settings=self.spec.settings,
            counters=add_counters(counters, others.counters),
            instances=current,
            nodes=nodes,
            latency_s=told.latency_s or runtime.latency_s() or others.latency_s,
            profile=runtime.profile(told.ratios),
            latency_spread=told.spread or runtime.latency_spread({one.size for one in current if one.kind is InstanceKind.BODY}),
            plan=self.plan,
        )

    def stamp(self, instances: Sequence[Instance]) -> object:
        """A value that changes whenever `load` changes, except for the nodes. Cheaper to make and to compare."""
        return self.standing(instances), self.elsewhere.stamp(self.name), self.runtime.events()

    def standing(self, instances: Sequence[Instance]) -> object:
        """The part of `stamp` that no request changes."""
        return self.spec.settings, self.plan, self.profile, self.version, instances, len(self.draining)

    def counters(self) -> LoadCounters:
        """The counters of `load`."""
        return add_counters(self.runtime.load(), self.elsewhere.of(self.name).counters)

    def _seen(self, instance: Instance) -> Instance:
        in_flight = self.runtime.in_flight(instance.id) + self.elsewhere.in_flight(self.name, instance.id)
        state = InstanceState.DRAINING if instance.id in self.draining else instance.state
        if state is instance.state and in_flight == instance.in_flight:
            return instance  # the usual case: a copy costs more than the rest of `load`
        return replace(instance, state=state, busy=in_flight > 0, in_flight=in_flight)


RETRY_S = 5.0


class UnservedFunctions:
    """The stored functions that cannot be served. `retry` serves a function, and adds it again if that fails."""

    def __init__(self, retry: Callable[[FunctionKey], Awaitable[None]], log: Callable[[FunctionKey, str, str], None]) -> None:
        self._retry, self._log = retry, log
        self._stored: dict[FunctionKey, StoredFunction] = {}
        self._reasons: dict[FunctionKey, str] = {}
        self._task: asyncio.Task[None] | None = None

    def __contains__(self, key: FunctionKey) -> bool:
        return key in self._stored

    def __iter__(self) -> Iterator[FunctionKey]:
        return iter(self._stored)

    def add(self, stored: StoredFunction, reason: str) -> None:
        """The function cannot be served. The same reason is logged once."""
        key = stored.spec.key
        self._stored[key] = stored
        if self._reasons.get(key) != reason:
            self._reasons[key] = reason
            self._log(key, "", f"gnomon: {key} is not served: {reason}")
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def forget(self, key: FunctionKey) -> None:
        """The function is served or removed."""
        self._stored.pop(key, None)
        self._reasons.pop(key, None)

    def get(self, key: FunctionKey) -> StoredFunction | None:
        """The stored function; None if it is served or unknown."""
        return self._stored.get(key)

    def status(self, key: FunctionKey) -> FunctionStatus | None:
        stored = self._stored.get(key)
        return None if stored is None else FunctionStatus(stored.spec, stored.created_at)

    def detail(self, key: FunctionKey) -> FunctionDetail | None:
        status = self.status(key)
        return None if status is None else FunctionDetail(status, status.spec.settings.scheduler or "", (), {}, PairMetrics())

    def refusal(self, name: str) -> GnomonError | None:
        """The error for calls of `name` or `name.namespace`; None if the function is served or unknown."""
        if parse_key(name) not in self._stored:
            return None
        # The reason may name a secret, which callers of the function need not know.
        text = f"The function {name[:200]!r} cannot be served now."
        return GnomonError(503, "function_not_served", text, "Its log says why; it is tried again.", retry_after_s=RETRY_S)

    async def stop(self) -> None:
        """Stop retrying."""
        self._stored.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._stored:
            await asyncio.sleep(RETRY_S)
            for key in tuple(self._stored):
                try:
                    await self._retry(key)
                except Exception:  # noqa: BLE001 - the failure may be temporary
                    _LOG.exception("%s: the retry to serve it failed", key)
        self._task = None
