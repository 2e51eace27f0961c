"""The dispatcher of one function: a state machine that turns events into effects.

    arrive ─▶ admitted ─▶ waits in a lane ─▶ policy ─▶ Send ─▶ finished ─▶ one Answer per member
                 └▶ refused           └▶ client gone, deadline      └▶ instance gone ─▶ Answer 502, or one retry

The dispatcher reads no clock and does no I/O. The caller passes the time, executes the effects in their order and calls `timer`
at `wake_s`. Whatever the order of events, each request gets exactly one `Answer`, unless its client left first (`left`).

Scheduling. The policy is asked about a lane until it makes no further batch. Before each question, the oldest requests that would
be late are answered, so that no policy has to handle deadlines. Policies may be third-party code: each decision is validated, and
a policy that raises is replaced by `immediate` for that decision.

How a request ends, exactly once:

    waits ─────┬─▶ deadline passed, cannot be met, or rejected by the policy ─▶ Answer with a platform error
    executes ──┤─▶ its batch's result ─▶ Answer with its member, or 504 if the result came too late
               └─▶ its client left ─▶ no Answer; the batch is cancelled once all its clients have left

Failures. An instance that ends fails only its own batches. A batch that the instance never received returns to the front of its
lanes. Members of other batches get 502 and are not retried, because a handler may have acted before it died.

An idempotent request (`replay_safe`: a model's inference, or a handler with `gnomon/retry`) is retried once, in a batch of its
own, if its deadline allows: after its instance died, and after it failed with 500 in a batch with others, any of which may have
caused the failure. So one input that fails its batch or kills instances fails no other request. An input that fails alone as well
is quarantined (`quarantine`): for some minutes, equal inputs are executed in batches of their own.
"""

from __future__ import annotations

import hashlib
import heapq
import logging
from collections import OrderedDict
from collections.abc import Collection, Sequence
from http import HTTPStatus
from typing import NamedTuple, TypeAlias, cast

from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import CoreLender, SchedulingPolicy
from gnomon_core.pairs import Pair
from gnomon_core.scaling import LoadCounters
from gnomon_core.scheduling import Dispatch, Reject, ScheduleAction, WaitUntil
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.fleet import Sizing, Worker, Workers
from gnomon_gateway.dispatch.latency import LiveLatency, RecentMeasurements
from gnomon_gateway.queueing.admission import Admission, Late
from gnomon_gateway.queueing.queue import ADMITTED, ANSWERED, DISPATCHED, Batch, FunctionQueue, Lane, LaneKey, Request
from gnomon_gateway.scheduling.policies import Immediate

SUCCESS = frozenset(range(200, 300))
FAILED = 500
"""The status of a handler or model that raised. Other errors are answers of the function."""
MIN_WAIT_S = 0.0005
"""The earliest that a policy which returns `WaitUntil` is asked again, so that it cannot keep the event loop busy."""
QUEUE_MOVED = "queue_moved"
"""The error code by which a request is forwarded to the queue's new owner."""
_SMALL_HEAP = 64
_FALLBACK_POLICY = Immediate()
_ONLY_WAITS = frozenset({WaitUntil})
_NEVER = float("inf")
_LOG = logging.getLogger(__name__)


class Send(NamedTuple):
    """Send the batch to its instance."""

    batch: Batch


class Answer(NamedTuple):
    """Answer the request: with a platform error, or if `error` is None with member number `member` of its batch's result."""

    request: Request
    error: GnomonError | None
    member: int = 0


class Cancel(NamedTuple):
    """Cancel the batch: all its clients have left."""

    instance_id: str
    batch_id: int


class Drained(NamedTuple):
    """The draining instance has no batch in flight and gets no further one."""

    instance_id: str


Effect: TypeAlias = Send | Answer | Cancel | Drained
Effects: TypeAlias = list[Effect]


