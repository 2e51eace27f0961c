"""A deployed function while it serves: its dispatcher, bound to instances, a clock and the event loop's timer.

    HTTP ─▶ submit(request) ─▶ Dispatcher ─▶ Send ─▶ BatchChannel.run(frame)
                                                         … done(frame) ─▶ Dispatcher.finished ─▶ Answer ─▶ request.responder
    Cancel ─▶ BatchChannel.cancel        Drained ─▶ `drain` returns        wake_s ─▶ call_later ─▶ Dispatcher.timer

`Instances`, the client of the platform, reports instances with `instance_ready`, `instance_gone` and `drain`. As the runtime's
`InstanceOwner` it is called if requests wait without any instance, and if an instance no longer answers. Everything runs on the
event loop and returns at once; only draining is awaited.

Health (`Health`). An idle instance is sent a canary request every few seconds. A busy instance has a time limit by its batches:
once all of them have taken several times as long as their requests allow, no client waits any more and the instance is replaced.
A part of a streamed answer resets the limit. A channel that knows its instance's health, such as from the pod's status, replaces
the canary.

If a channel closes before its batch has ended, the instance is gone. If it does not take a batch because it drains, as that of a
pod that terminates, the instance gets no further ones. If a stream breaks off, the handler may have aborted
instead: a canary request decides. An answer that cannot be written fails only its own request; the other members of the batch are
answered.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, NamedTuple

from gnomon_core.background import Background
from gnomon_core.engines import AUTO, FP32
from gnomon_core.errors import GnomonError, not_found
from gnomon_core.fleet import Instance
from gnomon_core.functions import DEFAULT_NAMESPACE, FunctionKey
from gnomon_core.interfaces import BatchChannel, CoreLender, SchedulingPolicy
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import LoadCounters
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature
from gnomon_core.wire import NOT_TAKEN, Frame, Kind, Member
from gnomon_gateway.dispatch.dispatcher import Answer, Cancel, Dispatcher, Effects, Send, queue_moved
from gnomon_gateway.dispatch.fleet import Worker
from gnomon_gateway.dispatch.latency import LiveLatency
from gnomon_gateway.functions.profiles import Corrected
from gnomon_gateway.http.acceptor import find_disconnected
from gnomon_gateway.http.exchange import internal_error
from gnomon_gateway.metrics import FunctionMetrics
from gnomon_gateway.queueing.queue import ANSWERED, Batch, Client, LaneKey, Request, Responder

if TYPE_CHECKING:
    from gnomon_gateway.applications.application import Application

CHECK_AFTER_S = 0.005
"""Requests that have waited this long are checked for a closed connection before they are sent to an instance."""

_LOG = logging.getLogger(__name__)


class InstanceOwner:
    """The manager of functions' instances. This default does nothing: the caller manages the instances itself."""

    def instance_needed(self, function: str) -> None:
        """Create an instance: a request waits, and the function has none."""

    def start_refusal(self, function: str) -> GnomonError | None:
        """The error for a call of a function without a ready instance; None if one may be ready soon."""

    def instance_frozen(self, instance_id: str, reason: str) -> None:
        """Replace an instance that no longer answers. The dispatcher sends nothing to it any more."""


NO_OWNER = InstanceOwner()


