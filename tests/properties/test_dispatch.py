"""The dispatcher in virtual time, in any order of events: no request is lost, doubled, answered twice, or late without a reason.

Arrivals, clients that leave, instances that come, take one batch or several at a time, crash, are drained and finish, Shadows
that come, change and go, timers, and policies that change, at random. The model beside the dispatcher is a list of what each
request has been told.
"""

from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gnomon_core.errors import GnomonError
from gnomon_core.pairs import Pair
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.dispatcher import Answer, Cancel, Dispatcher, Drained, Effect, Send
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.queueing.queue import ADMITTED, ANSWERED, DISPATCHED, Batch, LaneKey, Request
from gnomon_gateway.scheduling.registry import BUILT_IN, scheduling_policy

EVENTS = LaneKey("events", "v")
TENSORS = LaneKey("tensors", "v", b'{"kind": "tensors"}')
STREAM = LaneKey("stream", "v", solo=True)
MAX_REQUESTS, MAX_BYTES = 12, 4000
REASONS = {
    "queue_full", "overloaded", "deadline_cannot_be_met", "deadline_exceeded", "no_instance", "instance_lost", "function_removed",
}  # fmt: skip


PAIRS = (Pair(1, (1, 2), (0, 1, 1, 2)), Pair(2, (1,), (0, 1)), None)


class Foretold:
    """10 ms and 40 ms a sample on a core alone; a Shadow takes off half of that, or more."""

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        if variant != "v":
            return None
        return (0.01 + 0.04 * batch) / body_cores / (1 if pair is None else 1 + pair.shadow_cores)


