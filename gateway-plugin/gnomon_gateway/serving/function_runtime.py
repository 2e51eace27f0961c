"""One deployed function while it serves: the dispatcher bound to real instances, a real clock and the event loop's timer.

    HTTP ─▶ submit(request) ─▶ Dispatcher ─▶ BatchChannel.run(frame) … done(frame) ─▶ Dispatcher ─▶ request.responder

The owner (who talks to the platform) says which instances there are: `instance_ready`, `instance_gone`, `drain`. It is called
back when a request waits and there is no instance (`on_demand`), and when an instance no longer answers (`on_frozen`), so that it
can replace it. Everything here runs on the event loop and returns at once; only draining is awaited.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey
from gnomon_core.scaling import LoadCounters
from gnomon_core.seams import BatchChannel, SchedulingPolicy
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.dispatch.dispatcher import Dispatcher, Effects
from gnomon_gateway.dispatch.effects import Answer, Cancel, Send
from gnomon_gateway.dispatch.latency import LiveLatency
from gnomon_gateway.queueing.batch import Batch
from gnomon_gateway.queueing.request import LaneKey, Request
from gnomon_gateway.serving.health import PROBE_TIMEOUT_S, Health
from gnomon_gateway.serving.metrics import FunctionMetrics

_LOG = logging.getLogger(__name__)


def _nothing(*_: object) -> None:
    return None


class FunctionRuntime:
    """A function's queue, policy, instances and counters, live.

    `signature` is None for a function that takes HTTP requests as they are. `epoch` names this owner of the queue: instances
    refuse batches of an owner before it.
    """

    def __init__(
        self,
        key: FunctionKey,
        settings: Settings,
        policy: SchedulingPolicy,
        latency: LiveLatency,
        *,
        signature: ModelSignature | None = None,
        epoch: int = 1,
        on_demand: Callable[[], None] = _nothing,
        on_frozen: Callable[[str, str], None] = _nothing,
    ) -> None:
        self.key = key
        self.name = str(key)
        self.settings = settings
        self.signature = signature
        self.latency = latency
        self.metrics = FunctionMetrics()
        self._name_lanes()
        self.dispatcher = Dispatcher(settings, policy, latency, time.monotonic())
        self._epoch = epoch
        self._on_demand = on_demand
        self._channels: dict[str, BatchChannel] = {}
        self._served: set[str] = set()
        self._drains: dict[str, list[asyncio.Future[None]]] = {}
        self._emptied: list[asyncio.Future[None]] = []
        self._background: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = float("inf")
        self._health = Health(self.dispatcher, self._channels, partial(self._frozen, on_frozen))

    # Requests

    def submit(self, request: Request) -> None:
        """Take a request that has arrived just now (`arrived_s`, on the monotonic clock).

        Its responder is called exactly once, now or later, unless `left` is called first.
        """
        self.metrics.started += 1
        dispatcher = self.dispatcher
        self._carry_out(dispatcher.arrive(request, request.arrived_s))
        if not dispatcher.workers.by_id:
            self._on_demand()

    def left(self, request: Request) -> None:
        """The client of this request has gone; its responder is not called any more."""
        self.metrics.left += 1
        request.responder = None
        self._carry_out(self.dispatcher.left(request, time.monotonic()))

    def has_room_for(self, body_bytes: int) -> bool:
        """Whether the queue would take a request of this size now. Asked before a large body is read."""
        return self.dispatcher.queue.has_room(body_bytes)

    # Instances

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None:
        """Route batches to this instance from now on."""
        self._channels[instance.id] = channel
        self._health.start()
        max_batch = self.settings.max_batch
        self._carry_out(self.dispatcher.instance_ready(instance.id, instance.cores, max_batch, time.monotonic()))

    def instance_resized(self, instance_id: str, cores: int) -> None:
        """The instance has another number of cores."""
        if instance_id in self._channels:
            self._carry_out(self.dispatcher.instance_ready(instance_id, cores, self.settings.max_batch, time.monotonic()))

    def instance_gone(self, instance_id: str, reason: str) -> None:
        """The instance has ended. The batch that it executed is answered with 502, or run again where that is safe."""
        channel = self._channels.pop(instance_id, None)
        if channel is not None:
            _LOG.info("instance %s of %s is gone: %s", instance_id, self.name, reason)
        unread = channel is not None and channel.unread
        self._carry_out(self.dispatcher.instance_gone(instance_id, time.monotonic(), unread=unread))

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
        while self.dispatcher.in_system:
            emptied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._emptied.append(emptied)
            await emptied
        for instance_id in list(self._channels):
            self._carry_out(self.dispatcher.drain(instance_id, time.monotonic()))

    def give_up(self, error: GnomonError) -> None:
        """Answer everything that waits with this error."""
        self._carry_out(self.dispatcher.give_up(error, time.monotonic()))

    def close(self) -> None:
        """Release the loop's timers. Nothing is submitted afterwards."""
        self._health.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_s = None, float("inf")

    # Settings

    def update(self, settings: Settings, policy: SchedulingPolicy, signature: ModelSignature | None = None) -> None:
        """Serve by other settings and another policy from now on. What waits stays."""
        self.settings, self.signature = settings, signature
        self._name_lanes()
        now_s = time.monotonic()
        effects = self.dispatcher.set_policy(settings, policy, now_s)
        for worker in list(self.dispatcher.workers.by_id.values()):
            effects += self.dispatcher.instance_ready(worker.id, worker.cores, settings.max_batch, now_s)
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

    def in_flight(self, instance_id: str) -> int:
        """How many requests the instance executes; 0 when it is idle or unknown."""
        worker = self.dispatcher.workers.by_id.get(instance_id)
        return len(worker.batch.requests) if worker is not None and worker.batch is not None else 0

    def forget(self, instance_id: str) -> bool:
        """The instance will not be heard of again; whether it had ever answered."""
        served = instance_id in self._served
        self._served.discard(instance_id)
        return served

    def latency_s(self) -> tuple[float, ...]:
        """Predicted latency of an instance with the function's cores for batches of 1, 2, … `max_batch`; empty if unknown."""
        cores, variant = self.settings.cores, self.variant
        known = [self.latency.seconds(variant, cores, batch) for batch in range(1, self.settings.max_batch + 1)]
        return tuple([seconds for seconds in known if seconds is not None]) if None not in known else ()

    @property
    def variant(self) -> str:
        """The key of the function in its latency model: its model, or its own name."""
        return self.settings.model or self.name

    def _name_lanes(self) -> None:
        """The kinds of requests that this function takes, made once, so that the hot path compares by identity."""
        # An image and a tensor take different work: they are predicted apart.
        events = f"{self.variant}/events" if self.signature is not None else self.variant
        self.event_lane = LaneKey("events", events)
        self.stream_lane = LaneKey("stream", events, solo=True)
        inputs = self.signature.inputs if self.signature is not None else ()
        head = {"kind": "tensors", "inputs": [spec.to_json() for spec in inputs]}
        self.tensor_lane = LaneKey("tensors", self.variant, json.dumps(head).encode())

    # The machinery

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
            self._in_background(self._stream_broke(batch))
            return
        if frame is None:
            self.instance_gone(batch.instance_id, "its channel closed")
            return
        self._served.add(batch.instance_id)
        codes = [200] if batch.streamed else [member.code for member in frame.members]
        self._carry_out(self.dispatcher.finished(batch.instance_id, batch.id, codes, time.monotonic()), frame)

    def _answer(self, answer: Answer, result: Frame | None) -> None:
        request, error, index = answer
        responder, request.responder = request.responder, None
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
            request.responder.stream(frame)

    async def _stream_broke(self, batch: Batch) -> None:
        """A stream ended in the middle: the function gave up, or the instance is gone. The canary tells."""
        channel = self._channels.get(batch.instance_id)
        if channel is not None and await channel.probe(PROBE_TIMEOUT_S):
            self._carry_out(self.dispatcher.finished(batch.instance_id, batch.id, (), time.monotonic()))
        else:
            self.instance_gone(batch.instance_id, "its channel closed")

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _set_timer(self, wake_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = wake_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, wake_s - time.monotonic()), self._timer_came)

    def _timer_came(self) -> None:
        self._timer, self._timer_s = None, float("inf")
        self._carry_out(self.dispatcher.timer(time.monotonic()))

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