class FunctionRuntime:
    """A function's queue, scheduling policy, instances and counters.

    `signature` is None for a function that takes HTTP requests as they are; `profile` is its model's, or None. `epoch` numbers
    the owner of the queue: an instance refuses batches with an epoch older than one that it has seen. `lender` lends the cores of
    nodes to batches; None where no node does.
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
        owner: InstanceOwner = NO_OWNER,
        lender: CoreLender | None = None,
    ) -> None:
        self.key = key
        self.name = str(key)
        self.latency = latency
        self._apply_settings(settings, signature, profile)
        self._max_batch = settings.max_batch
        """The largest batch in samples, by the settings or by a buffer plan."""
        self.dispatcher = Dispatcher(settings, policy, latency, time.monotonic(), sized_by=self._profiled_variants, lender=lender)
        self.metrics = FunctionMetrics()
        self.capacity_changed: Callable[[], None] | None = None
        """Called whenever an instance becomes ready, ends or drains, for an application's choice among its members."""
        self.successor: FunctionRuntime | None = None
        """The queue that has replaced this one, of the same function with a model of other tensors."""
        self._owner = owner
        self._epoch = epoch
        self._outdated: Callable[[int], None] | None = None
        self._disowned = False
        self._ended: GnomonError | None = None
        """The error for requests that no instance will execute, once the function was removed or this queue replaced."""
        self._arrived: list[Request] = []
        """Requests submitted in this turn of the event loop."""
        self._channels: dict[str, BatchChannel] = {}
        self._been_ready: set[str] = set()
        self._served: set[str] = set()
        self._drains: dict[str, list[asyncio.Future[None]]] = {}
        self._emptied: list[asyncio.Future[None]] = []
        self._background = Background()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = float("inf")
        self._health = Health(self.dispatcher, self._channels, self._frozen)

    # Requests

    def submit(self, request: Request) -> None:
        """Accept a request that has just arrived (`arrived_s`, on the monotonic clock).

        Its responder is called exactly once, now or later, unless `left` is called first.
        """
        self.metrics.started += 1
        # One admission per turn of the loop: requests that the kernel delivered together share a batch.
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._admit)
        self._arrived.append(request)

    def refuse_queue_full(self, request: Request) -> None:
        """Refuse and count a request because the queue has no room for its body, which has not been read."""
        self.metrics.started += 1
        self._execute(self.dispatcher.refuse_queue_full(request, time.monotonic()))
        if not self.dispatcher.workers.by_id:
            self._request_instance()

    def _admit(self) -> None:
        """Admit the requests that arrived in this turn of the event loop, so that they can share a batch without waiting.

        Clients that closed the connection right after the request are left out; the loop reports them only in its next turn.
        """
        if self._disowned:
            self.hand_over_waiting()
        for client in find_disconnected([request.client for request in self._arrived if request.client is not None]):
            client.lost()  # removes its request from `_arrived`
        arrived, self._arrived = self._arrived, []
        if not arrived:
            return
        refusal = self.refusal()
        if refusal is not None:
            self._execute(self.dispatcher.refuse(arrived, refusal, time.monotonic()))
            return
        self._execute(self.dispatcher.arrive(arrived, time.monotonic()))
        if not self.dispatcher.workers.by_id:
            self._request_instance()

    def refusal(self) -> GnomonError | None:
        """The error for a call because the function cannot start; None if an instance is ready or may soon be."""
        if self.dispatcher.workers.by_id or self._ended is not None:
            return None
        return self._owner.start_refusal(self.name)

    def refuse_waiting(self) -> None:
        """Answer all waiting requests with the reason if the function cannot start."""
        refusal = self.refusal()
        if refusal is not None:
            self.fail_waiting(refusal)

    def left(self, request: Request) -> None:
        """Withdraw the request of a client that has disconnected; its responder is not called any more."""
        self.metrics.left += 1
        request.responder = None
        if request in self._arrived:
            self._arrived.remove(request)
            request.state = ANSWERED
        else:
            self._execute(self.dispatcher.left(request, time.monotonic()))

    # Instances

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None:
        """Send batches to this instance from now on."""
        # Before the dispatcher, whose effects may send the instance its first batch at once.
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
            idle_cores=instance.idle_cores,
        )
        self._execute(effects)
        self._report_capacity()

    def instance_gone(self, instance_id: str, reason: str) -> None:
        """Remove an instance that has ended. Its requests are answered with 502, or retried if that is safe."""
        channel = self._channels.pop(instance_id, None)
        if channel is not None:
            _LOG.info("instance %s of %s is gone: %s", instance_id, self.name, reason)
        # A batch that the instance never received is put back into the queue, others may have been executed.
        unread = channel.unread if channel is not None else ()
        self._execute(self.dispatcher.instance_gone(instance_id, time.monotonic(), unread=unread))
        self._report_capacity()

    def instance_resized(self, instance_id: str, cores: int, idle_cores: int | None = None) -> None:
        """Change an instance's number of cores, or whether it borrows them (`Instance.idle_cores`)."""
        if instance_id in self._channels:
            self._execute(
                self.dispatcher.instance_ready(instance_id, cores, self._max_batch, time.monotonic(), idle_cores=idle_cores)
            )

    def pair_changed(self, instance_id: str, pair: Pair | None) -> None:
        """Change the pair of a Body: its next batch uses these Shadows, or none."""
        self._execute(self.dispatcher.pair_changed(instance_id, pair, time.monotonic()))

    async def drain(self, instance_id: str) -> None:
        """Send the instance no further batches, and return once it has none in flight. The instance may then be stopped."""
        drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drains.setdefault(instance_id, []).append(drained)
        self._execute(self.dispatcher.drain(instance_id, time.monotonic()))
        self._report_capacity()
        await drained

    async def drain_all(self) -> None:
        """Return once every admitted request has been answered; nothing is sent to any instance afterwards.

        The longest deadline bounds the time. The caller ensures that no further request is submitted. An instance may still
        execute a batch whose deadlines have passed.
        """
        self._admit()
        while self.dispatcher.in_system:
            emptied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._emptied.append(emptied)
            await emptied
        # Only after the last answer: until then the instances must accept batches.
        for instance_id in list(self._channels):
            self._execute(self.dispatcher.drain(instance_id, time.monotonic()))

    def fail_waiting(self, error: GnomonError) -> None:
        """Answer all waiting requests with this error."""
        self._admit()
        self._execute(self.dispatcher.fail_waiting(error, time.monotonic()))

    async def wait_idle(self) -> None:
        """Return once no request waits and no instance executes a batch of this queue."""
        while self.dispatcher.in_system or self.dispatcher.workers.busy:
            emptied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._emptied.append(emptied)
            await emptied

    def forget_latency(self) -> None:
        """Forget the latencies of the handler, which was replaced. Those of a model do not depend on the version."""
        # A model's latency depends on its weights and code, which a new version of the function does not change.
        if self.dispatcher.learns and self.settings.model is None:
            for variant in set(self.variants):
                self.latency.forget(variant)

    def end(self, error: GnomonError) -> None:
        """Handle the function's removal, or its update to a model with other tensors: no further instance will be created.

        `error` answers the requests that no instance will execute. A new function of this name learns latencies anew.
        """
        self.forget_latency()
        self.dispatcher.learns = False
        self._ended = error

    def fail_unserved(self, *, starting: int = 0) -> None:
        """After `end`, answer the waiting requests with its error if no instance is left or `starting`."""
        if self._ended is not None and not self.ready and not starting:
            self.fail_waiting(self._ended)

    def close(self) -> None:
        """Cancel the timers. No request is submitted afterwards."""
        self._health.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_s = None, float("inf")

    # Ownership of the queue, if several gateway replicas share the functions

    def own(self, epoch: int, outdated: Callable[[int], None] | None = None) -> None:
        """Take the queue as of this epoch. `outdated` is called with the newer epoch if an instance reports one."""
        self._epoch, self._outdated, self._disowned = epoch, outdated, False

    def disown(self) -> None:
        """Give the queue up to another replica: send no further batch, and hand over the waiting requests."""
        self._disowned = True
        self.hand_over_waiting()

    def hand_over_waiting(self) -> None:
        """Refuse all waiting requests with `queue_moved`: their forwarders ask the new owner. Batches in flight continue."""
        arrived, self._arrived = self._arrived, []
        for request in arrived:
            request.state = ANSWERED
            self._hand_over(request)
        for effect in self.dispatcher.fail_waiting(queue_moved(), time.monotonic()):
            if isinstance(effect, Answer):
                self._hand_over(effect.request)
        self._execute([])

    def _hand_over(self, request: Request) -> None:
        """Refuse one request with `queue_moved`; the new owner answers its client."""
        responder, request.responder = request.responder, None
        self.metrics.left += 1
        if responder is not None:
            try:
                responder.refuse(queue_moved())
            except Exception:  # noqa: BLE001 - the other requests must still be handed over
                _fail_responder(responder)

    # Settings

    def update(
        self,
        settings: Settings,
        policy: SchedulingPolicy,
        signature: ModelSignature | None = None,
        profile: ModelProfile | None = None,
    ) -> None:
        """Use other settings and another policy from now on. Waiting requests stay."""
        self._apply_settings(settings, signature, profile)
        self._schedule_by(policy, settings.max_batch)

    def set_profile(self, profile: ModelProfile | None) -> None:
        """Use another profile of the model from now on. Waiting requests and the buffer plan stay."""
        self._apply_settings(self.settings, self.signature, profile)
        self._schedule_by(self.policy, self._max_batch)

    def plan_buffer(self, policy: SchedulingPolicy, max_batch: int) -> None:
        """Use this policy and this largest batch until the function is deployed again.

        The settings stay: the largest single request, and the batch sizes for which `latency_s` is reported.
        """
        self._schedule_by(policy, max_batch)

    def _schedule_by(self, policy: SchedulingPolicy, max_batch: int) -> None:
        self._max_batch = max_batch
        now_s = time.monotonic()
        effects = self.dispatcher.set_policy(self.settings, policy, now_s, sized_by=self._profiled_variants)
        for worker in list(self.dispatcher.workers.by_id.values()):
            effects += self.dispatcher.instance_ready(
                worker.id, worker.cores, max_batch, now_s, memory_mb=worker.memory_mb, idle_cores=worker.idle_cores
            )
        self._execute(effects)

    def set_starting(self, count: int) -> None:
        """Set the number of starting instances, which policies may consider."""
        self.dispatcher.workers.set_starting(count)

    # Readings

    @property
    def policy(self) -> SchedulingPolicy:
        return self.dispatcher.policy

    @property
    def ready(self) -> int:
        """The number of instances that accept batches."""
        return self.dispatcher.workers.capacity().instances

    def load(self) -> LoadCounters:
        """The function's load, cumulative and now."""
        return self.dispatcher.counters(time.monotonic())

    def events(self) -> tuple[object, ...]:
        """A value that changes whenever the load changes."""
        return self.dispatcher.events()

    @property
    def has_served(self) -> bool:
        """Return whether any request has arrived."""
        return self.metrics.started > 0

    @property
    def busy(self) -> bool:
        """Return whether requests wait or execute."""
        return self.dispatcher.in_system > 0

    def pending(self) -> int:
        """The number of requests that wait or execute, those included that arrived in this turn of the event loop."""
        return self.dispatcher.in_system + len(self._arrived)

    @property
    def starting(self) -> int:
        """The number of starting instances."""
        return self.dispatcher.workers.starting

    def has_been_ready(self, instance_id: str) -> bool:
        """Return whether the instance has been ready, even if its channel has closed, until `forget` is called."""
        return instance_id in self._been_ready

    def in_flight(self, instance_id: str) -> int:
        """The number of requests that the instance executes; 0 if it is idle or unknown."""
        worker = self.dispatcher.workers.by_id.get(instance_id)
        if worker is None or not worker.batches:
            return 0
        return sum([len(batch.requests) for batch in worker.batches.values()])

    def all_in_flight(self) -> dict[str, int]:
        """The number of executing requests by instance, without idle instances."""
        return {instance_id: count for instance_id in self.dispatcher.workers.by_id if (count := self.in_flight(instance_id))}

    def largest_batches(self) -> dict[str, int]:
        """The largest batch of each instance, in samples."""
        return {worker.id: worker.slot.max_batch for worker in self.dispatcher.workers.by_id.values()}

    def forget(self, instance_id: str) -> bool:
        """Forget an instance that has ended; returns whether it ever answered a batch."""
        served = instance_id in self._served or self._executes_retry(instance_id)
        self._served.discard(instance_id)
        self._been_ready.discard(instance_id)
        return served

    def latency_s(self) -> tuple[float, ...]:
        """Predicted latency of an instance with the function's cores for batches of 1, 2, … `max_batch`; empty if unknown.

        Events and tensors of a model take different times: if both are known and called, the longer time is given.
        """
        settings, seconds_of = self.settings, self.latency.seconds
        curves: list[list[float]] = []
        for variant in self.dispatcher.sizing.called_or_all(self.variants):
            row: list[float] = []
            for size in range(1, settings.max_batch + 1):
                seconds = seconds_of(variant, settings.cores, size)
                if seconds is None:
                    break
                row.append(seconds)
            else:
                curves.append(row)
        return tuple([max(both) for both in zip(*curves, strict=True)])

    def latency_spread(self, sizes: Iterable[int]) -> float:
        """The mean relative error of recent predictions, at the instance size where it is largest."""
        variants = self.variants
        return max([self.latency.spread(variant, size) or 0.0 for size in set(sizes) for variant in variants], default=0.0)

    def ratios(self) -> Mapping[int, float]:
        """Measured latency by the profile's prediction, by cores; only for sizes with enough measurements."""
        return self.latency.corrections(self._profiled_variants)

    @property
    def published_profile(self) -> ModelProfile | None:
        """The model's profile as it was published, without corrections; None without one."""
        return self._profile.published if self._profile is not None else None

    def profile(self, ratios: Mapping[int, float] | None = None) -> ModelProfile | None:
        """The model's profile, corrected by these ratios or by those measured here; None without a profile."""
        return self._profile.by(ratios or self.ratios()) if self._profile is not None else None

    # Effects of the dispatcher

    def _execute(self, effects: Effects, result: Frame | None = None) -> None:
        """Execute the dispatcher's effects in their order, then set the timer for its next deadline."""
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
        # A timer that expires early costs one call; one that is set again for each request costs each of them.
        if wake_s < self._timer_s:
            self._set_timer(wake_s)
        if self._emptied and not self.dispatcher.in_system:
            self._report_emptied()

    def _send(self, batch: Batch) -> None:
        members = [Member(0, request.size, request.meta, request.body) for request in batch.requests]
        # Relative, because the instance's clock is another one.
        # The instance can then discard a batch that no client waits for.
        budget_s = batch.deadline_s - time.monotonic()
        frame = Frame(Kind.BATCH, batch.id, self._epoch, budget_s, batch.lane.head, members, batch.lent)
        channel = self._channels[batch.instance_id]
        self.metrics.sent(batch)
        stream = partial(self._stream, batch) if batch.requests[0].streaming else None
        channel.run(frame, partial(self._done, batch), stream)

    def _done(self, batch: Batch, frame: Frame | None) -> None:
        """Handle a batch's results; None means that the instance's channel closed."""
        if frame is NOT_TAKEN:
            self._not_taken(batch)
            return
        if frame is None and batch.streamed:
            self._background.begin(self._resolve_broken_stream(batch))
            return
        if frame is None:
            if self._executes_retry(batch.instance_id):
                self._served.add(batch.instance_id)
            self.instance_gone(batch.instance_id, "its channel closed")
            return
        # The instance has executed nothing: it has seen a batch of a newer owner of this queue.
        if frame.epoch > self._epoch:
            self._batch_refused(batch, frame.epoch)
            return
        self._served.add(batch.instance_id)
        codes = [200] if batch.streamed else [member.code for member in frame.members]
        self._drop_disconnected()
        now_s = time.monotonic()
        if batch.pair is not None:
            self.metrics.pairs.done(batch, frame, now_s)
        self._execute(self.dispatcher.finished(batch.instance_id, batch.id, codes, now_s), frame)

    def _executes_retry(self, instance_id: str) -> bool:
        """Return whether the instance executes a retried request, which may have killed it: then its end is no failed start."""
        worker = self.dispatcher.workers.by_id.get(instance_id)
        return worker is not None and any(request.retried for batch in worker.batches.values() for request in batch.requests)

    def _not_taken(self, batch: Batch) -> None:
        """Drain an instance that is about to end, as its pod was told to, and send the batch elsewhere."""
        now_s = time.monotonic()
        self._execute(self.dispatcher.drain(batch.instance_id, now_s))
        self._execute(self.dispatcher.batch_refused(batch.instance_id, batch.id, now_s))
        self._execute(self.dispatcher.reschedule(now_s))
        self._report_capacity()

    def _batch_refused(self, batch: Batch, newest: int) -> None:
        """Handle a batch that the instance refused because the queue has a newer owner."""
        self._execute(self.dispatcher.batch_refused(batch.instance_id, batch.id, time.monotonic()))
        if self._outdated is None:
            # This replica shares the queue with no other, so the newer epoch is of an earlier owner that has ended.
            self._epoch = newest
            self._execute(self.dispatcher.reschedule(time.monotonic()))
        else:
            self._outdated(newest)
            self.hand_over_waiting()

    def _answer(self, answer: Answer, result: Frame | None) -> None:
        """Answer one request. Counted before it is written, so that a failure to write it is counted once."""
        request, error, index = answer
        responder, request.responder = request.responder, None
        duration_s = time.monotonic() - request.arrived_s
        request.body = request.meta = b""  # free memory: the request's entry in `Deadlines` may outlive it
        streamed = request.batch is not None and request.batch.streamed
        try:
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
        except Exception:  # noqa: BLE001 - the other members must still be answered
            _fail_responder(responder)

    def _stream(self, batch: Batch, frame: Frame) -> None:
        request = batch.requests[0]
        self._health.sign_of_life(batch)
        if frame.kind == Kind.STREAM_START:
            self.dispatcher.stream_started(request)
        if request.batch is batch and request.is_open and request.responder is not None:
            try:
                request.responder.stream(frame)
            except Exception:  # noqa: BLE001 - an error of one client must not end the instance's channel
                self._abort_stream(request)

    def _abort_stream(self, request: Request) -> None:
        """A part of a streamed answer cannot be written: close the connection and withdraw the request."""
        _LOG.exception("%s: internal error while writing a streamed answer; its connection is closed", self.name)
        responder, request.responder = request.responder, None
        self.metrics.refused(internal_error(), time.monotonic() - request.arrived_s)
        if responder is not None:
            responder.broken()
        self._execute(self.dispatcher.left(request, time.monotonic()))

    async def _resolve_broken_stream(self, batch: Batch) -> None:
        """Send a canary after a stream that broke off: it tells whether the handler gave up or the instance is gone."""
        # The frames look alike in both cases, and the first must not cost the function its instance.
        channel = self._channels.get(batch.instance_id)
        if channel is not None and await channel.probe(PROBE_TIMEOUT_S):
            self._execute(self.dispatcher.finished(batch.instance_id, batch.id, (), time.monotonic()))
        else:
            self.instance_gone(batch.instance_id, "its channel closed")

    def _set_timer(self, wake_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = wake_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, wake_s - time.monotonic()), self._timer_expired)

    def _timer_expired(self) -> None:
        self._timer, self._timer_s = None, float("inf")
        self._drop_disconnected()
        self._execute(self.dispatcher.timer(time.monotonic()))

    def _drop_disconnected(self) -> None:
        """Withdraw requests whose clients have disconnected before the next batches are made of them.

        The event loop reports closed connections too, but perhaps only after the present event. Only requests that have waited
        for `CHECK_AFTER_S` are checked, so that a function without a backlog pays nothing.
        """
        if not self.dispatcher.queue.requests:
            return
        waited_since_s = time.monotonic() - CHECK_AFTER_S
        for lane in self.dispatcher.queue.waiting_lanes():
            waiting = takewhile(lambda request: request.arrived_s <= waited_since_s, lane.waiting())
            live, disconnected = 0, list[Client]()
            # A disconnected client's place in the batch goes to a request whose client still waits.
            while live < self._max_batch and (some := list(islice(waiting, self._max_batch))):
                found = find_disconnected([request.client for request in some if request.client is not None])
                live += len(some) - len(found)
                disconnected += found
            for client in disconnected:
                client.lost()

    def _report_emptied(self) -> None:
        waiting, self._emptied = self._emptied, []
        for emptied in waiting:
            if not emptied.done():
                emptied.set_result(None)

    def _frozen(self, instance_id: str, reason: str) -> None:
        """Send no further batches to an instance that does not answer, and let the owner replace it."""
        _LOG.warning("instance %s of %s no longer answers and is replaced: %s", instance_id, self.name, reason)
        self._execute(self.dispatcher.drain(instance_id, time.monotonic()))
        self._report_capacity()
        self._owner.instance_frozen(instance_id, reason)

    def _report_capacity(self) -> None:
        if self.capacity_changed is not None:
            self.capacity_changed()

    def _request_instance(self) -> None:
        if self._ended is not None:
            self.fail_waiting(self._ended)
        else:
            self._owner.instance_needed(self.name)

    def _apply_settings(self, settings: Settings, signature: ModelSignature | None, profile: ModelProfile | None) -> None:
        """Derive lanes and latency keys from the deployment. `_profiled_variants` are the variants that a profile predicts."""
        self.settings, self.signature = settings, signature
        self.variant = latency_key(settings, self.name)
        named = lanes(self.variant, signature)
        self.event_lane, self.stream_lane, self.tensor_lane = named
        self._profile = Corrected(profile) if profile is not None else None
        self.variants = named.variants
        self.replay_safe = signature is not None or settings.retry
        """True if a request may be executed twice: inference is idempotent, a handler only if `gnomon/retry` says so."""
        self._profiled_variants = named.variants if profile is not None else ()