class Dispatching(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.settings = Settings(queue_max_requests=MAX_REQUESTS, queue_max_bytes=MAX_BYTES, max_batch=4, slo_s=0.5)
        self.pairs: dict[str, Pair | None] = {}
        self.dispatcher = Dispatcher(
            self.settings, scheduling_policy("immediate", self.settings), LearnedLatency(Foretold()), 0.0, sized_by=("v",)
        )
        self.requests: list[Request] = []
        self.outcomes: dict[Request, list[GnomonError | None]] = {}
        self.gone: set[Request] = set()
        self.in_flight: dict[tuple[str, int], Batch] = {}
        self.concurrency: dict[str, int] = {}
        self.cancelled: set[int] = set()
        self.put_back: set[Request] = set()
        self.runs: dict[Request, int] = {}
        self.instances: dict[str, int] = {}
        self.draining: set[str] = set()
        self.next_instance = 0
        self.concurrency_s = 0.0
        self.busy_core_s = 0.0
        self.new_instance(4, 1)

    def executing(self, name: str) -> list[Batch]:
        return [batch for (instance_id, _), batch in self.in_flight.items() if instance_id == name]

    def end(self, key: tuple[str, int], codes: int) -> None:
        """A batch of the instance has its results."""
        batch, name = self.in_flight.pop(key), key[0]
        # An ended batch lets go of its requests: what its answers are compared with is kept here.
        members = batch.requests
        effects = self.dispatcher.finished(name, batch.id, [codes] * len(members), self.now_s)
        self.carry_out(effects, batch, members)

    def carry_out(self, effects: list[Effect], results: Batch | None = None, members: tuple[Request, ...] = ()) -> None:
        for effect in effects:
            match effect:
                case Send(batch):
                    self.check_batch(batch)
                case Answer(request, error, member):
                    self.outcomes[request].append(error)
                    assert request not in self.gone, "answered after its client left"
                    if error is None:
                        assert results is not None
                        assert members[member] is request, "another's result"
                        assert self.now_s <= request.deadline_s, "late"
                    else:
                        assert error.code in REASONS
                case Cancel(instance_id, batch_id):
                    assert (instance_id, batch_id) in self.in_flight, "a batch cancelled that does not run"
                    self.cancelled.add(batch_id)
                case Drained(instance_id):
                    assert not self.executing(instance_id)
                    self.draining.discard(instance_id)

    def check_batch(self, batch: Batch) -> None:
        name = batch.instance_id
        fewest = min(
            len(self.executing(instance))
            for instance in self.instances
            if instance not in self.draining and self.same_size(instance, name)
        )
        assert len(self.executing(name)) == fewest, "another like it executes less"
        assert len(self.executing(name)) < self.concurrency[name], "more batches than the instance executes"
        assert batch.instance_id not in self.draining, "a batch for a draining instance"
        assert batch.pair == self.pairs.get(batch.instance_id), "foretold by another Shadow than it has"
        assert len({request.lane for request in batch.requests}) == 1, "kinds mixed"
        assert sum(request.size for request in batch.requests) <= self.instances[batch.instance_id] or len(batch.requests) == 1
        if batch.lane.solo or any(request.retried for request in batch.requests):
            assert len(batch.requests) == 1
        for request in batch.requests:
            assert request not in self.gone, "run for a client that left"
            assert not self.outcomes[request], "run after its answer"
            assert self.now_s <= request.deadline_s, "run after its deadline"
            self.runs[request] = self.runs.get(request, 0) + 1
            assert self.runs[request] <= (2 if request.replay_safe else 1), "run again although that may do harm"
        self.in_flight[name, batch.id] = batch

    def same_size(self, first: str, second: str) -> bool:
        workers = self.dispatcher.workers.by_id
        return (
            workers[first].slot.max_batch == workers[second].slot.max_batch
            and self.concurrency[first] >= self.concurrency[second]
        )

    def pass_time(self, duration_s: float) -> None:
        """Move the clock, stopping wherever the dispatcher asked to be woken."""
        end_s = self.now_s + duration_s
        for _ in range(2000):
            wake_s = self.dispatcher.wake_s
            if wake_s > end_s:
                break
            self.move_to(max(wake_s, self.now_s))
            self.carry_out(self.dispatcher.timer(self.now_s))
        else:
            pytest.fail("the dispatcher asks to be woken for ever")
        self.move_to(end_s)

    def elapse(self, duration_s: float, *, timely: bool) -> None:
        """Time passes; if not `timely`, the event loop was busy elsewhere and no timer has come."""
        if timely:
            self.pass_time(duration_s)
        else:
            self.move_to(self.now_s + duration_s)

    def move_to(self, time_s: float) -> None:
        elapsed_s = time_s - self.now_s
        waiting = sum(request.state in (ADMITTED, DISPATCHED) for request in self.requests)
        self.concurrency_s += waiting * elapsed_s
        self.busy_core_s += len({name for name, _ in self.in_flight}) * elapsed_s
        self.now_s = time_s

    @rule(
        duration_s=st.sampled_from([0.0, 0.001, 0.01, 0.1, 1.0]),
        budget_s=st.sampled_from([0.0, 0.005, 0.05, 0.5, 5.0]),
        lane=st.sampled_from([EVENTS, EVENTS, TENSORS, STREAM]),
        size=st.integers(1, 4),
        body_bytes=st.sampled_from([0, 10, 1500]),
        others=st.lists(st.sampled_from([EVENTS, TENSORS, STREAM]), max_size=3),
        timely=st.booleans(),
    )
    def arrive(
        self,
        *,
        duration_s: float,
        budget_s: float,
        lane: LaneKey,
        size: int,
        body_bytes: int,
        others: list[LaneKey],
        timely: bool,
    ) -> None:
        self.elapse(duration_s, timely=timely)
        together = [
            Request(
                each,
                self.now_s,
                self.now_s + budget_s,
                size=size if each is TENSORS else 1,
                body=bytes(body_bytes),
                replay_safe=each is TENSORS,
            )
            for each in (lane, *others)
        ]
        self.requests += together
        self.outcomes |= {request: [] for request in together}
        self.carry_out(self.dispatcher.arrive(together, self.now_s))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), duration_s=st.sampled_from([0.0, 0.04]), timely=st.booleans())
    def leave(self, *, data: st.DataObject, duration_s: float, timely: bool) -> None:
        request = data.draw(st.sampled_from(self.requests))
        self.elapse(duration_s, timely=timely)
        effects = self.dispatcher.left(request, self.now_s)
        if not self.outcomes[request]:
            self.gone.add(request)
        self.carry_out(effects)

    @rule(max_batch=st.integers(1, 8), concurrency=st.sampled_from([1, 1, 3]))
    def new_instance(self, max_batch: int, concurrency: int) -> None:
        if len(self.instances) >= 3:
            return
        self.next_instance += 1
        name = f"i{self.next_instance}"
        self.instances[name], self.concurrency[name] = max_batch, concurrency
        self.carry_out(self.dispatcher.instance_ready(name, 1, max_batch, self.now_s, concurrency=concurrency))

    @precondition(lambda self: self.instances)
    @rule(data=st.data(), pair=st.sampled_from(PAIRS), duration_s=st.sampled_from([0.0, 0.04]), timely=st.booleans())
    def shadow_comes_changes_or_goes(self, *, data: st.DataObject, pair: Pair | None, duration_s: float, timely: bool) -> None:
        name = data.draw(st.sampled_from([*sorted(self.instances), "gone long ago"]))
        self.elapse(duration_s, timely=timely)
        running = dict(self.in_flight)
        if name in self.instances:
            self.pairs[name] = pair
        effects = self.dispatcher.pair_changed(name, pair, self.now_s)
        assert not any(isinstance(effect, Answer) and effect.error is None for effect in effects)
        self.carry_out(effects)
        assert running.items() <= self.in_flight.items(), "what runs is not touched"

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), duration_s=st.sampled_from([0.001, 0.02, 0.3]), codes=st.sampled_from([200, 500]), timely=st.booleans())
    def finish(self, *, data: st.DataObject, duration_s: float, codes: int, timely: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.in_flight)))
        self.elapse(duration_s, timely=timely)
        self.end(key, codes)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def finish_late_and_again(self, data: st.DataObject) -> None:
        name, batch_id = data.draw(st.sampled_from(sorted(self.in_flight)))
        batch = self.in_flight[name, batch_id]
        assert not self.dispatcher.finished(name, batch.id + 1000, [200], self.now_s)
        assert not self.dispatcher.finished("nobody", batch.id, [200], self.now_s)

    @precondition(lambda self: self.instances)
    @rule(data=st.data(), duration_s=st.sampled_from([0.0, 0.04]), timely=st.booleans())
    def crash(self, *, data: st.DataObject, duration_s: float, timely: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.instances)))
        self.elapse(duration_s, timely=timely)
        others = {
            request
            for (other, _), batch in self.in_flight.items()
            for request in batch.requests
            if other != name and self.now_s < request.deadline_s
        }
        answers_before = {request: len(self.outcomes[request]) for request in others}
        lost = self.executing(name)
        self.in_flight = {key: batch for key, batch in self.in_flight.items() if key[0] != name}
        unread = {batch.id for batch in lost if data.draw(st.booleans())}
        unhurt = [request for batch in lost if batch.id in unread for request in batch.requests if request.state == DISPATCHED]
        self.put_back.update(unhurt)
        for request in unhurt:
            self.runs[request] -= 1
        del self.instances[name]
        was_draining = name in self.draining
        effects = self.dispatcher.instance_gone(name, self.now_s, unread=unread)
        said = {effect.error.code for effect in effects if isinstance(effect, Answer) and effect.error is not None}
        assert "instance_lost" not in said or len(unread) < len(lost)
        self.carry_out(effects)
        assert not was_draining or name not in self.draining, "a drain that never ends"
        assert answers_before == {request: len(self.outcomes[request]) for request in others}, "another batch was affected"

    @precondition(lambda self: self.instances)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.instances)))
        self.draining.add(name)
        self.carry_out(self.dispatcher.drain(name, self.now_s))
        assert (name in self.draining) == bool(self.executing(name))
        if name not in self.draining:
            # Drained: its owner stops it.
            del self.instances[name]
            self.carry_out(self.dispatcher.instance_gone(name, self.now_s))

    @rule(name=st.sampled_from(sorted(BUILT_IN)), max_wait_s=st.sampled_from([0.0, 0.05]))
    def switch_policy(self, name: str, max_wait_s: float) -> None:
        changed = Settings(
            queue_max_requests=MAX_REQUESTS, queue_max_bytes=MAX_BYTES, max_batch=4, slo_s=0.5, max_wait_s=max_wait_s
        )
        self.carry_out(self.dispatcher.set_policy(changed, scheduling_policy(name, changed), self.now_s))

    @invariant()
    def each_request_has_at_most_one_end(self) -> None:
        for request in self.requests:
            ends = len(self.outcomes[request]) + (request in self.gone)
            assert ends <= 1
            assert (request.state == ANSWERED) == (ends == 1)

    @invariant()
    def the_queue_holds_what_waits_within_its_bounds(self) -> None:
        queue = self.dispatcher.queue
        waiting = [request for request in self.requests if request.state == ADMITTED]
        again = sum(request.retried or request in self.put_back for request in waiting)
        assert queue.requests == len(waiting) <= MAX_REQUESTS + again
        assert queue.samples == sum(request.size for request in waiting)
        assert queue.bytes == sum(request.body_bytes for request in waiting)
        assert queue.bytes <= MAX_BYTES + 1500 * again

    @invariant()
    def idle_instances_come_by_the_largest_batch_that_is_good_for_them(self) -> None:
        idle = self.dispatcher.workers.view(solo=False).idle
        sizes = [slot.max_batch for slot in idle]
        assert sizes == sorted(sizes)
        for slot in idle:
            assert 1 <= slot.max_batch <= self.instances[slot.instance_id]
            assert slot.pair == self.pairs.get(slot.instance_id)

    @invariant()
    def a_batch_that_nobody_waits_for_is_cancelled(self) -> None:
        for batch in self.in_flight.values():
            abandoned = all(request.state == ANSWERED for request in batch.requests)
            assert (batch.id in self.cancelled) == abandoned

    @invariant()
    def counters_are_exact(self) -> None:
        load = self.dispatcher.counters(self.now_s)
        states = [request.state for request in self.requests]
        assert load.arrivals == len(self.requests)
        assert (load.queued, load.executing) == (states.count(ADMITTED), states.count(DISPATCHED))
        assert load.concurrency_s == pytest.approx(self.concurrency_s)
        assert load.busy_core_s == pytest.approx(self.busy_core_s)

    def teardown(self) -> None:
        """When everything has run out, everybody has been told."""
        self.pass_time(10.0)
        for key in list(self.in_flight):
            if key in self.in_flight:
                self.end(key, 200)
        assert all(request.state == ANSWERED for request in self.requests)
        assert self.dispatcher.in_system == self.dispatcher.queue.requests == 0
        assert not self.dispatcher.policy_errors


TestDispatching: Any = Dispatching.TestCase
TestDispatching.settings = hypothesis_settings(max_examples=200, stateful_step_count=40, deadline=None)