class Dispatcher:
    """Queue, policy, instances and load counters of one function.

    The predicted latency of the variants in `sized_by` limits each instance's batches (see `fleet`); without any, an instance
    takes batches as large as it was started for. Events may name requests, instances and batches that have ended already: such
    events are ignored or counted.
    """

    def __init__(
        self,
        settings: Settings,
        policy: SchedulingPolicy,
        latency: LiveLatency,
        now_s: float,
        *,
        sized_by: tuple[str, ...] = (),
        lender: CoreLender | None = None,
    ) -> None:
        self.policy = policy
        self.latency = latency
        self.sizing = Sizing(latency, settings.slo_s, sized_by)
        self.workers = Workers(self.sizing)
        self.queue = FunctionQueue(settings.queue_max_requests, settings.queue_max_bytes, self._lane_added)
        self.admission = Admission(self.queue, self.workers, latency)
        self.quarantine = Quarantine()
        self.learns = True
        """True if batch latencies and refusals of this function update the latency model; False after its removal."""
        self.policy_errors = 0
        """Exceptions and invalid batches of the scheduling policy."""
        self.late_answers = 0
        """Results for requests that were already answered: the deadline had passed, or the client had left."""
        self.retried = 0
        """Requests that were executed a second time, each in a batch of its own."""
        self._lender = lender
        self._is_model = settings.model is not None
        self._deadlines = Deadlines()
        self._recent = RecentMeasurements()
        self._load = LoadMeter(now_s)
        self._last_batch = 0

    # Events of requests

    def arrive(self, requests: Sequence[Request], now_s: float) -> Effects:
        """Admit or refuse requests that were received together, then ask the policy about all that were admitted.

        Before a request is refused, the requests before it may be sent to an idle instance, which makes room.
        """
        load = self._load
        load.advance(now_s)
        load.arrivals += len(requests)
        load.last_request_s = now_s
        # Without an idle instance nothing can be scheduled now: the policy is not called, which keeps overload cheap.
        admission, idle = self.admission, bool(self.workers.idle)
        effects: Effects = []
        lanes: list[Lane] = []
        for request in requests:
            # With lanes that are not scheduled yet, an idle instance may be theirs: the refusal is not final.
            error = admission.refusal(request, now_s, settled=not lanes)
            if error is not None and error.status != HTTPStatus.GATEWAY_TIMEOUT and lanes:
                self._schedule_lanes(lanes, now_s, effects)
                lanes, idle = [], bool(self.workers.idle)
                error = admission.refusal(request, now_s)
            if error is not None:
                request.state = ANSWERED
                effects.append(Answer(request, error))
                # A busy fleet refuses rightly; an idle one may refuse by a wrong prediction, which no batch would ever correct.
                if idle and error.status == HTTPStatus.GATEWAY_TIMEOUT:
                    self._discount_prediction(request, now_s)
                continue
            self.quarantine.isolate(request, now_s)
            request.state = ADMITTED
            load.in_system += 1
            lane = self.queue.add(request)
            self._deadlines.add(request)
            if idle and lane not in lanes:
                lanes.append(lane)
        if lanes:
            self._schedule_lanes(lanes, now_s, effects)
        return effects

    def refuse_queue_full(self, request: Request, now_s: float) -> Effects:
        """Refuse a request with `queue_full` before its body is read.

        The refusal is unconditional: by the time of `arrive` the queue might have room, and would admit a request without a body.
        """
        self._load.advance(now_s)
        self._load.arrivals += 1
        self._load.last_request_s = now_s
        request.state = ANSWERED
        return [Answer(request, self.admission.queue_full(request))]

    def refuse(self, requests: Sequence[Request], error: GnomonError, now_s: float) -> Effects:
        """Answer these new requests with an error, because the function cannot start."""
        self._load.advance(now_s)
        self._load.arrivals += len(requests)
        self._load.last_request_s = now_s
        for request in requests:
            request.state = ANSWERED
        return [Answer(request, error) for request in requests]

    def left(self, request: Request, now_s: float) -> Effects:
        """Handle the disconnect of a request's client.

        A waiting request is removed from the queue. A batch whose clients have all left is cancelled.
        """
        effects: Effects = []
        if request.state in (ADMITTED, DISPATCHED):
            self._load.advance(now_s)
            self._withdraw(request, effects)
        return effects

    def stream_started(self, request: Request) -> None:
        """Handle the first part of a streamed answer. The deadline applies to the first part only, so it is lifted."""
        request.deadline_s = _NEVER
        if request.batch is not None:
            request.batch.streamed = True

    # Events of instances

    def instance_ready(
        self,
        instance_id: str,
        cores: int,
        max_batch: int,
        now_s: float,
        *,
        memory_mb: int | None = None,
        concurrency: int | None = None,
        idle_cores: int | None = None,
    ) -> Effects:
        """Handle an instance that became ready, or a known instance's new size or largest batch.

        The instance takes `concurrency` batches at a time; None keeps the present number, which is 1 at first. With `idle_cores`
        it keeps only those between batches and borrows up to `cores` for each; with None all its cores are its own.
        """
        self._load.advance(now_s)
        if instance_id not in self.workers.by_id:
            # A new instance's first batches are cold; compared with earlier measurements they would look like a slower model.
            self._recent.clear()
        self.workers.add(instance_id, cores, max_batch, memory_mb, concurrency=concurrency, idle_cores=idle_cores)
        return self._schedule_all(now_s, [])

    def pair_changed(self, instance_id: str, pair: Pair | None, now_s: float) -> Effects:
        """Change the pair of a Body: its next batch uses these Shadows, or none. Batches in flight are not affected."""
        worker = self.workers.by_id.get(instance_id)
        if worker is None or worker.pair == pair:
            return []
        self._load.advance(now_s)
        self.workers.pair(worker, pair)
        return self._schedule_all(now_s, [])

    def instance_gone(self, instance_id: str, now_s: float, *, unread: Collection[int] = ()) -> Effects:
        """Handle the end of an instance. `unread` are the ids of the batches that it had not received: they are put back."""
        worker = self.workers.by_id.get(instance_id)
        if worker is None:
            return []
        self._load.advance(now_s)
        self.workers.remove(worker)
        if self._lender is not None:
            self._lender.give_back(instance_id)
        effects: Effects = []
        not_received: list[Request] = []
        for batch in worker.batches.values():
            if batch.id in unread:
                not_received += batch.unanswered
            else:
                for request in batch.unanswered:
                    self._instance_died(request, now_s, effects)
            batch.end()
        self._put_back(not_received)
        if worker.draining:
            effects.append(Drained(instance_id))
        return self._schedule_all(now_s, effects)

    def drain(self, instance_id: str, now_s: float) -> Effects:
        """Send the instance no further batches; `Drained` follows once it has none in flight."""
        worker = self.workers.by_id.get(instance_id)
        if worker is None:
            return [Drained(instance_id)]
        self._load.advance(now_s)
        self.workers.drain(worker)
        return [] if worker.batches else [Drained(instance_id)]

    def finished(self, instance_id: str, batch_id: int, codes: Sequence[int], now_s: float) -> Effects:
        """Handle a batch's results, one HTTP status per member.

        The effects send the instance's next batch before they answer this one, so that the instance works meanwhile. A result
        that comes after its request's deadline is answered with 504.
        """
        executing = self._executing(instance_id, batch_id)
        if executing is None:
            return []
        worker, batch = executing
        self._load.advance(now_s)
        answers: Effects = []
        if batch.live and self._is_measurement(worker, batch, codes):
            self.latency.observe(batch.lane.variant, batch.instance_size, batch.size, now_s - batch.sent_s, batch.pair)
            self._recent.add(batch.lane.variant, batch.instance_size, batch.size, now_s)
            self._measured(batch.lane, now_s)
        self._collect(batch, codes, now_s, answers)
        batch.end()
        self.workers.release(worker, batch)
        self._give_back(worker)
        effects: Effects = [Drained(instance_id)] if worker.draining and not worker.batches else []
        # Before the answers: the instance executes its next batch while the gateway writes them.
        self._schedule_all(now_s, effects)
        effects += answers
        return effects

    def batch_refused(self, instance_id: str, batch_id: int, now_s: float) -> Effects:
        """Let a batch's requests wait again: its instance refused it, because it is about to end or the queue has a newer owner.

        The policy is not asked, because the newest assignment decides whether this replica still owns the queue.
        """
        executing = self._executing(instance_id, batch_id)
        if executing is None:
            return []
        worker, batch = executing
        self._load.advance(now_s)
        self._put_back(batch.unanswered)
        batch.end()
        self.workers.release(worker, batch)
        self._give_back(worker)
        self._load.busy_cores = self.workers.busy_cores
        return [Drained(instance_id)] if worker.draining and not worker.batches else []

    def reschedule(self, now_s: float) -> Effects:
        """Ask the policy about every lane with waiting requests."""
        self._load.advance(now_s)
        return self._schedule_all(now_s, [])

    def _is_measurement(self, worker: Worker, batch: Batch, codes: Sequence[int]) -> bool:
        """Return whether the batch's duration is a valid latency measurement.

        If the instance's size or Shadows changed meanwhile, the resources behind the batch are unknown. A draining instance may
        be of a replaced version. A model refuses invalid input within a millisecond, without computing anything.
        """
        if not self.learns or worker.draining or batch.streamed:
            return False
        if batch.pair is not worker.pair or (batch.instance_size != worker.size and worker.idle_cores is None):
            return False
        return not self._is_model or (len(codes) == len(batch.requests) and SUCCESS.issuperset(codes))

    def _executing(self, instance_id: str, batch_id: int) -> tuple[Worker, Batch] | None:
        """The instance and its batch; None if the batch is not in flight there."""
        worker = self.workers.by_id.get(instance_id)
        batch = worker.batches.get(batch_id) if worker is not None else None
        return None if worker is None or batch is None else (worker, batch)

    # Other events

    def timer(self, now_s: float) -> Effects:
        """Answer requests past their deadlines, and call the policy for lanes whose `wake_s` has come."""
        self._load.advance(now_s)
        effects: Effects = []
        self._expire(now_s, effects)
        for lane in self.queue.waiting_lanes():
            if lane.wake_s <= now_s:
                self._schedule(lane, now_s, effects)
        return effects

    def set_policy(
        self, settings: Settings, policy: SchedulingPolicy, now_s: float, *, sized_by: tuple[str, ...] | None = None
    ) -> Effects:
        """Use another policy and other limits from now on. Waiting requests stay and are scheduled by the new policy.

        `sized_by` are the variants that limit batches from now on; None keeps the present ones.
        """
        self._load.advance(now_s)
        self.policy = policy
        self._is_model = settings.model is not None
        self.workers.policy_changed()
        self.queue.max_requests, self.queue.max_bytes = settings.queue_max_requests, settings.queue_max_bytes
        self.sizing.set_objective(settings.slo_s, sized_by)
        self.workers.update_max_batches()
        return self._schedule_all(now_s, [])

    def fail_waiting(self, error: GnomonError, now_s: float) -> Effects:
        """Answer all waiting requests with this error. Batches in flight continue."""
        self._load.advance(now_s)
        effects: Effects = []
        for lane in self.queue.waiting_lanes():
            for request in lane.snapshot():
                self._withdraw(request, effects)
                effects.append(Answer(request, error))
        return effects

    @property
    def wake_s(self) -> float:
        """The time by which `timer` must be called; infinity if nothing is due."""
        wake_s = self._deadlines.next_s
        # Read after every event: a loop over two or three lanes is quicker than a heap of their times.
        for lane in self.queue.lanes.values():
            if lane.wake_s < wake_s and lane:
                wake_s = lane.wake_s
        return wake_s

    @property
    def in_system(self) -> int:
        """The number of admitted requests that have no answer yet."""
        return self._load.in_system

    def events(self) -> tuple[object, ...]:
        """A value that changes whenever a request arrives, starts executing or is answered."""
        load = self._load
        return load.arrivals, load.successes, load.in_system, load.busy_cores, load.last_request_s

    def counters(self, now_s: float) -> LoadCounters:
        """The function's load, cumulative and now."""
        oldest_s = self.queue.oldest_arrival_s()
        wait_s = now_s - oldest_s if oldest_s is not None else 0.0
        return self._load.read(now_s, queued=self.queue.requests, oldest_wait_s=wait_s)

    # Scheduling: from the queue to an instance

    def _schedule_all(self, now_s: float, effects: Effects) -> Effects:
        """Ask the policy about every lane with waiting requests: capacity or limits may have changed."""
        self._expire(now_s, effects)
        if self.queue.requests:
            for lane in self.queue.waiting_lanes():
                self._schedule(lane, now_s, effects)
        self._load.busy_cores = self.workers.busy_cores
        return effects

    def _schedule_lanes(self, lanes: list[Lane], now_s: float, effects: Effects) -> None:
        """Ask the policy about these lanes, which have new requests."""
        self._expire(now_s, effects)
        for lane in lanes:
            self._schedule(lane, now_s, effects)

    def _schedule(self, lane: Lane, now_s: float, effects: Effects) -> None:
        """Ask the policy about this lane until it makes no further batch.

        A request that was admitted because an instance was idle must not wait until it is late: once its time is up, `immediate`
        decides in the policy's place.
        """
        # The policy's earlier request to be called again is void: it sees the present state now.
        lane.wake_s = _NEVER
        workers = self.workers
        if self._lender is not None:
            workers.share_cores(self._lender.share)
        if lane.overtaken and workers.idle:
            self.admission.sort_if_late(lane, now_s)
        again = True
        # Each dispatch changes the fleet that the policy sees, so the policy is asked again until it only waits.
        while again and lane.samples and workers.idle:
            self._refuse_late(lane, now_s, effects)
            if not lane.samples:
                break
            actions = self._policy_actions(lane, now_s)
            if _ONLY_WAITS.issuperset(map(type, actions)):
                dispatch_by_s = self.admission.dispatch_by_s(lane)
                if dispatch_by_s <= now_s:
                    actions = self._fallback_actions(lane, now_s)
                else:
                    lane.wake_s = min(lane.wake_s, max(dispatch_by_s, now_s + MIN_WAIT_S))
            again = False
            for action in actions:
                if isinstance(action, Dispatch):
                    again |= self._send(lane, action, now_s, effects)
                elif isinstance(action, Reject):
                    again |= self._reject(lane, action, effects)
                else:
                    lane.wake_s = min(lane.wake_s, max(action.time_s, now_s + MIN_WAIT_S))
        self._load.busy_cores = self.workers.busy_cores

    def _policy_actions(self, lane: Lane, now_s: float) -> Sequence[ScheduleAction]:
        """The policy's actions for this lane. A policy that raises must not stop the function: `immediate` decides this once."""
        try:
            return self.policy.next(lane, self.workers.view(solo=lane.solo), self.latency, now_s)
        except Exception:  # noqa: BLE001 - policies may be third-party code
            _LOG.exception("scheduling policy %s raised; `immediate` decides in its place", self.policy.name)
            self.policy_errors += 1
            return self._fallback_actions(lane, now_s)

    def _fallback_actions(self, lane: Lane, now_s: float) -> Sequence[ScheduleAction]:
        return _FALLBACK_POLICY.next(lane, self.workers.view(solo=lane.solo), self.latency, now_s)

    def _refuse_late(self, lane: Lane, now_s: float, effects: Effects) -> None:
        """Answer the oldest requests that would be late: executing them would only delay others."""
        while lane.samples:
            verdict = self.admission.would_be_late(lane, now_s)
            if verdict is None:
                return
            request = lane.head()
            if verdict is Late.EVER:
                self._discount_prediction(request, now_s)
            self._withdraw(request, effects)
            effects.append(Answer(request, deadline_exceeded(now_s - request.arrived_s)))

    def _send(self, lane: Lane, action: Dispatch, now_s: float, effects: Effects) -> bool:
        worker = self.workers.by_id.get(action.instance_id)
        requests = cast("tuple[Request, ...]", action.requests)
        if worker is None or not is_valid_batch(worker, lane, requests):
            self.policy_errors += 1
            _LOG.error("scheduling policy %s returned an invalid batch, which is ignored: %r", self.policy.name, action)
            return False
        self._last_batch += 1
        batch = Batch(self._last_batch, worker.id, lane.key, requests, now_s)
        batch.pair, batch.instance_size, batch.cores = worker.pair, worker.size, worker.cores
        if worker.idle_cores is not None and self._lender is not None:
            wanted = worker.cores if action.cores is None else min(action.cores, worker.cores)
            batch.cores = batch.instance_size = batch.lent = self._lender.lend(worker.id, wanted)
            worker.has_loan = True
        # Admission predicts from this when the instance is free again.
        batch.expected_end_s = now_s + (self.latency.seconds(lane.variant, batch.instance_size, batch.size, batch.pair) or 0.0)
        for request in requests:
            self.queue.remove(request)
            request.state = DISPATCHED
            request.batch = batch
        self.workers.take(worker, batch)
        # After the removal, so that `lane.samples` are those that the policy left waiting.
        self.workers.learn_usual_batch(worker, batch, lane.samples)
        effects.append(Send(batch))
        return True

    def _give_back(self, worker: Worker) -> None:
        """Return borrowed cores to the node's arbiter once the instance executes no batch."""
        # An instance that has got cores of its own meanwhile returns its last loan too.
        if worker.has_loan and self._lender is not None and not worker.batches:
            self._lender.give_back(worker.id)
            worker.has_loan = False

    def _reject(self, lane: Lane, action: Reject, effects: Effects) -> bool:
        done = False
        for request in cast("tuple[Request, ...]", action.requests):
            if request in lane:
                self._withdraw(request, effects)
                effects.append(Answer(request, rejected(action.reason)))
                done = True
        return done

    # Terminal states of requests

    def _lane_added(self, key: LaneKey) -> None:
        """Let the variant of a new lane limit batch sizes from now on, unless the lane's batches hold one request each."""
        if not key.solo:
            self.sizing.mark_called(key.variant, self._load.last_request_s)
            self.workers.update_max_batches()

    def _measured(self, key: LaneKey, now_s: float) -> None:
        """Resize the instances' batches after a measured batch of this lane; forget variants that are not called any more."""
        if not key.solo:
            self.sizing.mark_called(key.variant, now_s)
        outdated = self.sizing.outdated
        for variant in self.sizing.uncalled_variants(now_s):
            if self.queue.forget(variant):
                self.sizing.forget(variant)
                outdated = True
        if outdated:
            self.workers.update_max_batches()

    def _end(self, request: Request) -> None:
        """Mark an admitted request as answered, which is its only terminal transition."""
        request.state = ANSWERED
        self._load.in_system -= 1
        self._deadlines.forget()

    def _withdraw(self, request: Request, effects: Effects) -> None:
        """End a request before its result: remove it from the queue, or cancel its batch if no other client waits for that."""
        batch = request.batch
        if request.state == ADMITTED:
            self.queue.remove(request)
        elif batch is not None:
            # Other members' clients still wait for this batch, so it is cancelled only with its last one.
            batch.live -= 1
            if not batch.live:
                # The slot stays taken until the channel reports the batch's end: the instance may be in the middle of it.
                effects.append(Cancel(batch.instance_id, batch.id))
        self._end(request)

    def _expire(self, now_s: float, effects: Effects) -> None:
        """Answer every request whose deadline has passed."""
        if self._deadlines.next_s > now_s:
            return
        for request in self._deadlines.due(now_s):
            waited_s = now_s - request.arrived_s
            # 504 if an instance could have answered; 503 if there was none, in which case a longer deadline would not have
            # helped.
            served = bool(self.workers.by_id) or request.state == DISPATCHED
            self._withdraw(request, effects)
            effects.append(Answer(request, deadline_exceeded(waited_s) if served else no_instance(waited_s)))

    def _collect(self, batch: Batch, codes: Sequence[int], now_s: float, answers: Effects) -> None:
        """Answer the batch's members that have no answer yet."""
        error = None if len(codes) == len(batch.requests) else invalid_result(batch.instance_id)
        for index, request in enumerate(batch.requests):
            # Answered before the result came (deadline, client gone), or put back and dispatched again with another batch.
            if request.state != DISPATCHED or request.batch is not batch:
                self.late_answers += 1
                continue
            if error is None and codes[index] == FAILED and self._handler_failed(request, batch, now_s):
                continue
            self._end(request)
            # The deadline's timer has not run yet, because the event loop was busy: the client gets the same answer as if it had.
            if now_s > request.deadline_s:
                self.late_answers += 1
                answers.append(Answer(request, deadline_exceeded(now_s - request.arrived_s)))
                continue
            if error is None and codes[index] in SUCCESS:
                self._load.successes += 1
                if request.lane.solo:
                    self.quarantine.release(request)
            answers.append(Answer(request, error, index))

    def _put_back(self, requests: Sequence[Request]) -> None:
        """Return the requests of a batch that was never received to the front of their lanes."""
        for request in requests:
            request.state = ADMITTED
            request.batch = None
        self.queue.put_back(requests)

    def _instance_died(self, request: Request, now_s: float, effects: Effects) -> None:
        """The instance died while executing the request: retry it or answer 502."""
        if self._retry(request, now_s):
            return
        if request.retried:
            # The second death, alone in the batch: this input ends instances. Equal inputs get batches of their own from now on.
            self.quarantine.add(request, now_s)
        self._end(request)
        effects.append(Answer(request, instance_lost(request.batch.instance_id if request.batch is not None else "")))

    def _handler_failed(self, request: Request, batch: Batch, now_s: float) -> bool:
        """The handler failed on the request. Returns whether it is retried: only if other requests were in its batch."""
        if len(batch.requests) > 1:
            return self._retry(request, now_s)
        if request.retried:
            self.quarantine.add(request, now_s)
        return False

    def _retry(self, request: Request, now_s: float) -> bool:
        """Queue the request for a batch of its own, if it is idempotent and was not retried yet. Returns whether it was."""
        batch = request.batch
        # The client of a stream has a part of the answer already; a second execution may give another.
        if batch is None or batch.streamed or not request.replay_safe or request.retried or now_s >= request.deadline_s:
            return False
        self.retried += 1
        request.retried = True
        request.state = ADMITTED
        request.batch = None
        # In a batch of its own, so that a second failure is caused by this request and fails no other.
        request.lane = request.lane._replace(solo=True)
        self.queue.add(request)
        return True

    def _discount_prediction(self, request: Request, now_s: float) -> None:
        """Discount the prediction by which alone a request is refused although an instance is idle."""
        left_s = request.deadline_s - now_s
        if not self.learns or left_s <= 0:
            return
        variant, latency = request.lane.variant, self.latency
        places = self.workers.places(now_s)
        if not places:
            return
        # If even the quickest instance is too slow by measurements, the deadline is short and the prediction right.
        quickest = min(places, key=lambda place: latency.seconds(variant, place.size, request.size, place.pair) or 0.0)
        size, pair = quickest.size, quickest.pair
        measured = self._recent.sizes(variant, size, now_s)
        known = [batch for batch in measured if batch <= request.size]
        if not known or (self.latency.seconds(variant, size, max(known), pair) or 0.0) <= left_s:
            self.latency.discount(variant, size, pair, measured)


