"""A cluster in virtual time: functions that share nodes, each with its own arrivals, simulated until the last answer.

    result = simulate([FunctionPlan("echo", settings, profile, arrivals)], [NodePlan("node-1", 16)], seed=1)["echo"]

Everything follows from the plans and the seed; a run repeats to the last bit.

A simulated function is the gateway's dispatcher and the autoscaler's runner, bound to the simulated platform. It decides nothing:
an event becomes a call of the dispatcher or the runner, and their effects and actions are carried out.

    arrival, batch ended, instance ready or gone, timer ─▶ Dispatcher ─▶ Send, Answer, Drained
    every half second, and when a request finds no live instance ─▶ Runner.tick ─▶ CreateBody, DestroyBody, CreateShadow, …

Live, the same calls are made by sockets, tasks and the event loop's timers.

`OnDemand` is the second tier of MArk: functions on demand beside the instances, for the share of requests that the scaling policy
lets overflow. A request that is sent there finds a function at once, is served alone and never enters the queue. The share alone
says which requests these are: with a share of 0.25 every fourth, so that a run repeats to the last bit and a burst overflows
evenly.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from gnomon_autoscaler import BUILT_IN, Policies, Runner, require, scaling_policy
from gnomon_autoscaler.controller import DecisionLog
from gnomon_autoscaler.registry import decides_by_profile
from gnomon_autoscaler.windows import BIN_S
from gnomon_core.actuation import Actuator, carry_out
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.interfaces import ScalingPolicy
from gnomon_core.scaling import (
    ChangeShadow,
    CreateBody,
    CreateShadow,
    Decision,
    DestroyBody,
    DestroyShadow,
    FunctionLoad,
    LoadCounters,
    PromoteShadow,
    Resize,
    SetBufferPlan,
)
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.dispatcher import Answer, Dispatcher, Drained, Effect, Send
from gnomon_gateway.dispatch.latency import GivenLatency, LearnedLatency, LiveLatency
from gnomon_gateway.queueing.queue import LaneKey, Request
from gnomon_gateway.scheduling.registry import SCHEDULING, Schedulers, scheduling_policy
from gnomon_simulator.costs import cost
from gnomon_simulator.events import Events, stream
from gnomon_simulator.profiles import Profile
from gnomon_simulator.results import OK, ON_DEMAND_INSTANCE, FunctionResult, Requests
from gnomon_simulator.simulated_platform import NodePlan, SimulatedPlatform

STEPS = 1000
"""Reports of progress during a run."""


def simulate(
    plans: Sequence[FunctionPlan],
    nodes: Sequence[NodePlan],
    seed: int = 1,
    *,
    watch: Callable[[float, float], None] | None = None,
) -> Mapping[str, FunctionResult]:
    """Run the functions together and return what each of them did, by name.

    `watch` is called `STEPS` times with the virtual seconds that have passed and their total; it changes nothing.
    """
    events = Events()
    end_s = max([plan.arrivals_s[-1] for plan in plans if plan.arrivals_s], default=0.0)
    if watch is not None:
        for step in range(1, STEPS + 1):
            events.at(step * end_s / STEPS, watch, step * end_s / STEPS, end_s)
    platform = SimulatedPlatform(nodes, events, stream(seed, "execution"))
    functions = [SimulatedFunction(plan, platform, events) for plan in plans]
    unanswered = {plan.name for plan in plans if plan.arrivals_s}

    def answered(name: str) -> None:
        """End the run with the last function's last answer: a timer of a request that was answered would prolong it."""
        if name in unanswered:
            unanswered.remove(name)
            if not unanswered:
                events.stop()

    for function in functions:
        function.answered = answered
    with _uncollected():
        for function in functions:
            function.begin()
        events.run()
    platform.end()
    return {function.plan.name: function.result() for function in functions}


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the cycle collector, which would traverse all waiting requests repeatedly and find no garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class FunctionPlan:
    """A function to simulate.

    `knowledge` says what the gateway knows of its latency: "given" (the profile's table, right by definition), "profiled" (the
    table as a first guess, corrected by what is measured) or "learned" (nothing but what is measured). `warm` instances are ready
    at second 0, when the function is deployed and the autoscaler is told so; `ticks_from_s` is when its rhythm of half seconds
    begins. `crashes_s` is when the oldest ready Body dies, `shadow_crashes_s` the oldest ready Shadow. `policies` and
    `schedulers` are those that the settings may name. `on_demand_s` is what a request takes on the functions beside the
    instances, which serve what the policy lets overflow; None where there are none.
    """

    name: str
    settings: Settings
    profile: Profile
    arrivals_s: Sequence[float]
    knowledge: str = "profiled"
    warm: int = 0
    ticks_from_s: float = 0.0
    crashes_s: Sequence[float] = ()
    shadow_crashes_s: Sequence[float] = ()
    policies: Policies = field(default_factory=lambda: BUILT_IN)
    schedulers: Schedulers = field(default_factory=lambda: SCHEDULING.built_in)
    on_demand_s: float | None = None

    def latency(self) -> LiveLatency:
        """The gateway's initial latency model."""
        if self.knowledge == "given":
            return GivenLatency(self.profile, exact=self.profile.noise.factor() is None)
        return LearnedLatency(self.profile if self.knowledge == "profiled" else None)

    def check(self, policy: ScalingPolicy) -> None:
        """Raise a 400 `bad_plan` for what cannot be simulated; `policy` is the one that the settings name."""
        if self.knowledge not in ("given", "profiled", "learned"):
            raise bad_request("bad_plan", f"knowledge {self.knowledge!r} is not known.", "It is given, profiled or learned.")
        variant = self.profile.variant
        if decides_by_profile(policy) and self.profile.model is None:
            raise bad_request(
                "bad_plan",
                f"{policy.name} decides by a model's profile, and {variant} has only a table of latencies.",
                "Name a profile that `gnomon models profile MODEL` wrote.",
            )
        if self.profile.seconds(variant, self.settings.cores, 1) is None:
            measured = ", ".join(str(cores) for cores in sorted(self.profile.latency.seconds))
            raise bad_request(
                "bad_plan",
                f"The profile of {variant} has no latency on {self.settings.cores} cores.",
                f"It was measured on {measured}; set gnomon/cores to one of them.",
            )


