"""How a request's stay ends: exactly once, whatever comes first.

    waits ─────┬─▶ deadline, hopeless, given up by the policy ─▶ Answer with an error of ours
    executes ──┤─▶ its batch's result ─▶ Answer with its member of it, or 504 where it came too late
               └─▶ its client has left ─▶ no answer; the batch is cancelled when nobody waits for it any more

A batch whose instance dies fails alone. Where the instance had not even received it, it goes back to where it was, and nobody
notices. Otherwise its members get 502. They are not run again, because a user's handler may have acted before it died.

A request that is idempotent (`replay_safe`: a model's inference, or a handler with `gnomon/retry`) gets one more run if its
deadline allows, in a batch of its own: where its instance died, and where it failed with 500 beside others, of whom any may be to
blame. So an input that fails its batch, or kills instances, fails nobody but itself. What fails alone as well is quarantined
(`quarantine`): the same input shares no batch with others for some minutes.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.counting import Counting
from gnomon_gateway.dispatch.deadlines import Deadlines
from gnomon_gateway.dispatch.doubts import Doubts
from gnomon_gateway.dispatch.effects import Answer, Cancel, Effects
from gnomon_gateway.dispatch.latency import LiveLatency
from gnomon_gateway.dispatch.quarantine import Quarantine
from gnomon_gateway.dispatch.refusals import deadline_exceeded, instance_lost, invalid_result, no_instance
from gnomon_gateway.dispatch.sizing import Sizing
from gnomon_gateway.dispatch.workers import Workers
from gnomon_gateway.queueing.admission import Admission
from gnomon_gateway.queueing.batch import Batch
from gnomon_gateway.queueing.queue import FunctionQueue
from gnomon_gateway.queueing.request import ADMITTED, ANSWERED, DISPATCHED, LaneKey, Request

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
