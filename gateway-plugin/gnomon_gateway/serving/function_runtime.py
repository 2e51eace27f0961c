"""One deployed function while it serves: the dispatcher bound to real instances, a real clock and the event loop's timer.

    HTTP ─▶ submit(request) ─▶ Dispatcher ─▶ BatchChannel.run(frame) … done(frame) ─▶ Dispatcher ─▶ request.responder

The owner (who talks to the platform) says which instances there are: `instance_ready`, `instance_gone`, `drain`. It is called
back when a request waits and there is no instance (`on_demand`), and when an instance no longer answers (`on_frozen`), so that it
can replace it. It says why the function cannot start, where it cannot (`cannot_start`). Everything here runs on the event loop
and returns at once; only draining is awaited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import LoadCounters
from gnomon_core.seams import BatchChannel, SchedulingPolicy
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature
from gnomon_gateway.dispatch.dispatcher import Dispatcher
from gnomon_gateway.dispatch.latency import LiveLatency
from gnomon_gateway.dispatch.profiled import Corrected
from gnomon_gateway.dispatch.refusals import function_removed
from gnomon_gateway.queueing.request import ANSWERED, Request
from gnomon_gateway.serving.delivery import Delivery
from gnomon_gateway.serving.lanes import lanes


class FunctionRuntime(Delivery):
    """A function's queue, policy, instances and counters, live.

    `signature` is None for a function that takes HTTP requests as they are; `profile` is its model's, None without one. `epoch`
    names this owner of the queue: instances refuse batches of an owner before it.
    """

    def __init__(
        self,
        key: FunctionKey,
        settings: Settings,
        policy: SchedulingPolicy,
        latency: LiveLatency,
        *,
        signature: ModelSignature | None = None,
        profile: ModelProfile | None = None,
        epoch: int = 1,
        on_demand: Callable[[], None] = lambda: None,
        cannot_start: Callable[[], GnomonError | None] = lambda: None,
        on_frozen: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self.name = str(key)
        self.key = key
        self.latency = latency
        self._set_up(settings, signature, profile)
        self._max_batch = settings.max_batch
        dispatcher = Dispatcher(settings, policy, latency, time.monotonic(), sized_by=self._foretold)
        super().__init__(self.name, dispatcher, epoch, on_frozen)
        self._on_demand = on_demand
        self._cannot_start = cannot_start
        self._arrived: list[Request] = []
        self._been_ready: set[str] = set()

    # Requests

    def submit(self, request: Request) -> None:
        """Take a request that has arrived just now (`arrived_s`, on the monotonic clock).

        Its responder is called exactly once, now or later, unless `left` is called first.
        """
        self.metrics.started += 1
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._admit)
        self._arrived.append(request)

    def turn_away(self, request: Request) -> None:
        """Refuse a request now, and count it, because there is no room for its body, which has not been read."""
        self.metrics.started += 1
        self._carry_out(self.dispatcher.turn_away(request, time.monotonic()))
        if not self.dispatcher.workers.by_id:
            self._on_demand()

    def _admit(self) -> None:
        """Let in what has arrived in this turn of the loop: requests that come together leave together, and nobody waits.

        Who closes the connection right behind a request is left out: the loop tells of that a turn later.
        """
        if self._disowned:
            self.give_back()
        for client in [request.client for request in self._arrived if request.client is not None and request.client.has_left()]:
            client.lost()  # which takes its request from those that have arrived
        arrived, self._arrived = self._arrived, []
        if not arrived:
            return
        refusal = self.refusal()
        if refusal is not None:
            self._carry_out(self.dispatcher.refuse(arrived, refusal, time.monotonic()))
            return
        self._carry_out(self.dispatcher.arrive(arrived, time.monotonic()))
        if not self.dispatcher.workers.by_id:
            self._on_demand()

    def refusal(self) -> GnomonError | None:
        """What a call is answered now because the function cannot start; None where an instance lives or may soon."""
        return None if self.dispatcher.workers.by_id else self._cannot_start()

    def refuse_waiting(self) -> None:
        """Answer everything that waits where the function cannot start."""
        refusal = self.refusal()
        if refusal is not None:
            self.give_up(refusal)

    def left(self, request: Request) -> None:
        """The client of this request has gone; its responder is not called any more."""
        self.metrics.left += 1
        request.responder = None
        if request in self._arrived:
            self._arrived.remove(request)
            request.state = ANSWERED
        else:
            self._carry_out(self.dispatcher.left(request, time.monotonic()))

    def has_room_for(self, body_bytes: int) -> bool:
        """Whether the queue would take a request of this size now. Asked before a large body is read."""
        return self.dispatcher.queue.has_room(body_bytes)

    # Instances

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None:
        """Route batches to this instance from now on."""
        self._channels[instance.id] = channel
        self._been_ready.add(instance.id)
        self._health.start()
        effects = self.dispatcher.instance_ready(
            instance.id,
            instance.cores,
            self._max_batch,
            time.monotonic(),
            memory_mb=instance.memory_mb,
            concurrency=instance.concurrency,
        )
        self._carry_out(effects)

    def instance_resized(self, instance_id: str, cores: int) -> None:
        """The instance has another number of cores."""
        if instance_id in self._channels:
            self._carry_out(self.dispatcher.instance_ready(instance_id, cores, self._max_batch, time.monotonic()))

    def pair_changed(self, instance_id: str, pair: Pair | None) -> None:
        """From its next batch on this Body works with a Shadow, or alone."""
        self._carry_out(self.dispatcher.pair_changed(instance_id, pair, time.monotonic()))

    async def drain(self, instance_id: str) -> None:
        """Stop routing to the instance and return when nothing is in flight there. It may then be stopped."""
        drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drains.setdefault(instance_id, []).append(drained)
        self._carry_out(self.dispatcher.drain(instance_id, time.monotonic()))
        await drained

    async def drain_all(self) -> None:
        """Return when everything that was let in has been answered; nothing is sent to any instance afterwards.

        Bounded by the longest deadline. The caller has seen to it that nothing new is submitted. An instance may still execute
        what nobody waits for any more: a batch whose deadlines have passed, perhaps one that never ends.
        """
        self._admit()
        while self.dispatcher.in_system:
            emptied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._emptied.append(emptied)
            await emptied
        for instance_id in list(self._channels):
            self._carry_out(self.dispatcher.drain(instance_id, time.monotonic()))

    def give_up(self, error: GnomonError) -> None:
        """Answer everything that waits with this error."""
        self._admit()
        self._carry_out(self.dispatcher.give_up(error, time.monotonic()))

    def give_back(self) -> None:
        arrived, self._arrived = self._arrived, []
        for request in arrived:
            request.state = ANSWERED
            self._hand_on(request)
        super().give_back()

    async def quiet(self) -> None:
        """Return when nobody waits for an answer and no instance executes anything of this queue."""
        while self.dispatcher.in_system or self.dispatcher.workers.busy:
            emptied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._emptied.append(emptied)
            await emptied

    def learn_afresh(self) -> None:
        """Another handler is to serve: what the one before it took says nothing of this one. A model takes what it takes."""
        if self.dispatcher.learns and self.settings.model is None:
            for variant in set(self.variants):
                self.latency.forget(variant)

    def removed(self) -> None:
        """Nobody makes an instance for it any more. What its last batches take says nothing of another function by its name."""
        self.learn_afresh()
        self.dispatcher.learns = False
        self._on_demand = lambda: self.give_up(function_removed())

    def close(self) -> None:
        """Release the loop's timers. Nothing is submitted afterwards."""
        self._health.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_s = None, float("inf")

    # Settings

    def update(
        self,
        settings: Settings,
        policy: SchedulingPolicy,
        signature: ModelSignature | None = None,
        profile: ModelProfile | None = None,
    ) -> None:
        """Serve by other settings and another policy from now on. What waits stays."""
        self._set_up(settings, signature, profile)
        self._schedule_by(policy, settings.max_batch)

    def measured(self, profile: ModelProfile | None) -> None:
        """Its model's profile is another one from now on. What waits stays, and what was planned of its batches."""
        self._set_up(self.settings, self.signature, profile)
        self._schedule_by(self.policy, self._max_batch)

    def plan_buffer(self, policy: SchedulingPolicy, max_batch: int) -> None:
        """Make batches by this policy, of so many samples at most, until the function is deployed anew.

        What was deployed stays what it is: how large a single request may be, and up to which batch latency is told.
        """
        self._schedule_by(policy, max_batch)

    def _schedule_by(self, policy: SchedulingPolicy, max_batch: int) -> None:
        self._max_batch = max_batch
        now_s = time.monotonic()
        effects = self.dispatcher.set_policy(self.settings, policy, now_s, sized_by=self._foretold)
        for worker in list(self.dispatcher.workers.by_id.values()):
            effects += self.dispatcher.instance_ready(worker.id, worker.cores, max_batch, now_s, memory_mb=worker.memory_mb)
        self._carry_out(effects)

    def set_starting(self, count: int) -> None:
        """How many instances will be ready soon, for policies that want to know."""
        self.dispatcher.workers.set_starting(count)

    # Readings

    @property
    def policy(self) -> SchedulingPolicy:
        return self.dispatcher.policy

    @property
    def ready(self) -> int:
        """How many instances can take batches."""
        return self.dispatcher.workers.capacity().instances

    def load(self) -> LoadCounters:
        """The function's load, cumulative and now."""
        return self.dispatcher.counters(time.monotonic())

    def events(self) -> tuple[object, ...]:
        """A value that is another one as soon as its load has changed."""
        return self.dispatcher.events()

    @property
    def has_served(self) -> bool:
        """Whether any request has come."""
        return self.metrics.started > 0

    @property
    def busy(self) -> bool:
        """Whether requests wait or execute."""
        return self.dispatcher.in_system > 0

    @property
    def starting(self) -> int:
        """How many instances will be ready soon."""
        return self.dispatcher.workers.starting

    def has_been_ready(self, instance_id: str) -> bool:
        """Whether the instance has been ready. Also of one whose channel has closed, until it is forgotten."""
        return instance_id in self._been_ready

    def in_flight(self, instance_id: str) -> int:
        """How many requests the instance executes; 0 when it is idle or unknown."""
        worker = self.dispatcher.workers.by_id.get(instance_id)
        return sum([len(batch.requests) for batch in worker.batches.values()]) if worker is not None else 0

    def all_in_flight(self) -> dict[str, int]:
        """The same of all instances that are not idle."""
        return {instance_id: count for instance_id in self.dispatcher.workers.by_id if (count := self.in_flight(instance_id))}

    def largest_batches(self) -> dict[str, int]:
        """How many samples each instance takes at once."""
        return {worker.id: worker.slot.max_batch for worker in self.dispatcher.workers.by_id.values()}

    def forget(self, instance_id: str) -> bool:
        """The instance will not be heard of again; whether it had ever answered."""
        served = instance_id in self._served or self._executes_suspect(instance_id)
        self._served.discard(instance_id)
        self._been_ready.discard(instance_id)
        return served

    def latency_s(self) -> tuple[float, ...]:
        """Predicted latency of an instance with the function's cores for batches of 1, 2, … `max_batch`; empty if unknown.

        Events and tensors of a model take different times: where both are known and called, the longer one is told.
        """
        sizes, variants = range(1, self.settings.max_batch + 1), self.dispatcher.sizing.counted(self.variants)
        rows = [[self.latency.seconds(variant, self.settings.cores, size) for size in sizes] for variant in variants]
        known = [[seconds for seconds in row if seconds is not None] for row in rows if None not in row]
        return tuple([max(both) for both in zip(*known, strict=True)])

    def latency_spread(self, sizes: Iterable[int]) -> float:
        """How far batches have lately been from what was predicted, as a share of it: the most of instances of these sizes."""
        return max((self.latency.spread(variant, size) or 0.0 for size in sizes for variant in self.variants), default=0.0)

    def ratios(self) -> Mapping[int, float]:
        """By cores, how long batches take against what the profile foretold; only where enough were measured."""
        return self.latency.corrections(self._foretold)

    def profile(self, ratios: Mapping[int, float] | None = None) -> ModelProfile | None:
        """Its model's profile, corrected by what was measured, here or by whoever gives these ratios; None without one."""
        return self._profile.by(ratios or self.ratios()) if self._profile is not None else None

    def _set_up(self, settings: Settings, signature: ModelSignature | None, profile: ModelProfile | None) -> None:
        """What follows from the deployment: the keys of its latencies, `variant` for tensors, `_foretold` those of a profile."""
        self.settings, self.signature = settings, signature
        self.variant = settings.model or self.name
        named = lanes(self.variant, signature)
        self.event_lane, self.stream_lane, self.tensor_lane = named
        self._profile = Corrected(profile) if profile is not None else None
        self.variants = named.variants
        self.replay_safe = signature is not None or settings.retry
        """Whether a request may be executed twice: inference changes nothing, and of a handler its author says so."""
        self._foretold = named.variants if profile is not None else ()