KEPT_DECISIONS = 1_000_000
NEVER_S = float("inf")


class SimulatedRequest(Request):
    """A request with its row in the results."""

    __slots__ = ("row",)
    row: int


class SimulatedFunction(Actuator[None]):
    """One simulated function: binds the gateway's dispatcher and the autoscaler's runner to the simulated platform."""

    def __init__(self, plan: FunctionPlan, platform: SimulatedPlatform, events: Events) -> None:
        scaling = scaling_policy(plan.settings.autoscaler, plan.settings, plan.policies)
        plan.check(scaling)
        require(scaling, platform.capabilities)
        self.plan = plan
        self.answered: Callable[[str], None] = lambda _: None
        """Called with the function's name at the first look of the autoscaler after the last answer."""
        self.requests = Requests.none_yet(plan.arrivals_s)
        self._settings = plan.settings
        self.buffer_plan: SetBufferPlan | None = None
        self._platform = platform
        self._events = events
        self._scheduler = plan.settings.scheduler or scaling.default_scheduler
        # As live: where a profile predicts latency, it bounds the batches of each instance.
        sized_by = (plan.profile.variant,) if plan.profile.model is not None else ()
        scheduling = scheduling_policy(self._scheduler, plan.settings, plan.schedulers)
        self._dispatcher = Dispatcher(plan.settings, scheduling, plan.latency(), events.now_s, sized_by=sized_by, lender=platform)
        self._dispatcher.learns = plan.knowledge != "given"
        self._runner = Runner(plan.name, plan.policies, plan.ticks_from_s)
        self._on_demand = OnDemand(plan.on_demand_s) if plan.on_demand_s is not None else None
        self._decisions = DecisionLog(plan.name, KEPT_DECISIONS)
        self._lane = LaneKey("events", plan.profile.variant)
        self._successes = {size: (OK,) * size for size in range(plan.settings.max_batch + 1)}
        self._timer_s = NEVER_S
        self._poked = False
        self._row = 0
        self._instance_counts: set[int] = set()
        self._counted_stamp: int | None = None
        """The stamp of the instances whose number was counted last."""
        self._seen_busy: dict[tuple[str, int], tuple[Instance, Instance]] = {}
        """The view of a busy instance by its id and number of requests, with the instance that the view was made from."""
        self._known_latency: tuple[int, tuple[float, ...]] | None = None
        """The revision of the latency model and what it predicts for the function's cores."""

    def begin(self) -> None:
        """Enter what is known beforehand: the first arrival, the deployment, the crashes."""
        for _ in range(self.plan.warm):
            warm = replace(self.plan.profile, load_s=0.0)
            self._platform.create(self.plan.name, warm, self._settings.cores, None, self._ready)
        for crash_s in self.plan.crashes_s:
            self._events.at(crash_s, self._crash, InstanceKind.BODY)
        for crash_s in self.plan.shadow_crashes_s:
            self._events.at(crash_s, self._crash, InstanceKind.SHADOW)
        if self.plan.arrivals_s:
            self._events.at(self.plan.arrivals_s[0], self._arrive)
        self._poke()
        self._events.at(self.plan.ticks_from_s, self._tick)

    def result(self) -> FunctionResult:
        """The result of the run."""
        now_s = self._events.now_s
        lifetimes = [lifetime for lifetime in self._platform.instance_lifetimes if lifetime.instance.function == self.plan.name]
        bodies = [lifetime for lifetime in lifetimes if lifetime.instance.kind is InstanceKind.BODY]
        return FunctionResult(
            function=self.plan.name,
            settings=self.plan.settings,
            scheduler=self._scheduler,
            duration_s=now_s,
            requests=self.requests,
            decisions=tuple(reversed(self._decisions.latest(KEPT_DECISIONS))),
            cost=cost(lifetimes, now_s, busy_core_s=self._dispatcher.counters(now_s).busy_core_s),
            fewest_instances=min(self._instance_counts, default=0),
            most_instances=max(self._instance_counts, default=0),
            bodies_s=tuple(
                (lifetime.instance.started_s, now_s if lifetime.gone_s is None else lifetime.gone_s) for lifetime in bodies
            ),
        )

    # Events

    def _arrive(self) -> None:
        now_s, row = self._events.now_s, self._row
        self._row = row + 1
        if self._row < len(self.plan.arrivals_s):
            self._events.at(self.plan.arrivals_s[self._row], self._arrive)
        if self._on_demand is not None and self._on_demand.takes(self._runner.overflow):
            self._on_demand.serve(row, self.requests, now_s)
            return
        request = SimulatedRequest(self._lane, now_s, now_s + self._settings.deadline_s)
        request.row = row
        self._execute(self._dispatcher.arrive([request], now_s))
        if not self._dispatcher.workers.by_id:
            self._poke()

    def _finish(self, instance_id: str, batch_id: int, size: int) -> None:
        if self._platform.has(instance_id):
            self._execute(self._dispatcher.finished(instance_id, batch_id, self._successes[size], self._events.now_s))

    def _ready(self, instance: Instance) -> None:
        self._count_starting()
        most, now_s, memory_mb = self._settings.max_batch, self._events.now_s, instance.memory_mb
        self._execute(
            self._dispatcher.instance_ready(
                instance.id, instance.cores, most, now_s, memory_mb=memory_mb, idle_cores=instance.idle_cores
            )
        )
        self._poke()

    def _pair_changed(self, body: Instance) -> None:
        self._execute(self._dispatcher.pair_changed(body.id, body.pair, self._events.now_s))
        self._poke()

    def _crash(self, kind: InstanceKind) -> None:
        instances = [instance for instance in self._platform.instances(self.plan.name) if instance.kind is kind]
        victim = next((instance for instance in instances if instance.state is InstanceState.READY), None)
        if victim is None:
            return
        if kind is InstanceKind.SHADOW:
            self._end_shadow(victim.id)
        else:
            self._platform.destroy(victim.id)
            self._execute(self._dispatcher.instance_gone(victim.id, self._events.now_s))
        self._poke()

    def _end_shadow(self, shadow_id: str) -> None:
        """End an instance; a Shadow's Body continues without it."""
        body = self._platform.destroy(shadow_id)
        if body is not None:
            self._execute(self._dispatcher.pair_changed(body.id, body.pair, self._events.now_s))

    def _timer(self, set_for_s: float) -> None:
        if set_for_s != self._timer_s:
            return  # the timer was set to an earlier time meanwhile
        self._timer_s = NEVER_S
        now_s = self._events.now_s
        self._execute(self._dispatcher.timer(now_s) if self._dispatcher.wake_s <= now_s else [])

    def _tick(self) -> None:
        self._decide()
        if self._row < len(self.plan.arrivals_s) or self._dispatcher.in_system:
            self._events.at(self._events.now_s + BIN_S, self._tick)
        else:
            self.answered(self.plan.name)

    def _poke(self) -> None:
        """Make the autoscaler decide right after this event: instances came or went, or a request found none."""
        if not self._poked:
            self._poked = True
            self._events.at(self._events.now_s, self._poked_decide)

    def _poked_decide(self) -> None:
        self._poked = False
        self._decide()

    # Effects of the dispatcher

    def _execute(self, effects: Sequence[Effect]) -> None:
        events = self._events
        for effect in effects:
            if isinstance(effect, Send):
                batch = effect.batch
                end_s = events.now_s + self._platform.execution_s(batch.instance_id, batch.size)
                events.at(end_s, self._finish, batch.instance_id, batch.id, len(batch.requests))
            elif isinstance(effect, Answer):
                self._record(effect)
            elif isinstance(effect, Drained):
                self._end_shadow(effect.instance_id)
                self._execute(self._dispatcher.instance_gone(effect.instance_id, events.now_s))
                self._poke()
        wake_s = self._dispatcher.wake_s
        if wake_s < self._timer_s:
            self._timer_s = wake_s
            events.at(wake_s, self._timer, wake_s)

    def _record(self, answer: Answer) -> None:
        request, error, _ = answer
        assert isinstance(request, SimulatedRequest)
        status = OK if error is None else error.status
        self.requests.answered(request.row, self._events.now_s, status, request.batch)

    # Decisions of the runner

    def _decide(self) -> None:
        now_s = self._events.now_s
        stamp, counters = self._platform.stamp(self.plan.name), self._counters()
        # Between two turns of the policy, while nothing but requests has changed, the counters are all that there is to see.
        if not (self._runner.between_turns(now_s) and self._runner.record_counters(now_s, counters, stamp)):
            decision = self._runner.tick(now_s, self._load(counters), stamp)
            if decision is not None:
                error = self._apply(decision)
                self._decisions.add(now_s, self._runner.policy_name, decision, error)
            stamp = self._platform.stamp(self.plan.name)
        if stamp != self._counted_stamp:
            self._counted_stamp = stamp
            self._instance_counts.add(sum(body.state is not InstanceState.DRAINING for body in self._bodies()))

    def _apply(self, decision: Decision) -> str:
        try:
            carry_out(self, decision.actions)
        except GnomonError as refused:
            self._runner.refused(self._events.now_s, refused)
            return f"{refused.code}: {refused}"
        self._runner.carried_out(decision)
        return ""

    # Actuator

    def create_body(self, action: CreateBody) -> None:
        self._platform.create(
            self.plan.name,
            self.plan.profile,
            action.cores,
            action.node,
            self._ready,
            memory_mb=action.memory_mb,
            idle_cores=action.idle_cores,
        )
        self._count_starting()

    def destroy_body(self, action: DestroyBody) -> None:
        self._platform.drain(action.id)
        self._count_starting()
        self._execute(self._dispatcher.drain(action.id, self._events.now_s))

    def create_shadow(self, action: CreateShadow) -> None:
        self._platform.create_shadow(action.body, action.pair, self._pair_changed)

    def change_shadow(self, action: ChangeShadow) -> None:
        self._platform.change_shadow(action.id, action.pair, self._pair_changed)

    def destroy_shadow(self, action: DestroyShadow) -> None:
        self._end_shadow(action.id)

    def promote_shadow(self, action: PromoteShadow) -> None:
        self._platform.promote_shadow(action.id, self._pair_changed, self._ready)
        self._count_starting()

    def resize(self, action: Resize) -> None:
        self._platform.resize(action.id, action.cores, action.idle_cores)
        if action.id in self._dispatcher.workers.by_id:
            now_s = self._events.now_s
            most, idle_cores = self._settings.max_batch, action.idle_cores
            self._execute(self._dispatcher.instance_ready(action.id, action.cores, most, now_s, idle_cores=idle_cores))

    def set_buffer_plan(self, action: SetBufferPlan) -> None:
        plan = self.buffer_plan = action
        self._settings = replace(self._settings, max_batch=plan.max_batch, max_wait_s=plan.max_wait_s)
        policy = scheduling_policy(self._scheduler, self._settings, self.plan.schedulers)
        now_s = self._events.now_s
        self._execute(self._dispatcher.set_policy(self._settings, policy, now_s))
        for worker in list(self._dispatcher.workers.by_id.values()):
            self._execute(
                self._dispatcher.instance_ready(
                    worker.id, worker.cores, plan.max_batch, now_s, memory_mb=worker.memory_mb, idle_cores=worker.idle_cores
                )
            )

    def _counters(self) -> LoadCounters:
        counters = self._dispatcher.counters(self._events.now_s)
        return counters if self._on_demand is None else self._on_demand.counted(counters)

    def _load(self, counters: LoadCounters) -> FunctionLoad:
        settings = self.plan.settings  # as live: a buffer plan changes what the dispatcher does, not what was deployed
        latency, variant = self._dispatcher.latency, self.plan.profile.variant
        sizes = {body.size for body in self._bodies()}
        return FunctionLoad(
            settings=settings,
            counters=counters,
            instances=tuple([self._seen(instance) for instance in self._platform.instances(self.plan.name)]),
            nodes=self._platform.nodes(),
            latency_s=self._latency_s(),
            profile=self.plan.profile.model,
            latency_spread=max((latency.spread(variant, size) or 0.0 for size in sizes), default=0.0),
            plan=self.buffer_plan,
        )

    def _latency_s(self) -> tuple[float, ...]:
        """Latency of batches of 1, 2, … on the function's cores; empty if unknown."""
        latency, settings = self._dispatcher.latency, self.plan.settings
        if self._known_latency is None or self._known_latency[0] != latency.revision:
            sizes = range(1, settings.max_batch + 1)
            predicted_s = [latency.seconds(self.plan.profile.variant, settings.cores, batch) for batch in sizes]
            latencies_s = tuple([seconds for seconds in predicted_s if seconds is not None]) if None not in predicted_s else ()
            self._known_latency = latency.revision, latencies_s
        return self._known_latency[1]

    def _seen(self, instance: Instance) -> Instance:
        """The instance with the state that only the dispatcher knows."""
        worker = self._dispatcher.workers.by_id.get(instance.id)
        if worker is None or not worker.batches:
            return instance
        in_flight = sum([len(batch.requests) for batch in worker.batches.values()])
        pair_of_views = self._seen_busy.get((instance.id, in_flight))
        if pair_of_views is None or pair_of_views[0] is not instance:
            pair_of_views = self._seen_busy[instance.id, in_flight] = instance, replace(instance, busy=True, in_flight=in_flight)
        return pair_of_views[1]

    def _count_starting(self) -> None:
        self._dispatcher.workers.set_starting(sum(body.state is InstanceState.STARTING for body in self._bodies()))

    def _bodies(self) -> list[Instance]:
        return [instance for instance in self._platform.instances(self.plan.name) if instance.kind is InstanceKind.BODY]


