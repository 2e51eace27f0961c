"""The dispatcher of one function: events in, effects out.

    arrive ─▶ admitted ─▶ waits in a lane ─▶ policy ─▶ Send ─▶ finished ─▶ Answer per member
                 └▶ refused           └▶ left, deadline          └▶ gone ─▶ Answer 502, or once more

It reads no clock and does no I/O: the caller passes the time, carries out the effects in their order and calls `timer` at
`wake_s`. Whatever the order of events, each request that arrives gets exactly one `Answer`, unless its client left first
(`left`).

Three rooms make one dispatcher: here are the events that come in; `sending` asks the policy and makes batches; `endings` knows
how a request's stay ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from gnomon_core.errors import GnomonError
from gnomon_core.pairs import Pair
from gnomon_core.scaling import LoadCounters
from gnomon_core.seams import SchedulingPolicy
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.effects import Answer, Drained, Effects
from gnomon_gateway.dispatch.endings import SUCCESS
from gnomon_gateway.dispatch.latency import LiveLatency
from gnomon_gateway.dispatch.sending import Sending
from gnomon_gateway.dispatch.workers import Worker
from gnomon_gateway.queueing.batch import Batch
from gnomon_gateway.queueing.queue import Lane
from gnomon_gateway.queueing.request import ADMITTED, ANSWERED, DISPATCHED, Request

_NEVER = float("inf")


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
