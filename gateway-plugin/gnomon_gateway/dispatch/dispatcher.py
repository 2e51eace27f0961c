"""The dispatcher of one function: events in, effects out.

    arrive ─▶ admitted ─▶ waits in a lane ─▶ policy ─▶ Send ─▶ finished ─▶ Answer per member
                 └▶ refused           └▶ left, deadline          └▶ gone ─▶ Answer 502, or once more

It reads no clock and does no I/O: the caller passes the time, carries out the effects in their order and calls `timer` at
`wake_s`. Whatever the order of events, each request that arrives gets exactly one `Answer`, unless its client left first
(`left`).

Three rooms make one dispatcher: here are the events that come in; `sending` asks the policy and makes batches; `endings` knows
how a request's stay ends.

From the queue to an instance: what the scheduling policy wants is checked, and becomes batches.

The policy is asked about a lane again and again until nothing more comes of it. Before each time, the oldest requests that would
be late are answered: no policy has to think of them. A policy that raises is replaced by the simplest one for that decision.

How a request's stay ends: exactly once, whatever comes first.

    waits ─────┬─▶ deadline, hopeless, given up by the policy ─▶ Answer with an error of ours
    executes ──┤─▶ its batch's result ─▶ Answer with its member of it, or 504 where it came too late
               └─▶ its client has left ─▶ no answer; the batch is cancelled when nobody waits for it any more

A batch whose instance dies fails alone. Where the instance had not even received it, it goes back to where it was, and nobody
notices. Otherwise its members get 502. They are not run again, because a user's handler may have acted before it died.

A request that is idempotent (`replay_safe`: a model's inference, or a handler with `gnomon/retry`) gets one more run if its
deadline allows, in a batch of its own: where its instance died, and where it failed with 500 beside others, of whom any may be to
blame. So an input that fails its batch, or kills instances, fails nobody but itself. What fails alone as well is quarantined
(`quarantine`): the same input shares no batch with others for some minutes.

Asking a scheduling policy, and not believing it: policies come from outside too.

What a function's load was, kept exactly: counters and integrals over time.

The integrals move at every event, so that any two readings give the true mean of the time between them.

The deadlines of all requests in the system, the earliest first.

Nearly every request is answered long before its deadline. Its entry stays until it comes to the top or until more than half of
the entries are dead, when all dead ones are thrown out at once: each request costs a constant amount of work on average, and
memory is bounded by twice the requests in the system, not by the requests that one deadline's length lets through.

What a dispatcher wants done.

Effects come in the order in which they are to be carried out: batches first, so that instances work while answers are written.

The platform's own answers to requests that were let in.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import NamedTuple, TypeAlias, cast

from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import LatencyModel, SchedulingPolicy
from gnomon_core.pairs import Pair
from gnomon_core.scaling import LoadCounters
from gnomon_core.scheduling import Dispatch, FleetView, Reject, ScheduleAction, WaitUntil
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.fleet import Sizing, Worker, Workers
from gnomon_gateway.dispatch.latency import Doubts, LiveLatency
from gnomon_gateway.dispatch.quarantine import Quarantine
from gnomon_gateway.queueing.admission import Admission, Late
from gnomon_gateway.queueing.queue import FunctionQueue, Lane
from gnomon_gateway.queueing.request import ADMITTED, ANSWERED, DISPATCHED, Batch, LaneKey, Request
from gnomon_gateway.scheduling.basic import Immediate


class Counting:
    """The counters behind a `LoadCounters`.

    `in_system` is requests waiting or executing whose client still waits; `busy_cores` the cores of executing instances.
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
        """Account for the time since the last event. Called before anything changes."""
        elapsed_s = now_s - self._last_s
        if elapsed_s > 0:
            self._concurrency_s += self.in_system * elapsed_s
            self._busy_core_s += self.busy_cores * elapsed_s
            self._last_s = now_s

    def read(self, now_s: float, *, queued: int, oldest_wait_s: float) -> LoadCounters:
        """The counters at this moment."""
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


_SMALL = 64


