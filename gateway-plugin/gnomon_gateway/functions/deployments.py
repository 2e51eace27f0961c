"""One deployed function: its deployment, its runtime, and which of its instances are wanted.

Functions that are stored and cannot be served, such as one whose secret has been deleted: known all the same, and tried again.

    cannot be served ▶ its log says why ▶ tried again every five seconds ─┬─ served ──▶ forgotten
                                                                          └─ removed ─▶ forgotten

Meanwhile the API lists them without a replica, and calls of them are refused with 503: what is temporary is no 404.
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
from gnomon_gateway.functions.metrics import PairMetrics
from gnomon_gateway.replicas.state_sync import NOTHING, Elsewhere, summed
from gnomon_gateway.service import FunctionDetail, FunctionStatus

_LOG = logging.getLogger("gnomon.functions")

SchedulerOf: TypeAlias = Callable[[Settings], SchedulingPolicy]
"""Makes the scheduling policy of a function with these settings."""


@dataclass(slots=True)
class Deployed:
    """A function while it is deployed.

    `version` grows whenever instances must be replaced; `keep_old` is how many instances were serving when the last replacement
    began, so that no fewer serve until the new ones do. `draining` are instances that get nothing more, `retired` those of them
    that make room for one of the present version. `shadows` are its Shadows, each with its Body. `profile` is what was measured
    of its model, `elsewhere` what other replicas have of it. `plan` are the bounds of its batches in force, None as deployed.
    `start_failures` say why instances are missing; `been_ready` is whether one has been ready since the function was deployed,
    or since this process looks after it.
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
    shadows: dict[str, str] = field(default_factory=dict)
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    plan: SetBufferPlan | None = None
    start_failures: StartFailures = field(default_factory=StartFailures)
    been_ready: bool = False

    @property
    def name(self) -> str:
        return self.runtime.name

    def update(
        self, spec: FunctionSpec, policy: SchedulerOf, signature: ModelSignature | None, profile: ModelProfile | None
    ) -> None:
        """It is what this says from now on. A plan goes on as long as the settings that it was made for."""
        plan = self.plan if spec.settings == self.spec.settings else None
        self.spec, self.profile, self.plan = spec, profile, None
        self.runtime.update(spec.settings, policy(spec.settings), signature, profile)
        self.plan_buffer(plan, policy)

    def plan_buffer(self, plan: SetBufferPlan | None, policy: SchedulerOf) -> None:
        """Make its batches within these bounds from now on, None for those that it was deployed with."""
        if plan == self.plan:
            return
        settings = self.spec.settings
        if plan is not None:
            settings = replace(settings, max_batch=plan.max_batch, max_wait_s=plan.max_wait_s)
        self.runtime.plan_buffer(policy(settings), settings.max_batch)
        self.plan = plan

    async def answer_all(self) -> None:
        """It is removed: answer what waits, as far as somebody can, and return when nothing is in flight or its time is over."""
        self.runtime.removed()
        if not self.runtime.ready:
            self.runtime.fail_waiting(function_removed())
        try:
            await asyncio.wait_for(self.runtime.drain_all(), self.spec.settings.deadline_s + 5.0)
        except TimeoutError:
            _LOG.warning("%s was removed with requests that did not end in time", self.name)

    def seen(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        """These instances, with what only the dispatcher knows."""
        return tuple(self._seen(instance) for instance in instances)

    def current(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        """The instances of this version, with what only the dispatcher knows."""
        return tuple(self._seen(instance) for instance in instances if instance.version == self.version)

    def live(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        """The Bodies of this version that serve or are about to."""
        return tuple(
            instance
            for instance in self.current(instances)
            if instance.kind is InstanceKind.BODY and instance.state is not InstanceState.DRAINING
        )

    def old(self, instances: Sequence[Instance], state: InstanceState = InstanceState.READY) -> tuple[Instance, ...]:
        """Serving Bodies of earlier versions, or those in another state. Their Shadows go with them."""
        return tuple(
            instance
            for instance in instances
            if instance.kind is InstanceKind.BODY
            and instance.version < self.version
            and instance.id not in self.draining
            and instance.state is state
        )

    def made_up_for(self, instances: Sequence[Instance], wanted: int | None) -> tuple[Instance, ...]:
        """The instances of earlier versions that new ones make up for, where so many are wanted."""
        old = self.old(instances)
        live = self.live(instances)
        ready = sum(instance.state is InstanceState.READY for instance in live)
        # Three served before, two new ones are wanted and one of them is ready: one old one may stay until the second is.
        needed = max(0, min(self.keep_old, max(len(live), 1) if wanted is None else wanted) - ready)
        return old[: max(0, len(old) - needed)]

    def load(self, instances: Sequence[Instance], nodes: tuple[Node, ...]) -> FunctionLoad:
        """What the autoscaler sees: instances of earlier versions are not its business, they go when the new ones serve."""
        runtime, others, current = self.runtime, self.elsewhere.of(self.name), self.current(instances)
        counters = runtime.load()
        # Another replica may have gone long ago: who has served last knows what batches take.
        told = NOTHING if counters.last_request_s > others.counters.last_request_s else others
        return FunctionLoad(
            settings=self.spec.settings,
            counters=summed(counters, others.counters),
            instances=current,
            nodes=nodes,
            latency_s=told.latency_s or runtime.latency_s() or others.latency_s,
            profile=runtime.profile(told.ratios),
            latency_spread=told.spread or runtime.latency_spread({one.size for one in current if one.kind is InstanceKind.BODY}),
            plan=self.plan,
        )

    def stamp(self, instances: Sequence[Instance]) -> object:
        """What `load` is made of, but for the nodes, as far as it changes: quicker to make, and to compare, than that."""
        return self.standing(instances), self.elsewhere.stamp(self.name), self.runtime.events()

    def standing(self, instances: Sequence[Instance]) -> object:
        """The part of `stamp` that no request changes."""
        return self.spec.settings, self.plan, self.profile, self.version, instances, len(self.draining)

    def counters(self) -> LoadCounters:
        """Those of `load`."""
        return summed(self.runtime.load(), self.elsewhere.of(self.name).counters)

    def _seen(self, instance: Instance) -> Instance:
        in_flight = self.runtime.in_flight(instance.id) + self.elsewhere.in_flight(self.name, instance.id)
        state = InstanceState.DRAINING if instance.id in self.draining else instance.state
        if state is instance.state and in_flight == instance.in_flight:
            return instance  # nearly always, and a copy costs more than everything else that is seen of a function
        return replace(instance, state=state, busy=in_flight > 0, in_flight=in_flight)


AGAIN_S = 5.0


class Unserved:
    """`again` tries to serve a function once more, and adds it again where that fails. `log` keeps a line of ours for it."""

    def __init__(self, again: Callable[[FunctionKey], Awaitable[None]], log: Callable[[FunctionKey, str, str], None]) -> None:
        self._again, self._log = again, log
        self._stored: dict[FunctionKey, StoredFunction] = {}
        self._reasons: dict[FunctionKey, str] = {}
        self._task: asyncio.Task[None] | None = None

    def __contains__(self, key: FunctionKey) -> bool:
        return key in self._stored

    def __iter__(self) -> Iterator[FunctionKey]:
        return iter(self._stored)

    def add(self, stored: StoredFunction, reason: str) -> None:
        """It cannot be served. A reason that has been told already is not told again."""
        key = stored.spec.key
        self._stored[key] = stored
        if self._reasons.get(key) != reason:
            self._reasons[key] = reason
            self._log(key, "", f"gnomon: {key} is not served: {reason}")
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def forget(self, key: FunctionKey) -> None:
        """It is served, or there is no such function any more."""
        self._stored.pop(key, None)
        self._reasons.pop(key, None)

    def get(self, key: FunctionKey) -> StoredFunction | None:
        """What is stored of it; None for a function that is none of these."""
        return self._stored.get(key)

    def status(self, key: FunctionKey) -> FunctionStatus | None:
        stored = self._stored.get(key)
        return None if stored is None else FunctionStatus(stored.spec, stored.created_at)

    def detail(self, key: FunctionKey) -> FunctionDetail | None:
        status = self.status(key)
        return None if status is None else FunctionDetail(status, status.spec.settings.scheduler or "", (), {}, PairMetrics())

    def refusal(self, name: str) -> GnomonError | None:
        """What a call of `name` or `name.namespace` is answered; None where that is none of these."""
        if parse_key(name) not in self._stored:
            return None
        # The reason may name a secret, and whoever may call a function need not know of those.
        text = f"The function {name[:200]!r} cannot be served now."
        return GnomonError(503, "function_not_served", text, "Its log says why; it is tried again.", retry_after_s=AGAIN_S)

    async def stop(self) -> None:
        """Try no more."""
        self._stored.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._stored:
            await asyncio.sleep(AGAIN_S)
            for key in tuple(self._stored):
                try:
                    await self._again(key)
                except Exception:  # noqa: BLE001 - whatever it is, it may be over the next time
                    _LOG.exception("%s could not be looked at again", key)
        self._task = None