class LoadMeter:
    """Counters and integrals over time, from which `LoadCounters` are read.

    The integrals advance at every event, so that the difference of two readings gives the exact mean of the time between them.
    `in_system` counts waiting and executing requests whose client is connected; `busy_cores` are those of executing instances.
    """

    __slots__ = (
        "_busy_core_s",
        "_concurrency_s",
        "_last_s",
        "arrivals",
        "busy_cores",
        "in_system",
        "last_request_s",
        "successes",
    )

    def __init__(self, now_s: float) -> None:
        self.arrivals = 0
        self.successes = 0
        self.in_system = 0
        self.busy_cores = 0
        self.last_request_s = 0.0
        self._concurrency_s = 0.0
        self._busy_core_s = 0.0
        self._last_s = now_s

    def advance(self, now_s: float) -> None:
        """Integrate the time since the last event. Called before anything changes."""
        elapsed_s = now_s - self._last_s
        if elapsed_s > 0:
            self._concurrency_s += self.in_system * elapsed_s
            self._busy_core_s += self.busy_cores * elapsed_s
            self._last_s = now_s

    def read(self, now_s: float, *, queued: int, oldest_wait_s: float) -> LoadCounters:
        """The counters at this time."""
        self.advance(now_s)
        return LoadCounters(
            arrivals=self.arrivals,
            successes=self.successes,
            concurrency_s=self._concurrency_s,
            busy_core_s=self._busy_core_s,
            queued=queued,
            executing=self.in_system - queued,
            oldest_wait_s=oldest_wait_s,
            last_request_s=self.last_request_s,
        )