_ROUNDING = 1e-9


@dataclass(slots=True)
class OnDemand:
    """The tier of functions on demand: a request takes `service_s` there."""

    service_s: float
    served: int = field(default=0, init=False)
    _owed: float = field(default=0.0, init=False)
    _last_s: float = field(default=0.0, init=False)

    def takes(self, share: float) -> bool:
        """True if the next request goes there, of which this share shall."""
        self._owed = self._owed + share if share > 0.0 else 0.0
        if self._owed < 1.0 - _ROUNDING:
            return False
        self._owed -= 1.0
        return True

    def serve(self, row: int, rows: Requests, now_s: float) -> None:
        """Record the request's answer."""
        self.served += 1
        self._last_s = now_s
        rows.dispatched_s[row], rows.finished_s[row] = now_s, now_s + self.service_s
        rows.status[row], rows.batch[row], rows.instance[row] = OK, 1, rows.number(ON_DEMAND_INSTANCE)

    def counted(self, counters: LoadCounters) -> LoadCounters:
        """The gateway's counters of both tiers together, because predictors must see all arrivals."""
        if not self.served:
            return counters
        return replace(
            counters,
            arrivals=counters.arrivals + self.served,
            successes=counters.successes + self.served,
            last_request_s=max(counters.last_request_s, self._last_s),
        )