class Deadlines:
    """A heap of requests by deadline."""

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._live = 0

    def add(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.deadline_s, request.id, request))
        self._live += 1

    def forget(self) -> None:
        """One of the requests has been answered."""
        self._live -= 1
        heap = self._heap
        if len(heap) > _SMALL and len(heap) > 2 * self._live:
            self._heap = [entry for entry in heap if entry[2].state != ANSWERED]
            heapq.heapify(self._heap)

    def next_s(self) -> float:
        """The earliest deadline that may still matter; infinity if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def due(self, now_s: float) -> list[Request]:
        """Take out the unanswered requests whose deadline has come."""
        late: list[Request] = []
        heap = self._heap
        while heap and heap[0][0] <= now_s:
            request = heapq.heappop(heap)[2]
            # A stream that has begun has had its deadline lifted since it was put here.
            if request.state != ANSWERED and request.deadline_s <= now_s:
                late.append(request)
        return late


class Send(NamedTuple):
    """Give the batch to its instance."""

    batch: Batch


class Answer(NamedTuple):
    """The request's one answer: an error of ours, or, where `error` is None, member number `member` of its batch's result."""

    request: Request
    error: GnomonError | None
    member: int = 0


class Cancel(NamedTuple):
    """Nobody waits for this batch any more."""

    instance_id: str
    batch_id: int


class Drained(NamedTuple):
    """The instance has nothing in flight and will get nothing more."""

    instance_id: str


Effect: TypeAlias = Send | Answer | Cancel | Drained
Effects: TypeAlias = list[Effect]


QUEUE_MOVED = "queue_moved"
"""The code of the error by which a request is handed on."""


def deadline_exceeded(waited_s: float) -> GnomonError:
    """504: its deadline passed before an answer came."""
    return GnomonError(
        504,
        "deadline_exceeded",
        f"No answer within the request's deadline; it has been here for {waited_s * 1e3:.0f} ms.",
        "Allow it more time (gnomon/deadline-ms), or let the function have more instances.",
        retry_after_s=1.0,
    )


def no_instance(waited_s: float) -> GnomonError:
    """503: its deadline passed before there was any instance."""
    return GnomonError(
        503,
        "no_instance",
        f"No instance of the function became ready within {waited_s * 1e3:.0f} ms, the request's deadline.",
        "See the function's logs and decisions for why none starts.",
        retry_after_s=1.0,
    )


def rejected(reason: str) -> GnomonError:
    """504: the scheduling policy gave the request up."""
    return GnomonError(504, "deadline_cannot_be_met", reason, "Allow it more time (gnomon/deadline-ms).", retry_after_s=1.0)


def instance_lost(instance_id: str) -> GnomonError:
    """502: the instance ended while it executed the request."""
    return GnomonError(
        502,
        "instance_lost",
        f"Instance {instance_id} ended before it answered.",
        "The request may have been executed; send it again only if that does no harm. The function's logs say more.",
    )


def invalid_result(instance_id: str) -> GnomonError:
    """502: the instance answered something that is not a result of this batch."""
    return GnomonError(
        502, "invalid_result", f"Instance {instance_id} did not answer every request of its batch.", "See the function's logs."
    )


def queue_moved() -> GnomonError:
    """421: another gateway replica has the function's queue now. Nothing was executed; whoever forwarded it asks that one."""
    return GnomonError(
        421, QUEUE_MOVED, "Another replica of the gateway has taken over this function's queue.", "Try again.", retry_after_s=1.0
    )


def function_removed() -> GnomonError:
    """503: the function is going away, and so does its queue."""
    return GnomonError(503, "function_removed", "The function has been removed.", "Deploy it again.")


SUCCESS = frozenset(range(200, 300))
FAILED = 500
"""The status of a handler or model that raised. Other errors are answers."""


