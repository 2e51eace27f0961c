"""One deployed function while it serves: the dispatcher bound to real instances, a real clock and the event loop's timer.

    HTTP ─▶ submit(request) ─▶ Dispatcher ─▶ BatchChannel.run(frame) … done(frame) ─▶ Dispatcher ─▶ request.responder

The owner (who talks to the platform) says which instances there are: `instance_ready`, `instance_gone`, `drain`. It is called
back when a request waits and there is no instance (`on_demand`), and when an instance no longer answers (`on_frozen`), so that it
can replace it. It says why the function cannot start, where it cannot (`cannot_start`). Everything here runs on the event loop
and returns at once; only draining is awaited.

What the dispatcher wants, done: batches to instances, answers to clients, and its timer on the event loop.

    Send ─▶ BatchChannel.run(frame) … done(frame) ─▶ Dispatcher.finished ─▶ Answer ─▶ request.responder
    Cancel ─▶ BatchChannel.cancel        Drained ─▶ whoever awaits it        wake_s ─▶ call_later

A channel that closes before its batch has ended means that the instance is gone. A stream that breaks off may also mean that the
function gave up: there the canary tells. An answer that cannot be written is its own request's affair: the others of its batch
count as answered already, and nobody else would tell them anything.

The kinds of requests that a function takes, made once, so that the hot path compares by identity.

How the request path finds a function.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol, cast

from gnomon_core.background import Background
from gnomon_core.errors import GnomonError, not_found
from gnomon_core.fleet import Instance
from gnomon_core.functions import DEFAULT_NAMESPACE, FunctionKey
from gnomon_core.interfaces import BatchChannel, SchedulingPolicy
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import LoadCounters
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.dispatch.dispatcher import Answer, Cancel, Dispatcher, Effects, Send, function_removed, queue_moved
from gnomon_gateway.dispatch.latency import LiveLatency
from gnomon_gateway.functions.health import PROBE_TIMEOUT_S, Health
from gnomon_gateway.functions.metrics import FunctionMetrics
from gnomon_gateway.functions.profiles import Corrected
from gnomon_gateway.http.exchange import internal_error
from gnomon_gateway.queueing.request import ANSWERED, Batch, LaneKey, Request, Responder

LOOK_AFTER_S = 0.005
"""Whether a client is still there is asked of the kernel for requests that have waited so long."""

_LOG = logging.getLogger(__name__)


class Delivery:
    """A dispatcher bound to the channels of real instances and to the event loop's timer.

    `FunctionRuntime` stands on it: one object in two rooms, because a request passes from one to the other several times.
    """

    _max_batch: int
    """How many samples a batch has at most."""

    def __init__(self, name: str, dispatcher: Dispatcher, epoch: int, on_frozen: Callable[[str, str], None]) -> None:
        self.name = name
        self.dispatcher = dispatcher
        self.metrics = FunctionMetrics()
        self._epoch = epoch
        self._outdated: Callable[[int], None] | None = None
        self._disowned = False
        self._channels: dict[str, BatchChannel] = {}
        self._served: set[str] = set()
        self._drains: dict[str, list[asyncio.Future[None]]] = {}
        self._emptied: list[asyncio.Future[None]] = []
        self._background = Background()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = float("inf")
        self._health = Health(dispatcher, self._channels, partial(self._frozen, on_frozen))

    def instance_gone(self, instance_id: str, reason: str) -> None:
        """The instance has ended. The batch that it executed is answered with 502, or run again where that is safe."""
        channel = self._channels.pop(instance_id, None)
        if channel is not None:
            _LOG.info("instance %s of %s is gone: %s", instance_id, self.name, reason)
        unread = channel is not None and channel.unread
        self._carry_out(self.dispatcher.instance_gone(instance_id, time.monotonic(), unread=unread))

    def own(self, epoch: int, outdated: Callable[[int], None] | None = None) -> None:
        """This replica owns the queue since a map of this epoch. `outdated` is called when an instance knows of a newer one."""
        self._epoch, self._outdated, self._disowned = epoch, outdated, False

    def disown(self) -> None:
        """Another replica owns the queue: from now on nothing is sent to any instance. See `give_back`."""
        self._disowned = True
        self.give_back()

    def give_back(self) -> None:
        """Hand everything that waits to whoever has the queue now; nothing of it was executed. What executes goes on."""
        for effect in self.dispatcher.give_up(queue_moved(), time.monotonic()):
            if isinstance(effect, Answer):
                self._hand_on(effect.request)
        self._carry_out([])

    def _hand_on(self, request: Request) -> None:
        """The request leaves this queue without an answer."""
        responder, request.responder = request.responder, None
        self.metrics.left += 1
        if responder is not None:
            try:
                responder.refuse(queue_moved())
            except Exception:  # noqa: BLE001 - others are still to be handed on
                _give_up_on(responder)

    def _carry_out(self, effects: Effects, result: Frame | None = None) -> None:
        """Do what the dispatcher wants, in its order, and set the timer for what comes next."""
        for effect in effects:
            if isinstance(effect, Answer):
                self._answer(effect, result)
            elif isinstance(effect, Send):
                self._send(effect.batch)
            elif isinstance(effect, Cancel):
                channel = self._channels.get(effect.instance_id)
                if channel is not None:
                    channel.cancel(effect.batch_id)
            else:
                for drained in self._drains.pop(effect.instance_id, ()):
                    if not drained.done():
                        drained.set_result(None)
        wake_s = self.dispatcher.wake_s
        if wake_s < self._timer_s:
            self._set_timer(wake_s)
        if self._emptied and not self.dispatcher.in_system:
            self._tell_emptied()

    def _send(self, batch: Batch) -> None:
        members = [Member(0, request.size, request.meta, request.body) for request in batch.requests]
        budget_s = batch.deadline_s - time.monotonic()
        frame = Frame(Kind.BATCH, batch.id, self._epoch, budget_s, batch.lane.head, members)
        channel = self._channels[batch.instance_id]
        self.metrics.sent(batch)
        stream = partial(self._stream, batch) if batch.requests[0].streaming else None
        channel.run(frame, partial(self._done, batch), stream)

    def _done(self, batch: Batch, frame: Frame | None) -> None:
        """The batch has its results, or None came because the instance was lost."""
        if frame is None and batch.streamed:
            self._background.begin(self._stream_broke(batch))
            return
        if frame is None:
            if self._executes_suspect(batch.instance_id):
                self._served.add(batch.instance_id)
            self.instance_gone(batch.instance_id, "its channel closed")
            return
        if frame.epoch > self._epoch:
            self._refused(batch, frame.epoch)
            return
        self._served.add(batch.instance_id)
        codes = [200] if batch.streamed else [member.code for member in frame.members]
        self._withdraw_who_left()
        now_s = time.monotonic()
        if batch.pair is not None:
            self.metrics.pairs.done(batch, frame, now_s)
        self._carry_out(self.dispatcher.finished(batch.instance_id, batch.id, codes, now_s), frame)

    def _executes_suspect(self, instance_id: str) -> bool:
        """Whether the instance executes a request by itself that has failed before: its end says nothing about how it started."""
        worker = self.dispatcher.workers.by_id.get(instance_id)
        return worker is not None and any(one.retried for batch in worker.batches.values() for one in batch.requests)

    def _refused(self, batch: Batch, newest: int) -> None:
        """The instance has had a batch of a later owner, and has not run this one."""
        self._carry_out(self.dispatcher.not_run(batch.instance_id, batch.id, time.monotonic()))
        if self._outdated is None:
            # Nobody shares the queue with us: that owner is history.
            self._epoch = newest
            self._carry_out(self.dispatcher.look_again(time.monotonic()))
        else:
            self._outdated(newest)
            self.give_back()

    def _answer(self, answer: Answer, result: Frame | None) -> None:
        responder, answer.request.responder = answer.request.responder, None
        try:
            self._tell(responder, answer, result)
        except Exception:  # noqa: BLE001 - others are still to be answered
            _give_up_on(responder)

    def _tell(self, responder: Responder | None, answer: Answer, result: Frame | None) -> None:
        request, error, index = answer
        duration_s = time.monotonic() - request.arrived_s
        request.body = request.meta = b""  # its entry among the deadlines may outlive it
        streamed = request.batch is not None and request.batch.streamed
        if error is not None:
            self.metrics.refused(error, duration_s)
            if responder is not None:
                if streamed:
                    responder.broken()
                else:
                    responder.refuse(error)
        elif streamed:
            self.metrics.answered(200, duration_s)
        else:
            assert result is not None
            member = result.members[index]
            self.metrics.answered(member.code, duration_s)
            if responder is not None:
                responder.answer(member, result.head)

    def _stream(self, batch: Batch, frame: Frame) -> None:
        request = batch.requests[0]
        self._health.sign_of_life(batch)
        if frame.kind == Kind.STREAM_START:
            self.dispatcher.stream_began(request)
        if request.batch is batch and request.is_open and request.responder is not None:
            try:
                request.responder.stream(frame)
            except Exception:  # noqa: BLE001 - whoever reads from the instance is not to blame
                self._break_off(request)

    def _break_off(self, request: Request) -> None:
        """A part of its answer cannot be written: its connection ends, and nobody waits for the rest of the stream."""
        _LOG.exception("an answer cannot be written")
        responder, request.responder = request.responder, None
        self.metrics.refused(internal_error(), time.monotonic() - request.arrived_s)
        if responder is not None:
            responder.broken()
        self._carry_out(self.dispatcher.left(request, time.monotonic()))

    async def _stream_broke(self, batch: Batch) -> None:
        """A stream ended in the middle: the function gave up, or the instance is gone. The canary tells."""
        channel = self._channels.get(batch.instance_id)
        if channel is not None and await channel.probe(PROBE_TIMEOUT_S):
            self._carry_out(self.dispatcher.finished(batch.instance_id, batch.id, (), time.monotonic()))
        else:
            self.instance_gone(batch.instance_id, "its channel closed")

    def _set_timer(self, wake_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = wake_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, wake_s - time.monotonic()), self._timer_came)

    def _timer_came(self) -> None:
        self._timer, self._timer_s = None, float("inf")
        self._withdraw_who_left()
        self._carry_out(self.dispatcher.timer(time.monotonic()))

    def _withdraw_who_left(self) -> None:
        """A batch is about to be made of the oldest requests: leave out those whose clients have closed their connections.

        The loop tells of it as well, but perhaps after what it tells now. Only who has waited for a while is looked at, so that a
        function that keeps up pays nothing.
        """
        waited_since_s = time.monotonic() - LOOK_AFTER_S
        for lane in self.dispatcher.queue.waiting_lanes():
            there, gone = 0, []
            for request in cast("Iterable[Request]", lane.requests):
                if there >= self._max_batch or request.arrived_s > waited_since_s:
                    break
                if request.client is not None and request.client.has_left():
                    gone.append(request.client)
                else:
                    there += request.size
            for client in gone:
                client.lost()

    def _tell_emptied(self) -> None:
        waiting, self._emptied = self._emptied, []
        for emptied in waiting:
            if not emptied.done():
                emptied.set_result(None)

    def _frozen(self, on_frozen: Callable[[str, str], None], instance_id: str, reason: str) -> None:
        """An instance does not answer: give it nothing more, and let the owner replace it."""
        _LOG.warning("instance %s of %s is frozen: %s", instance_id, self.name, reason)
        self._carry_out(self.dispatcher.drain(instance_id, time.monotonic()))
        on_frozen(instance_id, reason)


def _give_up_on(responder: Responder | None) -> None:
    """What it was told has failed in its hands: it may still take an error, or else end its connection."""
    _LOG.exception("an answer cannot be written")
    if responder is not None:
        try:
            responder.refuse(internal_error())
        except Exception:  # noqa: BLE001 - it is not the first
            responder.broken()


class Lanes(NamedTuple):
    """HTTP requests in batches, those whose answer streams, and samples of a model's signature."""

    event: LaneKey
    stream: LaneKey
    tensor: LaneKey

    @property
    def variants(self) -> tuple[str, ...]:
        """The keys of their latencies."""
        return self.tensor.variant, self.event.variant