class Deadlines:
    """The requests in the system, as a heap by deadline.

    Nearly every request is answered long before its deadline. Its entry stays until no request is left, or until more than half
    of the entries are dead and all dead ones are removed at once. So each request costs amortised constant time, and memory is
    bounded by twice the number of requests in the system.
    """

    __slots__ = ("_heap", "_live", "next_s")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._live = 0
        self.next_s = _NEVER
        """The earliest deadline, perhaps of a dead entry; infinity if there is none."""

    def add(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.deadline_s, request.id, request))
        self._live += 1
        self.next_s = self._heap[0][0]

    def forget(self) -> None:
        """Mark an answered request's entry as dead."""
        self._live -= 1
        if not self._live:
            self._heap.clear()
            self.next_s = _NEVER  # an idle function has no timer
        elif len(self._heap) > _SMALL_HEAP and len(self._heap) > 2 * self._live:
            self._heap = [entry for entry in self._heap if entry[2].state != ANSWERED]
            heapq.heapify(self._heap)
            self.next_s = self._heap[0][0]

    def due(self, now_s: float) -> list[Request]:
        """Remove and return the unanswered requests whose deadline has passed."""
        late: list[Request] = []
        heap = self._heap
        while heap and heap[0][0] <= now_s:
            request = heapq.heappop(heap)[2]
            # The deadline of a stream is lifted when its first part arrives, after the entry was made.
            if request.state != ANSWERED and request.deadline_s <= now_s:
                late.append(request)
        self.next_s = heap[0][0] if heap else _NEVER
        return late