class Endings:
    """What waits, what executes, and the ways out. The ground that `Sending` and `Dispatcher` stand on.

    They are one object in three rooms, one above the other: a request passes through all of them several times, and each hop from
    object to object would be paid twenty thousand times a second.
    """

    def __init__(self, settings: Settings, latency: LiveLatency, now_s: float, sized_by: tuple[str, ...]) -> None:
        self.latency = latency
        self.sizing = Sizing(latency, settings.slo_s, sized_by)
        self.workers = Workers(self.sizing.largest)
        self.queue = FunctionQueue(settings.queue_max_requests, settings.queue_max_bytes, self._new_lane)
        self.admission = Admission(self.queue, self.workers, latency)
        self.learns = True
        """Whether what batches take, and whom predictions refuse, says anything of those to come."""
        self.late_answers = 0
        """Results that came for requests which had been answered already: their deadline had passed or their client had left."""
        self.retried = 0
        """Requests that were executed once more, by themselves."""
        self.quarantine = Quarantine()
        self._deadlines = Deadlines()
        self._doubts = Doubts()
        self._counting = Counting(now_s)

    def _new_lane(self, key: LaneKey) -> None:
        """Batches are to be in time for requests of this kind as well, but for those that are alone in theirs."""
        if not key.solo:
            self.sizing.called(key.variant, self._counting.last_request_s)
            self.workers.size_again()

    def _learned(self, key: LaneKey, now_s: float) -> None:
        """A batch of this kind was measured: size instances by what is known now, and by what is called."""
        if not key.solo:
            self.sizing.called(key.variant, now_s)
        quiet = [one for one in self.sizing.quiet(now_s) if self.queue.forget(one)]
        for one in quiet:
            self.sizing.forget(one)
        if quiet or self.sizing.outdated:
            self.workers.size_again()

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
            if error is None and codes[index] == FAILED and self._failed(request, batch, now_s):
                continue
            self._answered(request)
            if now_s > request.deadline_s:
                self.late_answers += 1
                answers.append(Answer(request, deadline_exceeded(now_s - request.arrived_s)))
                continue
            if error is None and codes[index] in SUCCESS:
                self._counting.successes += 1
                if request.lane.solo:
                    self.quarantine.release(request)
            answers.append(Answer(request, error, index))

    def _put_back(self, requests: Sequence[Request]) -> None:
        """Their batch was never received."""
        for request in requests:
            request.state = ADMITTED
            request.batch = None
        self.queue.put_back(requests)

    def _lost(self, request: Request, now_s: float, effects: Effects) -> None:
        """The instance that executed the request has died."""
        if self._once_more(request, now_s):
            return
        if request.retried:
            self.quarantine.add(request, now_s)
        self._answered(request)
        effects.append(Answer(request, instance_lost(request.batch.instance_id if request.batch is not None else "")))

    def _failed(self, request: Request, batch: Batch, now_s: float) -> bool:
        """The request's handler has raised. Whether it gets another run: one that failed beside others, if that does no harm."""
        if len(batch.requests) > 1:
            return self._once_more(request, now_s)
        if request.retried:
            self.quarantine.add(request, now_s)
        return False

    def _once_more(self, request: Request, now_s: float) -> bool:
        """Let the request wait for a batch of its own if it may be executed a second time, and was not yet; whether it does."""
        batch = request.batch
        if batch is None or batch.streamed or not request.replay_safe or request.retried or now_s >= request.deadline_s:
            return False
        self.retried += 1
        request.retried = True
        request.state = ADMITTED
        request.batch = None
        request.lane = request.lane._replace(solo=True)
        self.queue.add(request)
        return True

    def _doubt(self, request: Request, now_s: float) -> None:
        """Although an instance is idle, this request is refused: by a prediction, unless its deadline had passed anyway."""
        left_s = request.deadline_s - now_s
        if not self.learns or left_s <= 0:
            return
        variant, latency = request.lane.variant, self.latency
        places = self.workers.places(now_s)
        if not places:
            return
        quickest = min(places, key=lambda place: latency.seconds(variant, place.size, request.size, place.pair) or 0.0)
        size, pair = quickest.size, quickest.pair
        measured = self._doubts.lately(variant, size, now_s)
        known = [batch for batch in measured if batch <= request.size]
        if not known or (self.latency.seconds(variant, size, max(known), pair) or 0.0) <= left_s:
            self.latency.doubt(variant, size, pair, measured)


_LOG = logging.getLogger(__name__)


def ask(
    policy: SchedulingPolicy, lane: Lane, fleet: FleetView, latency: LatencyModel, now_s: float
) -> Sequence[ScheduleAction] | None:
    """What the policy wants for this lane; None if it raised."""
    try:
        return policy.next(lane, fleet, latency, now_s)
    except Exception:  # noqa: BLE001 - whatever it is, requests must not wait for its author
        _LOG.exception("scheduling policy %s failed", policy.name)
        return None