def lanes(variant: str, signature: ModelSignature | None) -> Lanes:
    """The lanes of a function; `variant` is its key in the latency model."""
    # An image and a tensor take different work: they are predicted apart.
    events = f"{variant}/events" if signature is not None else variant
    inputs = signature.inputs if signature is not None else ()
    head = {"kind": "tensors", "inputs": [spec.to_json() for spec in inputs]}
    return Lanes(
        LaneKey("events", events), LaneKey("stream", events, solo=True), LaneKey("tensors", variant, json.dumps(head).encode())
    )


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


class FunctionDirectory(Protocol):
    """The deployed functions, by the name in a URL."""

    def lookup(self, name: str) -> FunctionRuntime | None:
        """The function called `name` or `name.namespace`; None where there is none.

        Called once per request on the event loop: a dictionary look-up, nothing that waits.
        """
        ...

    def refusal(self, name: str) -> GnomonError:
        """What a call of a function is answered that `lookup` does not find: `no_such_function`, or why it is away."""
        ...


def names_of(key: FunctionKey) -> tuple[str, ...]:
    """What a function may be called by in a URL."""
    return (str(key), key.name) if key.namespace == DEFAULT_NAMESPACE else (str(key),)


def no_such_function(name: str) -> GnomonError:
    """404: there is no such function."""
    return not_found("function_not_found", f"There is no function {name[:200]!r}.", "List them with: gnomon list")
