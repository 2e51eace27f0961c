"""What the dispatcher wants, done: batches to instances, answers to clients, and its timer on the event loop.

    Send ─▶ BatchChannel.run(frame) … done(frame) ─▶ Dispatcher.finished ─▶ Answer ─▶ request.responder
    Cancel ─▶ BatchChannel.cancel        Drained ─▶ whoever awaits it        wake_s ─▶ call_later

A channel that closes before its batch has ended means that the instance is gone. A stream that breaks off may also mean that the
function gave up: there the canary tells. An answer that cannot be written is its own request's affair: the others of its batch
count as answered already, and nobody else would tell them anything.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

from gnomon_core.background import Background
from gnomon_core.seams import BatchChannel
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.dispatch.dispatcher import Dispatcher
from gnomon_gateway.dispatch.effects import Answer, Cancel, Effects, Send
from gnomon_gateway.dispatch.refusals import queue_moved
from gnomon_gateway.queueing.batch import Batch
from gnomon_gateway.queueing.request import Request, Responder
from gnomon_gateway.server.refusals import internal_error
from gnomon_gateway.serving.health import PROBE_TIMEOUT_S, Health
from gnomon_gateway.serving.metrics import FunctionMetrics

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