def is_valid_batch(worker: Worker, lane: Lane, requests: tuple[Request, ...]) -> bool:
    """Return whether the instance has room and the requests are distinct, wait in the lane and fit into one batch."""
    if not worker.free_slots:
        return False
    if len(requests) == 1:
        return requests[0] in lane
    limit = 1 if lane.solo else worker.slot.max_batch
    ids = {request.id for request in requests if request in lane}
    return bool(requests) and len(ids) == len(requests) and sum([request.size for request in requests]) <= limit


def deadline_exceeded(waited_s: float) -> GnomonError:
    """504: the deadline passed before the answer came."""
    return GnomonError(
        504,
        "deadline_exceeded",
        f"No answer within the request's deadline; it has waited for {waited_s * 1e3:.0f} ms.",
        "Allow it more time (gnomon/deadline-ms), or let the function have more instances.",
        retry_after_s=1.0,
    )


def no_instance(waited_s: float) -> GnomonError:
    """503: the deadline passed before any instance was ready."""
    return GnomonError(
        503,
        "no_instance",
        f"No instance of the function became ready within {waited_s * 1e3:.0f} ms, the request's deadline.",
        "See the function's logs and decisions for why none starts.",
        retry_after_s=1.0,
    )


def rejected(reason: str) -> GnomonError:
    """504: the scheduling policy rejected the request."""
    return GnomonError(504, "deadline_cannot_be_met", reason, "Allow it more time (gnomon/deadline-ms).", retry_after_s=1.0)


