"""From the queue to an instance: what the scheduling policy wants is checked, and becomes batches.

The policy is asked about a lane again and again until nothing more comes of it. Before each time, the oldest requests that would
be late are answered: no policy has to think of them. A policy that raises is replaced by the simplest one for that decision.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

from gnomon_core.scheduling import Dispatch, Reject, ScheduleAction, WaitUntil
from gnomon_core.seams import SchedulingPolicy
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.asking import ask, may_take
from gnomon_gateway.dispatch.effects import Answer, Effects, Send
from gnomon_gateway.dispatch.endings import Endings
from gnomon_gateway.dispatch.latency import LiveLatency
from gnomon_gateway.dispatch.refusals import deadline_exceeded, rejected
from gnomon_gateway.queueing.admission import Late
from gnomon_gateway.queueing.batch import Batch
from gnomon_gateway.queueing.queue import Lane
from gnomon_gateway.queueing.request import DISPATCHED, Request
from gnomon_gateway.scheduling.immediate import Immediate

_LOG = logging.getLogger(__name__)

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