def may_take(worker: Worker, lane: Lane, requests: tuple[Request, ...]) -> bool:
    """Whether the instance is idle and these are different waiting requests of the lane that it can take together."""
    if not worker.room:
        return False
    if len(requests) == 1:
        return requests[0] in lane
    limit = 1 if lane.solo else worker.slot.max_batch
    ids = {request.id for request in requests if request in lane}
    return bool(requests) and len(ids) == len(requests) and sum([request.size for request in requests]) <= limit


_SIMPLEST = Immediate()
_NEVER = float("inf")
MIN_WAIT_S = 0.0005
"""A policy that wants to be asked again at once is asked half a millisecond later: it must not keep the loop busy."""


class Sending(Endings):
    """The policy and the batches it makes."""

    def __init__(
        self, settings: Settings, policy: SchedulingPolicy, latency: LiveLatency, now_s: float, sized_by: tuple[str, ...]
    ) -> None:
        super().__init__(settings, latency, now_s, sized_by)
        self.policy = policy
        self.policy_errors = 0
        self._last_batch = 0

    def _schedule_all(self, now_s: float, effects: Effects) -> Effects:
        """Something may be possible now that was not before: ask the policy about every lane in which something waits."""
        self._expire(now_s, effects)
        if self.queue.requests:
            for lane in self.queue.waiting_lanes():
                self._schedule(lane, now_s, effects)
        self._counting.busy_cores = self.workers.busy_cores
        return effects

    def _schedule_lanes(self, lanes: list[Lane], now_s: float, effects: Effects) -> None:
        """Something new waits in these lanes: ask the policy about each."""
        self._expire(now_s, effects)
        for lane in lanes:
            self._schedule(lane, now_s, effects)

    def _schedule(self, lane: Lane, now_s: float, effects: Effects) -> None:
        """Ask the policy about this lane until nothing more comes of it.

        What was let in because it could leave at once must not be kept waiting until it would be late: at that time the simplest
        policy decides.
        """
        lane.wake_s = _NEVER
        if lane.overtaken and self.workers.any_idle:
            self.admission.put_in_order(lane, now_s)
        again = True
        while again and self.workers.any_idle:
            self._refuse_hopeless(lane, now_s, effects)
            if not lane:
                break
            actions = self._asked(lane, now_s)
            if all(isinstance(action, WaitUntil) for action in actions):
                leave_by_s = self.admission.leave_by_s(lane, now_s)
                if leave_by_s <= now_s:
                    actions = self._simplest(lane, now_s)
                else:
                    lane.wake_s = min(lane.wake_s, max(leave_by_s, now_s + MIN_WAIT_S))
            again = False
            for action in actions:
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
            actions = self._simplest(lane, now_s)
        return actions

    def _simplest(self, lane: Lane, now_s: float) -> Sequence[ScheduleAction]:
        return _SIMPLEST.next(lane, self.workers.view(solo=lane.solo), self.latency, now_s)

    def _refuse_hopeless(self, lane: Lane, now_s: float, effects: Effects) -> None:
        """Answer the oldest requests that would be late: running them would help nobody and make others wait."""
        while lane:
            request = lane.head()
            verdict = self.admission.would_be_late(lane, now_s)
            if verdict is None:
                return
            if verdict is Late.EVER:
                self._doubt(request, now_s)
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
        batch.pair, batch.instance_size = worker.pair, worker.slot.size
        batch.expected_end_s = now_s + (self.latency.seconds(lane.variant, batch.instance_size, batch.size, batch.pair) or 0.0)
        for request in requests:
            self.queue.remove(request)
            request.state = DISPATCHED
            request.batch = batch
        self.workers.take(worker, batch)
        self.workers.took(worker, batch, lane.samples)
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


