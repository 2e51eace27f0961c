"""The dispatcher of one function: events in, effects out.

    arrive ─▶ admitted ─▶ waits in a lane ─▶ policy ─▶ Send ─▶ finished ─▶ Answer per member
                 └▶ refused           └▶ left, deadline          └▶ gone ─▶ Answer 502, or once more

It reads no clock and does no I/O: the caller passes the time, carries out the effects in their order and calls `timer` at
`wake_s`. Whatever the order of events, each request that arrives gets exactly one `Answer`, unless its client left first
(`left`).

A batch whose instance dies fails alone. Where the instance had not even received it (`unread`), it goes back to where it was, and
nobody notices. Otherwise its members get 502. They are not run again, because a user's handler may have acted
before it died; a request marked `replay_safe` (a model's inference) gets one more run if its deadline allows, in a batch of its
own, so that an input which kills instances cannot take neighbours along twice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import TypeAlias, cast

from gnomon_core.errors import GnomonError
from gnomon_core.scaling import LoadCounters
from gnomon_core.scheduling import Dispatch, Reject, ScheduleAction
from gnomon_core.seams import SchedulingPolicy
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.asking import ask, may_take
from gnomon_gateway.dispatch.counting import Counting
from gnomon_gateway.dispatch.deadlines import Deadlines
from gnomon_gateway.dispatch.effects import Answer, Cancel, Drained, Effect, Send
from gnomon_gateway.dispatch.latency import LiveLatency
from gnomon_gateway.dispatch.refusals import deadline_exceeded, instance_lost, invalid_result, no_instance, rejected
from gnomon_gateway.dispatch.workers import Workers
from gnomon_gateway.queueing.admission import Late, refusal, would_be_late
from gnomon_gateway.queueing.batch import Batch
from gnomon_gateway.queueing.queue import FunctionQueue, Lane
from gnomon_gateway.queueing.request import ADMITTED, ANSWERED, DISPATCHED, Request
from gnomon_gateway.scheduling.immediate import Immediate

_LOG = logging.getLogger(__name__)

Effects: TypeAlias = list[Effect]
_SIMPLEST = Immediate()
_SUCCESS = range(200, 300)
_NEVER = float("inf")
MIN_WAIT_S = 0.0005
"""A policy that wants to be asked again at once is asked half a millisecond later: it must not keep the loop busy."""


class Dispatcher:
    """Queue, policy, instances and counters of one function."""

    def __init__(self, settings: Settings, policy: SchedulingPolicy, latency: LiveLatency, now_s: float) -> None:
        self.policy = policy
        self.latency = latency
        self.workers = Workers()
        self.queue = FunctionQueue(settings.queue_max_requests, settings.queue_max_bytes)
        self.late_answers = 0
        """Results that came for requests which had been answered already: their deadline had passed or their client had left."""
        self.stale_batches = 0
        """Results of batches that were not in flight."""
        self.policy_errors = 0
        self._deadlines = Deadlines()
        self._counting = Counting(now_s)
        self._last_batch = 0

    # Events of requests

    def arrive(self, request: Request, now_s: float) -> Effects:
        """A request has been received. It is refused, dispatched, or waits."""
        counting = self._counting
        counting.advance(now_s)
        counting.arrivals += 1
        counting.last_request_s = now_s
        workers = self.workers
        idle = workers.any_idle
        error = refusal(request, self.queue, workers, self.latency, now_s)
        if error is not None:
            request.state = ANSWERED
            if idle and error.status == HTTPStatus.GATEWAY_TIMEOUT:
                self._doubt(request)
            return [Answer(request, error)]
        request.state = ADMITTED
        counting.in_system += 1
        lane = self.queue.add(request)
        self._deadlines.add(request)
        effects: Effects = []
        if idle:
            self._expire(now_s, effects)
            self._schedule(lane, now_s, effects)
        return effects

    def left(self, request: Request, now_s: float) -> Effects:
        """The client of this request has gone.

        If the request waits, it never runs; if nobody waits for its batch any more, the batch is cancelled.
        """
        effects: Effects = []
        if request.state in (ADMITTED, DISPATCHED):
            self._counting.advance(now_s)
            self._withdraw(request, effects)
        return effects

    def stream_began(self, request: Request) -> None:
        """The first part of a streamed answer has come. The deadline was for that: it does not end the request any more."""
        request.deadline_s = _NEVER
        if request.batch is not None:
            request.batch.streamed = True

    # Events of instances

    def instance_ready(self, instance_id: str, cores: int, max_batch: int, now_s: float) -> Effects:
        """An instance can take batches from now on; or a known one has another number of cores or largest batch."""
        self._counting.advance(now_s)
        self.workers.add(instance_id, cores, max_batch)
        return self._schedule_all(now_s, [])

    def instance_gone(self, instance_id: str, now_s: float, *, unread: bool = False) -> Effects:
        """An instance has ended. Only its batch is affected, which it had not received where it is `unread`."""
        worker = self.workers.by_id.get(instance_id)
        if worker is None:
            return []
        self._counting.advance(now_s)
        self.workers.remove(worker)
        effects: Effects = []
        batch = worker.batch
        if batch is not None:
            open_ones = [request for request in batch.requests if request.batch is batch and request.state == DISPATCHED]
            if unread:
                self._put_back(open_ones)
            else:
                for request in open_ones:
                    self._lost(request, now_s, effects)
            batch.end()
        if worker.draining:
            effects.append(Drained(instance_id))
        return self._schedule_all(now_s, effects)

    def drain(self, instance_id: str, now_s: float) -> Effects:
        """Give the instance no more batches; `Drained` follows when nothing is in flight there."""
        worker = self.workers.by_id.get(instance_id)
        if worker is None:
            return [Drained(instance_id)]
        self._counting.advance(now_s)
        self.workers.drain(worker)
        return [Drained(instance_id)] if worker.batch is None else []

    def finished(self, instance_id: str, batch_id: int, codes: Sequence[int], now_s: float) -> Effects:
        """A batch has its results, one HTTP status per member.

        The instance's next batch comes before the answers of this one. An answer that comes after its deadline is none.
        """
        worker = self.workers.by_id.get(instance_id)
        batch = worker.batch if worker is not None else None
        if worker is None or batch is None or batch.id != batch_id:
            self.stale_batches += 1
            return []
        self._counting.advance(now_s)
        answers: Effects = []
        if not batch.streamed and batch.live:
            self.latency.observe(batch.lane.variant, worker.cores, batch.size, now_s - batch.sent_s)
        self._collect(batch, codes, now_s, answers)
        batch.end()
        self.workers.release(worker)
        effects: Effects = [Drained(instance_id)] if worker.draining else []
        self._schedule_all(now_s, effects)
        effects += answers
        return effects

    # Other events

    def timer(self, now_s: float) -> Effects:
        """The time `wake_s` has come: answer what is late, and ask the policy where it wanted to be asked."""
        self._counting.advance(now_s)
        effects: Effects = []
        self._expire(now_s, effects)
        for lane in self.queue.waiting_lanes():
            if lane.wake_s <= now_s:
                self._schedule(lane, now_s, effects)
        return effects

    def set_policy(self, settings: Settings, policy: SchedulingPolicy, now_s: float) -> Effects:
        """Use another policy or other bounds from now on. What waits stays and is scheduled by the new one."""
        self._counting.advance(now_s)
        self.policy = policy
        self.queue.max_requests, self.queue.max_bytes = settings.queue_max_requests, settings.queue_max_bytes
        return self._schedule_all(now_s, [])

    def give_up(self, error: GnomonError, now_s: float) -> Effects:
        """Answer everything that waits with this error. What executes goes on."""
        self._counting.advance(now_s)
        effects: Effects = []
        for lane in self.queue.waiting_lanes():
            for request in lane.snapshot():
                self._withdraw(request, effects)
                effects.append(Answer(request, error))
        return effects

    @property
    def wake_s(self) -> float:
        """When `timer` is to be called at the latest; infinity if nothing is due."""
        wake_s = self._deadlines.next_s()
        for lane in self.queue.lanes.values():
            if lane.wake_s < wake_s and lane:
                wake_s = lane.wake_s
        return wake_s

    @property
    def in_system(self) -> int:
        """How many requests were let in and still wait for their answer."""
        return self._counting.in_system

    def counters(self, now_s: float) -> LoadCounters:
        """The function's load, cumulative and now."""
        oldest_s = self.queue.oldest_arrival_s()
        wait_s = now_s - oldest_s if oldest_s is not None else 0.0
        return self._counting.read(now_s, queued=self.queue.requests, oldest_wait_s=wait_s)

    # Scheduling

    def _schedule_all(self, now_s: float, effects: Effects) -> Effects:
        """Something may be possible now that was not before: ask the policy about every lane in which something waits."""
        self._expire(now_s, effects)
        if self.queue.requests:
            for lane in self.queue.waiting_lanes():
                self._schedule(lane, now_s, effects)
        self._counting.busy_cores = self.workers.busy_cores
        return effects

    def _schedule(self, lane: Lane, now_s: float, effects: Effects) -> None:
        """Ask the policy about this lane until nothing more comes of it."""
        lane.wake_s = _NEVER
        again = True
        while again and self.workers.any_idle:
            self._refuse_hopeless(lane, now_s, effects)
            if not lane:
                break
            again = False
            for action in self._asked(lane, now_s):
                if isinstance(action, Dispatch):
                    again |= self._send(lane, action, now_s, effects)
                elif isinstance(action, Reject):
                    again |= self._reject(lane, action, effects)
                else:
                    lane.wake_s = min(lane.wake_s, max(action.time_s, now_s + MIN_WAIT_S))
        self._counting.busy_cores = self.workers.busy_cores

    def _asked(self, lane: Lane, now_s: float) -> Sequence[ScheduleAction]:
        actions = ask(self.policy, lane, self.workers.view(solo=lane.solo), self.latency, now_s)
        if actions is None:
            # The function goes on being served by the simplest policy.
            self.policy_errors += 1
            actions = _SIMPLEST.next(lane, self.workers.view(solo=lane.solo), self.latency, now_s)
        return actions

    def _refuse_hopeless(self, lane: Lane, now_s: float, effects: Effects) -> None:
        """Answer the oldest requests that would be late: running them would help nobody and make others wait."""
        capacity = self.workers.capacity()
        while lane:
            request = lane.head()
            verdict = would_be_late(request, lane, capacity, self.latency, now_s)
            if verdict is None:
                return
            if verdict is Late.EVER:
                self._doubt(request)
            self._withdraw(request, effects)
            effects.append(Answer(request, deadline_exceeded(now_s - request.arrived_s)))

    def _send(self, lane: Lane, action: Dispatch, now_s: float, effects: Effects) -> bool:
        worker = self.workers.by_id.get(action.instance_id)
        requests = cast("tuple[Request, ...]", action.requests)
        if worker is None or not may_take(worker, lane, requests):
            self.policy_errors += 1
            _LOG.error("scheduling policy %s asked for a batch that may not be: %r", self.policy.name, action)
            return False
        self._last_batch += 1
        batch = Batch(self._last_batch, worker.id, lane.key, requests, now_s)
        batch.expected_end_s = now_s + (self.latency.seconds(lane.variant, worker.cores, batch.size) or 0.0)
        for request in requests:
            self.queue.remove(request)
            request.state = DISPATCHED
            request.batch = batch
        self.workers.take(worker, batch)
        effects.append(Send(batch))
        return True

    def _reject(self, lane: Lane, action: Reject, effects: Effects) -> bool:
        done = False
        for request in cast("tuple[Request, ...]", action.requests):
            if request in lane:
                self._withdraw(request, effects)
                effects.append(Answer(request, rejected(action.reason)))
                done = True
        return done

    # Ends of requests

    def _answered(self, request: Request) -> None:
        """The one terminal transition of a request that was let in."""
        request.state = ANSWERED
        self._counting.in_system -= 1
        self._deadlines.forget()

    def _withdraw(self, request: Request, effects: Effects) -> None:
        """End a request before its answer has come."""
        batch = request.batch
        if request.state == ADMITTED:
            self.queue.remove(request)
        elif batch is not None:
            batch.live -= 1
            if not batch.live:
                effects.append(Cancel(batch.instance_id, batch.id))
        self._answered(request)

    def _expire(self, now_s: float, effects: Effects) -> None:
        """Answer every request whose deadline has come."""
        if self._deadlines.next_s() > now_s:
            return
        for request in self._deadlines.due(now_s):
            waited_s = now_s - request.arrived_s
            served = bool(self.workers.by_id) or request.state == DISPATCHED
            self._withdraw(request, effects)
            effects.append(Answer(request, deadline_exceeded(waited_s) if served else no_instance(waited_s)))

    def _collect(self, batch: Batch, codes: Sequence[int], now_s: float, answers: Effects) -> None:
        """Turn a batch's results into answers for those members that still wait for one."""
        error = None if len(codes) == len(batch.requests) else invalid_result(batch.instance_id)
        for index, request in enumerate(batch.requests):
            if request.state != DISPATCHED or request.batch is not batch:
                self.late_answers += 1
                continue
            self._answered(request)
            if now_s > request.deadline_s:
                self.late_answers += 1
                answers.append(Answer(request, deadline_exceeded(now_s - request.arrived_s)))
                continue
            if error is None and codes[index] in _SUCCESS:
                self._counting.successes += 1
            answers.append(Answer(request, error, index))

    def _put_back(self, requests: Sequence[Request]) -> None:
        """Their batch was never received."""
        for request in requests:
            request.state = ADMITTED
            request.batch = None
        self.queue.put_back(requests)

    def _lost(self, request: Request, now_s: float, effects: Effects) -> None:
        """The instance that executed the request has died."""
        batch = request.batch
        if batch is not None and request.replay_safe and not (request.retried or batch.streamed) and now_s < request.deadline_s:
            request.retried = True
            request.state = ADMITTED
            request.batch = None
            request.lane = request.lane._replace(solo=True)
            self.queue.add(request)
            return
        self._answered(request)
        effects.append(Answer(request, instance_lost(batch.instance_id if batch is not None else "")))

    def _doubt(self, request: Request) -> None:
        self.latency.doubt(request.lane.variant, self.workers.capacity().cores)