def instance_lost(instance_id: str) -> GnomonError:
    """502: the instance ended while executing the request."""
    return GnomonError(
        502,
        "instance_lost",
        f"Instance {instance_id} ended before it answered.",
        "The request may have been executed; send it again only if that does no harm. The function's logs say more.",
    )


def invalid_result(instance_id: str) -> GnomonError:
    """502: the instance's result does not have one member per request of the batch."""
    return GnomonError(
        502, "invalid_result", f"Instance {instance_id} did not answer every request of its batch.", "See the function's logs."
    )


def queue_moved() -> GnomonError:
    """421: another gateway replica owns the function's queue now. The request was not executed; the forwarder retries."""
    return GnomonError(
        421, QUEUE_MOVED, "Another replica of the gateway has taken over this function's queue.", "Try again.", retry_after_s=1.0
    )


def function_removed() -> GnomonError:
    """503: the function was removed while the request waited."""
    return GnomonError(503, "function_removed", "The function has been removed.", "Deploy it again.")


def function_updated() -> GnomonError:
    """503: the function got a model with other tensors while the request waited for an instance of the earlier one."""
    message = "The function was updated to a model with other tensors before an instance executed the request."
    return GnomonError(503, "function_updated", message, "Send it again.", retry_after_s=1.0)


QUARANTINE_S = 300.0
MAX_QUARANTINED = 1024
"""The most inputs in quarantine. If another one is added, the oldest is released."""
_REQUEST_LINES = 3