class Dispatcher(Sending):
    """Queue, policy, instances and counters of one function.

    `sized_by` are the variants whose latency bounds the batches of an instance, where a profile foretells it (see `sizing`);
    without one, an instance takes as many samples as it is said to.
    """

    def __init__(
        self,
        settings: Settings,
        policy: SchedulingPolicy,
        latency: LiveLatency,
        now_s: float,
        *,
        sized_by: tuple[str, ...] = (),
    ) -> None:
        super().__init__(settings, policy, latency, now_s, sized_by)
        self._is_model = settings.model is not None
        self.stale_batches = 0
        """Results of batches that were not in flight."""

    # Events of requests

    def arrive(self, requests: Sequence[Request], now_s: float) -> Effects:
        """These requests have been received together. Each is refused or waits; then the policy is asked about all of them.

        Before one is refused, those before it may leave for an idle instance.
        """
        counting = self._counting
        counting.advance(now_s)
        counting.arrivals += len(requests)
        counting.last_request_s = now_s
        admission, idle = self.admission, self.workers.any_idle
        effects: Effects = []
        lanes: list[Lane] = []
        for request in requests:
            error = admission.refusal(request, now_s, settled=not lanes)
            if error is not None and error.status != HTTPStatus.GATEWAY_TIMEOUT and lanes:
                self._schedule_lanes(lanes, now_s, effects)
                lanes, idle = [], self.workers.any_idle
                error = admission.refusal(request, now_s)
            if error is not None:
                request.state = ANSWERED
                effects.append(Answer(request, error))
                if idle and error.status == HTTPStatus.GATEWAY_TIMEOUT:
                    self._doubt(request, now_s)
                continue
            self.quarantine.isolate(request, now_s)
            request.state = ADMITTED
            counting.in_system += 1
            lane = self.queue.add(request)
            self._deadlines.add(request)
            if idle and lane not in lanes:
                lanes.append(lane)
        if lanes:
            self._schedule_lanes(lanes, now_s, effects)
        return effects

    def turn_away(self, request: Request, now_s: float) -> Effects:
        """Refuse a request for which the queue has no room, of which no more than its head has been received.

        At once and in any case: by the time of `arrive` there might be room, and it would be let in without its body.
        """
        self._counting.advance(now_s)
        self._counting.arrivals += 1
        self._counting.last_request_s = now_s
        request.state = ANSWERED
        return [Answer(request, self.admission.queue_full(request))]

    def refuse(self, requests: Sequence[Request], error: GnomonError, now_s: float) -> Effects:
        """These requests have been received and are answered with this error: the function cannot start."""
        self._counting.advance(now_s)
        self._counting.arrivals += len(requests)
        self._counting.last_request_s = now_s
        for request in requests:
            request.state = ANSWERED
        return [Answer(request, error) for request in requests]

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

    def instance_ready(
        self,
        instance_id: str,
        cores: int,
        max_batch: int,
        now_s: float,
        *,
        memory_mb: int | None = None,
        concurrency: int | None = None,
    ) -> Effects:
        """An instance can take batches from now on; or a known one has another size or largest batch.

        It takes `concurrency` batches at a time; where that is left out, as many as before, at first one.
        """
        self._counting.advance(now_s)
        if instance_id not in self.workers.by_id:
            self._doubts.begin()
        self.workers.add(instance_id, cores, max_batch, memory_mb, concurrency)
        return self._schedule_all(now_s, [])

    def pair_changed(self, instance_id: str, pair: Pair | None, now_s: float) -> Effects:
        """From its next batch on this Body works with a Shadow as `pair` says, or alone. What it executes is not touched."""
        worker = self.workers.by_id.get(instance_id)
        if worker is None or worker.pair == pair:
            return []
        self._counting.advance(now_s)
        self.workers.pair(worker, pair)
        return self._schedule_all(now_s, [])

    def instance_gone(self, instance_id: str, now_s: float, *, unread: bool = False) -> Effects:
        """An instance has ended. Only its batches are affected, the last of which it had not received where it is `unread`."""
        worker = self.workers.by_id.get(instance_id)
        if worker is None:
            return []
        self._counting.advance(now_s)
        self.workers.remove(worker)
        effects: Effects = []
        last_id = max(worker.batches, default=0)
        for batch in worker.batches.values():
            open_ones = [request for request in batch.requests if request.batch is batch and request.state == DISPATCHED]
            if unread and batch.id == last_id:
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
        return [] if worker.batches else [Drained(instance_id)]

    def finished(self, instance_id: str, batch_id: int, codes: Sequence[int], now_s: float) -> Effects:
        """A batch has its results, one HTTP status per member.

        The instance's next batch comes before the answers of this one. An answer that comes after its deadline is none.
        """
        executing = self._executing(instance_id, batch_id)
        if executing is None:
            return []
        worker, batch = executing
        self._counting.advance(now_s)
        answers: Effects = []
        if batch.live and self._teaches(worker, batch, codes):
            self.latency.observe(batch.lane.variant, worker.slot.size, batch.size, now_s - batch.sent_s, batch.pair)
            self._doubts.measured(batch.lane.variant, worker.slot.size, batch.size, now_s)
            self._learned(batch.lane, now_s)
        self._collect(batch, codes, now_s, answers)
        batch.end()
        self.workers.release(worker, batch)
        effects: Effects = [Drained(instance_id)] if worker.draining and not worker.batches else []
        self._schedule_all(now_s, effects)
        effects += answers
        return effects

    def not_run(self, instance_id: str, batch_id: int, now_s: float) -> Effects:
        """An instance has refused a batch because another owner of the queue has begun: its requests wait again.

        The policy is not asked: what is still ours to send, the newest map of owners says.
        """
        executing = self._executing(instance_id, batch_id)
        if executing is None:
            return []
        worker, batch = executing
        self._counting.advance(now_s)
        self._put_back([one for one in batch.requests if one.batch is batch and one.state == DISPATCHED])
        batch.end()
        self.workers.release(worker, batch)
        self._counting.busy_cores = self.workers.busy_cores
        return [Drained(instance_id)] if worker.draining and not worker.batches else []

    def look_again(self, now_s: float) -> Effects:
        """Ask the policy about everything that waits."""
        self._counting.advance(now_s)
        return self._schedule_all(now_s, [])

    def _teaches(self, worker: Worker, batch: Batch, codes: Sequence[int]) -> bool:
        """Whether this batch says how long one like it takes.

        Where its instance or what helped that changed meanwhile, nobody knows what it was computed with. An instance that is
        drained may be of a version that is replaced. What a model refuses, it refuses in a millisecond, without computing it.
        """
        if not self.learns or worker.draining or batch.streamed:
            return False
        if batch.pair is not worker.pair or batch.instance_size != worker.slot.size:
            return False
        return not self._is_model or (len(codes) == len(batch.requests) and SUCCESS.issuperset(codes))

    def _executing(self, instance_id: str, batch_id: int) -> tuple[Worker, Batch] | None:
        """The instance and its batch; None, and counted, where that is not in flight there any more."""
        worker = self.workers.by_id.get(instance_id)
        batch = worker.batches.get(batch_id) if worker is not None else None
        if worker is None or batch is None:
            self.stale_batches += 1
            return None
        return worker, batch

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

    def set_policy(
        self, settings: Settings, policy: SchedulingPolicy, now_s: float, *, sized_by: tuple[str, ...] | None = None
    ) -> Effects:
        """Use another policy or other bounds from now on. What waits stays and is scheduled by the new one.

        `sized_by` are the variants that bound batches from now on; None leaves them as they are.
        """
        self._counting.advance(now_s)
        self.policy = policy
        self._is_model = settings.model is not None
        self.workers.another_policy()
        self.queue.max_requests, self.queue.max_bytes = settings.queue_max_requests, settings.queue_max_bytes
        self.sizing.bound(settings.slo_s, sized_by)
        self.workers.size_again()
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

    def events(self) -> tuple[object, ...]:
        """A value that is another one after any request has come, has been begun or has been answered."""
        counting = self._counting
        return counting.arrivals, counting.successes, counting.in_system, counting.busy_cores, counting.last_request_s

    def counters(self, now_s: float) -> LoadCounters:
        """The function's load, cumulative and now."""
        oldest_s = self.queue.oldest_arrival_s()
        wait_s = now_s - oldest_s if oldest_s is not None else 0.0
        return self._counting.read(now_s, queued=self.queue.requests, oldest_wait_s=wait_s)