PROBE_EVERY_S = 3.0


CHECK_TIMES = 30
"""The number of times within `PROBE_EVERY_S` at which functions are checked: one every 0.1 s."""


PROBE_TIMEOUT_S = 5.0


BUSY_FACTOR = 2.0


BUSY_AT_LEAST_S = 10.0
"""The least time limit of a batch: one with a short deadline may be slow because of a cold cache, without any fault."""


class Health:
    """The health checks of one function's instances. `on_frozen(instance_id, reason)` is called once for a frozen instance."""

    def __init__(
        self, dispatcher: Dispatcher, channels: Mapping[str, BatchChannel], on_frozen: Callable[[str, str], None]
    ) -> None:
        self._dispatcher = dispatcher
        self._channels = channels
        self._on_frozen = on_frozen
        self._timer: asyncio.TimerHandle | None = None
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._reported: set[str] = set()
        self._alive_s: dict[int, float] = {}

    def start(self) -> None:
        """Start the periodic check, if it is not running.

        The checks of several functions are made together: each at a time of its own would wake the event loop 333 times a second
        for 1,000 functions.
        """
        if self._timer is None:
            loop, step_s = asyncio.get_running_loop(), PROBE_EVERY_S / CHECK_TIMES
            self._timer = loop.call_at(round((loop.time() + PROBE_EVERY_S) / step_s) * step_s, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for probe in self._probes.values():
            probe.cancel()

    def sign_of_life(self, batch: Batch) -> None:
        """Record that a part of a streamed answer has arrived."""
        self._alive_s[batch.id] = time.monotonic()

    def _check(self) -> None:
        self._timer = None
        now_s = time.monotonic()
        workers = self._dispatcher.workers.by_id
        if self._reported or self._alive_s:
            self._forget(workers)
        for worker in list(workers.values()):
            if worker.id in self._reported:
                continue
            if worker.batches:
                self._check_batches(worker, now_s)
            elif not worker.draining and worker.id not in self._probes and not self._is_known_healthy(worker.id):
                self._probes[worker.id] = asyncio.get_running_loop().create_task(self._probe(worker.id))
        if workers:  # without instances the timer would keep a removed function's runtime alive
            self.start()

    def _forget(self, workers: Mapping[str, Worker]) -> None:
        """Forget instances and batches that have ended."""
        self._reported &= workers.keys()
        executing = {batch for worker in workers.values() for batch in worker.batches}
        self._alive_s = {batch: at_s for batch, at_s in self._alive_s.items() if batch in executing}

    def _check_batches(self, worker: Worker, now_s: float) -> None:
        """Report an instance if all its batches have exceeded their limits. A single slow batch occupies only one slot."""
        took_s = [self._overdue_s(batch, now_s) for batch in worker.batches.values()]
        if all(took_s):
            self._report(worker.id, f"its batch has been executing for {max(took_s):.1f} s")

    def _overdue_s(self, batch: Batch, now_s: float) -> float:
        """Seconds since the batch was sent or last streamed a part, if more than its requests allow; else 0."""
        since_s = self._alive_s.get(batch.id, batch.sent_s)
        limit_s = max(BUSY_AT_LEAST_S, BUSY_FACTOR * (batch.deadline_s - batch.sent_s))
        return now_s - since_s if now_s - since_s > limit_s else 0.0

    def _is_known_healthy(self, instance_id: str) -> bool:
        known: Callable[[], bool] | None = getattr(self._channels.get(instance_id), "is_known_healthy", None)
        return known is not None and known()

    async def _probe(self, instance_id: str) -> None:
        try:
            channel = self._channels.get(instance_id)
            if channel is None or await channel.probe(PROBE_TIMEOUT_S):
                return
            worker = self._dispatcher.workers.by_id.get(instance_id)
            # A batch that began during the probe delays its answer, and a new channel means that the instance was replaced
            # already.
            if worker is not None and not worker.batches and self._channels.get(instance_id) is channel:
                self._report(instance_id, f"it did not answer a canary within {PROBE_TIMEOUT_S:.0f} s")
        finally:
            self._probes.pop(instance_id, None)

    def _report(self, instance_id: str, reason: str) -> None:
        if instance_id not in self._reported:
            self._reported.add(instance_id)
            self._on_frozen(instance_id, reason)


class FunctionDirectory:
    """The served functions and applications by the names in URLs.

    `pending_restore` returns the error for a stored function that cannot be served yet.
    """

    def __init__(self, pending_restore: Callable[[str], GnomonError | None] = lambda _: None) -> None:
        self._pending_restore = pending_restore
        self._by_name: dict[str, FunctionRuntime] = {}
        self.removed: Callable[[str], None] = lambda _: None
        """Called with the name of each function that is removed."""
        self._applications: dict[str, Application] = {}

    def add(self, runtime: FunctionRuntime) -> None:
        for name in names_of(runtime.key):
            self._by_name[name] = runtime

    def remove(self, key: FunctionKey) -> None:
        for name in names_of(key):
            self._by_name.pop(name, None)
        self.removed(str(key))

    def lookup(self, name: str) -> FunctionRuntime | None:
        """The function called `name` or `name.namespace`; None where there is none."""
        return self._by_name.get(name)

    def add_application(self, application: Application) -> None:
        for name in names_of(application.key):
            self._applications[name] = application

    def remove_application(self, key: FunctionKey) -> None:
        for name in names_of(key):
            self._applications.pop(name, None)

    def application(self, name: str) -> Application | None:
        """The application whose endpoint is called `name` or `name.namespace`; None where there is none."""
        return self._applications.get(name)

    def refusal(self, name: str) -> GnomonError:
        """The error for a call of a function that `lookup` does not find: `no_such_function`, or why it is not served."""
        return self._pending_restore(name) or no_such_function(name)


class Lanes(NamedTuple):
    """The lane keys of a function, made once so that the hot path compares by identity.

    `event` is for HTTP requests that share batches, `stream` for those whose answer streams, `tensor` for a model's samples.
    """

    event: LaneKey
    stream: LaneKey
    tensor: LaneKey

    @property
    def variants(self) -> tuple[str, ...]:
        """The latency keys of the lanes, each once."""
        tensor, event = self.tensor.variant, self.event.variant
        return (tensor,) if tensor == event else (tensor, event)


def latency_key(settings: Settings, function: str) -> str:
    """The key of a function in the latency model: its model, with the engine and precision if the settings name them.

    Without a model it is the function's own name.
    """
    if settings.model is None:
        return function
    model = settings.model if settings.engine == AUTO else f"{settings.model}+{settings.engine}"
    if settings.precision == AUTO:
        return f"{model}+{AUTO}>{settings.accuracy_floor:g}"
    return model if settings.precision == FP32 else f"{model}+{settings.precision}"


def lanes(variant: str, signature: ModelSignature | None) -> Lanes:
    """The lanes of a function; `variant` is its key in the latency model."""
    # An image must be decoded, a tensor need not be: their latencies are learned separately.
    events = f"{variant}/events" if signature is not None else variant
    inputs = signature.inputs if signature is not None else ()
    head = {"kind": "tensors", "inputs": [spec.to_json() for spec in inputs]}
    return Lanes(
        LaneKey("events", events), LaneKey("stream", events, solo=True), LaneKey("tensors", variant, json.dumps(head).encode())
    )


def names_of(key: FunctionKey) -> tuple[str, ...]:
    """The names of a function in URLs."""
    return (str(key), key.name) if key.namespace == DEFAULT_NAMESPACE else (str(key),)


def no_such_function(name: str) -> GnomonError:
    """404: there is no such function."""
    return not_found("function_not_found", f"There is no function {name[:200]!r}.", "List them with: gnomon list")


def _fail_responder(responder: Responder | None) -> None:
    """Send an error in place of an answer that could not be written, or close the connection if that fails too."""
    _LOG.exception("internal error while writing an answer; its client gets 500 or a closed connection")
    if responder is not None:
        try:
            responder.refuse(internal_error())
        except Exception:  # noqa: BLE001 - closing the connection is the last resort
            responder.broken()