class Quarantine:
    """The quarantined inputs of one function, as digests. No input is hashed while the quarantine is empty."""

    __slots__ = ("_until_s",)

    def __init__(self) -> None:
        self._until_s: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until_s)

    def add(self, request: Request, now_s: float) -> None:
        """Quarantine the input of a request that failed in a batch of its own."""
        digest = _digest(request)
        self._until_s[digest] = now_s + QUARANTINE_S
        self._until_s.move_to_end(digest)
        if len(self._until_s) > MAX_QUARANTINED:
            self._until_s.popitem(last=False)

    def release(self, request: Request) -> None:
        """Release the input of a request that succeeded."""
        if self._until_s:
            self._until_s.pop(_digest(request), None)

    def isolate(self, request: Request, now_s: float) -> None:
        """Give an arriving request a batch of its own if an equal input is in quarantine. The request is not retried then."""
        if not self._until_s or not request.replay_safe or request.lane.solo:
            return
        digest = _digest(request)
        until_s = self._until_s.get(digest)
        if until_s is None:
            return
        if now_s >= until_s:
            del self._until_s[digest]
            return
        request.lane = request.lane._replace(solo=True)
        request.retried = True


def _digest(request: Request) -> bytes:
    lane = request.lane
    known = hashlib.blake2b(f"{lane.kind}\n{lane.variant}\n".encode() + lane.head, digest_size=16)
    # Method, path and query only: headers such as the call id differ between equal inputs.
    known.update(b"\n".join(request.meta.split(b"\n", _REQUEST_LINES)[:_REQUEST_LINES]))
    known.update(request.body)
    return known.digest()
