"""The dispatcher: events in, effects out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gnomon_core.interfaces import LatencyModel
from gnomon_core.pairs import Pair
from gnomon_core.scheduling import Dispatch, FleetView, QueueView, ScheduleAction
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.dispatcher import Answer, Cancel, Deadlines, Dispatcher, Drained, Send, function_removed
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.queueing.queue import ANSWERED, LaneKey, Request
from gnomon_gateway.scheduling.policies import Fixed, Immediate
from tests.unit.gateway.dispatching import EVENTS, TENSORS, errors, make, request, sent


def test_next_batch_is_sent_before_the_answers_of_the_last() -> None:
    dispatcher = make()
    first, *others = [request() for _ in range(6)]
    assert sent(dispatcher.arrive([first], 0.0)) == [[first]]
    for other in others:
        assert dispatcher.arrive([other], 0.001) == []
    effects = dispatcher.finished("i0", 1, [200], 0.01)
    assert isinstance(effects[0], Send)
    assert list(effects[0].batch.requests) == others[:4]
    assert effects[1:] == [Answer(first, None, 0)]
    assert sent(dispatcher.finished("i0", 2, [200] * 4, 0.02)) == [others[4:]]


def test_admission_counts_on_the_batches_that_the_policy_makes() -> None:
    """An instance could take 8 and gets 2."""

    class Pairs:
        name = "pairs"

        def next(self, queue: QueueView, fleet: FleetView, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
            del latency, now_s
            return (Dispatch(fleet.idle[0].instance_id, tuple(queue.requests[:2])),) if fleet.idle and queue.samples else ()

    dispatcher = make(Pairs(), max_batch=8)
    for batch in range(1, 9):
        for _ in range(4):
            dispatcher.latency.observe("f", 1, batch, 0.02 * batch)
    capacity = dispatcher.workers.capacity
    assert (capacity().samples, capacity().batch) == (8, 8), "nothing is known about the policy"
    dispatcher.arrive([request(deadline_s=0.276) for _ in range(4)], 0.0)
    assert (capacity().samples, capacity().batch) == (8, 8), "fewer waited than it could take: that says nothing"
    dispatcher.fail_waiting(function_removed(), 0.0)
    dispatcher.finished("i0", 1, [200] * 2, 0.04)
    dispatcher.arrive([request(deadline_s=0.316) for _ in range(10)], 0.04)
    assert (capacity().samples, capacity().batch) == (2, 2), "eight are left behind"
    # Eight wait, 40 ms until it is free, four batches of 40 ms before its own of 20: (40 + 160 + 20) · 1.25 = 275 ms.
    assert errors(dispatcher.arrive([request(deadline_s=0.316)], 0.04)) == []
    assert errors(dispatcher.arrive([request(deadline_s=0.316)], 0.04)) == ["overloaded"]
    dispatcher.set_policy(Settings(), Immediate(), 0.04)
    assert capacity().batch == 8, "another policy shows anew what it does"


def test_simultaneous_requests_leave_together_per_lane() -> None:
    dispatcher = make(instances=2)
    first, second, third = request(), request(), request()
    tensor = Request(TENSORS, 0.0, 30.0)
    assert sent(dispatcher.arrive([first, tensor, second, third], 0.0)) == [[first, second, third], [tensor]]


def test_one_of_several_arrivals_can_be_refused_alone() -> None:
    dispatcher = make()
    late, first, second = request(deadline_s=-1.0), request(), request()
    effects = dispatcher.arrive([first, late, second], 0.0)
    assert errors(effects) == ["deadline_cannot_be_met"]
    assert sent(effects) == [[first, second]]


def test_simultaneous_arrivals_are_admitted_like_successive_ones() -> None:
    dispatcher = make(instances=2)
    together = [request() for _ in range(30)]
    effects = dispatcher.arrive(together, 0.0)
    assert [len(batch) for batch in sent(effects)] == [4, 4]
    assert errors(effects) == ["queue_full"] * 12, "8 leave and 10 wait"
    assert dispatcher.queue.requests == 10


def test_kinds_are_not_mixed_and_the_kind_that_waited_longest_goes_first() -> None:
    dispatcher = make()
    dispatcher.arrive([request()], 0.0)
    tensor, event = Request(TENSORS, 0.001, 30.0), request(0.002)
    dispatcher.arrive([tensor], 0.001)
    dispatcher.arrive([event], 0.002)
    assert sent(dispatcher.finished("i0", 1, [200], 0.01)) == [[tensor]]
    assert sent(dispatcher.finished("i0", 2, [200], 0.02)) == [[event]]


def test_requests_are_held_until_there_is_an_instance() -> None:
    dispatcher = make(instances=0)
    first = request()
    assert dispatcher.arrive([first], 0.0) == []
    assert sent(dispatcher.instance_ready("i0", 1, 4, 2.0)) == [[first]]


def test_a_deadline_without_any_instance_is_a_503_and_with_one_a_504() -> None:
    empty, busy = make(instances=0), make()
    empty.arrive([request(deadline_s=1.0)], 0.0)
    assert empty.wake_s == 1.0
    assert errors(empty.timer(1.0)) == ["no_instance"]
    busy.arrive([request(deadline_s=1.0)], 0.0)
    busy.arrive([request(deadline_s=0.5)], 0.0)
    assert errors(busy.timer(0.5)) == ["deadline_exceeded"]
    # The executing one is answered at its deadline too, and nobody waits for the batch any more.
    effects = busy.timer(1.0)
    assert errors(effects) == ["deadline_exceeded"]
    assert Cancel("i0", 1) in effects


def test_only_requests_that_would_be_late_overtake() -> None:
    dispatcher = make(max_batch=1)
    for _ in range(4):
        dispatcher.latency.observe("f", 1, 1, 0.1)
    running, patient, hurried, next_one = request(), request(), request(deadline_s=0.4), request(deadline_s=20.0)
    for each in (running, patient, hurried, next_one):
        assert errors(dispatcher.arrive([each], 0.0)) == []
    # Two before it and its own batch take 300 ms, with the margin of 1.25 they may take 375: it is in time where it stands.
    assert sent(dispatcher.finished("i0", 1, [200], 0.02)) == [[patient]]
    late = request(0.02, deadline_s=0.35)
    assert errors(dispatcher.arrive([late], 0.02)) == []
    assert sent(dispatcher.finished("i0", 2, [200], 0.1)) == [[late]]
    assert sent(dispatcher.finished("i0", 3, [200], 0.2)) == [[hurried]]


def test_no_policy_keeps_a_request_until_its_deadline_has_passed() -> None:
    dispatcher = make(Fixed(4, 10.0))
    for _ in range(4):
        dispatcher.latency.observe("f", 1, 1, 0.1)
    first = request(deadline_s=1.0)
    assert dispatcher.arrive([first], 0.0) == []
    # 1.25 times what it takes are left over, and the two milliseconds by which an event loop may be late.
    assert dispatcher.wake_s == pytest.approx(1.0 - 1.25 * 0.1 - 0.002)
    assert sent(dispatcher.timer(dispatcher.wake_s)) == [[first]]


def test_waits_for_a_busy_instance_if_the_idle_one_is_too_slow() -> None:
    class TwiceAsQuick:
        def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
            del variant, pair
            return 0.2 * batch / body_cores

    dispatcher = Dispatcher(Settings(), Immediate(), LearnedLatency(TwiceAsQuick()), 0.0)
    dispatcher.instance_ready("slow", 1, 4, 0.0)
    dispatcher.instance_ready("quick", 4, 4, 0.0)
    dispatcher.arrive([request()], 0.0)
    hurried = request(deadline_s=0.15)
    # "slow" is busy for 200 ms; "quick" takes 50 ms.
    assert sent(dispatcher.arrive([hurried], 0.0)) == [[hurried]]


def test_draining_finishes_what_runs_and_gives_nothing_more() -> None:
    dispatcher = make()
    dispatcher.arrive([request()], 0.0)
    dispatcher.arrive([request()], 0.0)
    assert dispatcher.drain("i0", 0.1) == []
    effects = dispatcher.finished("i0", 1, [200], 0.2)
    assert Drained("i0") in effects
    assert sent(effects) == []
    assert sent(dispatcher.instance_ready("i1", 1, 4, 0.3)) != []


def test_draining_an_idle_or_unknown_instance_is_over_at_once() -> None:
    dispatcher = make()
    assert dispatcher.drain("i0", 0.0) == [Drained("i0")]
    assert dispatcher.drain("nobody", 0.0) == [Drained("nobody")]


def test_another_policy_takes_over_what_waits() -> None:
    dispatcher = make(Fixed(4, 10.0))
    first = request()
    assert dispatcher.arrive([first], 0.0) == []
    assert dispatcher.wake_s == 10.0
    assert sent(dispatcher.set_policy(Settings(), Immediate(), 0.1)) == [[first]]


def test_a_stream_that_has_begun_is_not_ended_by_its_deadline() -> None:
    dispatcher = make()
    first = Request(LaneKey("stream", "f", solo=True), 0.0, 1.0, streaming=True)
    dispatcher.arrive([first], 0.0)
    dispatcher.stream_started(first)
    assert dispatcher.timer(5.0) == []
    assert dispatcher.finished("i0", 1, [200], 9.0) == [Answer(first, None, 0)]


def test_giving_up_answers_what_waits() -> None:
    dispatcher = make()
    dispatcher.arrive([request()], 0.0)
    dispatcher.arrive([request()], 0.0)
    assert errors(dispatcher.fail_waiting(function_removed(), 0.1)) == ["function_removed"]
    assert dispatcher.in_system == 1


def test_prediction_that_refuses_all_is_discounted_until_one_is_admitted() -> None:
    dispatcher = make()
    dispatcher.arrive([request()], 0.0)
    dispatcher.finished("i0", 1, [200], 10.0)  # the first batch was cold: 10 s
    refused = 0
    now_s = 11.0
    while not sent(dispatcher.arrive([Request(EVENTS, now_s, now_s + 1.0)], now_s)):
        refused += 1
        now_s += 0.01
        assert refused < 50
    assert refused == 22
    dispatcher.finished("i0", 2, [200], now_s + 0.01)
    assert sent(dispatcher.arrive([Request(EVENTS, 20.0, 28.0)], 20.0))


def test_integrals_are_exact() -> None:
    dispatcher = make(instances=1)
    dispatcher.instance_ready("i0", 2, 4, 0.0)
    dispatcher.arrive([request()], 1.0)
    dispatcher.arrive([request()], 2.0)
    dispatcher.finished("i0", 1, [200], 4.0)
    load = dispatcher.counters(5.0)
    # One request from 1 to 4 s, another from 2 s on; two cores busy from 1 s on.
    assert (load.concurrency_s, load.busy_core_s) == (6.0, 8.0)
    assert (load.arrivals, load.successes, load.queued, load.executing) == (2, 1, 0, 1)
    assert load.last_request_s == 2.0


def test_deadlines_of_answered_requests_do_not_pile_up() -> None:
    deadlines = Deadlines()
    for number in range(10_000):
        answered = request(deadline_s=1000.0 + number)
        deadlines.add(answered)
        answered.state = ANSWERED
        deadlines.forget()
    assert len(deadlines._heap) <= 65


def test_a_late_result_is_counted_and_dropped() -> None:
    dispatcher = make()
    dispatcher.arrive([request(deadline_s=1.0)], 0.0)
    dispatcher.timer(1.0)
    assert errors(dispatcher.finished("i0", 1, [200], 1.5)) == []
    assert dispatcher.late_answers == 1
    assert dispatcher.counters(1.5).successes == 0


def test_a_late_timer_does_not_let_an_expired_request_run() -> None:
    dispatcher = make(Fixed(4, 10.0))
    old, new = request(deadline_s=1.0), request(2.0)
    dispatcher.arrive([old], 0.0)
    assert errors(dispatcher.arrive([new], 2.0)) == ["deadline_exceeded"]
    assert old.state == ANSWERED


def test_a_crash_is_a_502_for_its_own_batch_and_nobody_else() -> None:
    dispatcher = make(instances=2, max_batch=1)
    hit, spared, waits = request(), request(), request()
    for each in (hit, spared, waits):
        dispatcher.arrive([each], 0.0)
    effects = dispatcher.instance_gone("i0", 0.1)
    assert errors(effects) == ["instance_lost"]
    assert sent(dispatcher.finished("i1", 2, [200], 0.2)) == [[waits]]


def test_unsent_batch_returns_to_its_place_in_the_queue() -> None:
    dispatcher = make(instances=0)
    first, second, third = request(), request(), request(deadline_s=0.5)
    for each in (first, second, third):
        dispatcher.arrive([each], 0.0)
    assert sent(dispatcher.instance_ready("i1", 1, 2, 0.0)) == [[first, second]]
    dispatcher.left(second, 0.1)
    assert errors(dispatcher.instance_gone("i1", 0.1, unread={1})) == []
    assert sent(dispatcher.instance_ready("i2", 1, 2, 0.2)) == [[first, third]]
    # As often as it takes, until the deadline.
    assert errors(dispatcher.instance_gone("i2", 0.6, unread={2})) == ["no_instance"]
    assert sent(dispatcher.instance_ready("i3", 1, 2, 0.7)) == [[first]]
    assert dispatcher.queue.bytes == 0


def test_retryable_member_runs_once_more_alone() -> None:
    dispatcher = make(instances=2, max_batch=4)
    blocker = request()
    dispatcher.arrive([blocker], 0.0)
    pair = [Request(TENSORS, 0.0, 30.0, replay_safe=True) for _ in range(2)]
    dispatcher.drain("i1", 0.0)
    for each in pair:
        dispatcher.arrive([each], 0.0)
    assert sent(dispatcher.finished("i0", 1, [200], 0.1)) == [pair]
    assert errors(dispatcher.instance_gone("i0", 0.2)) == []
    assert sent(dispatcher.instance_ready("i2", 1, 4, 0.3)) == [[pair[0]]]
    # The one that kills its instance again takes nobody along, and is not tried a third time.
    assert errors(dispatcher.instance_gone("i2", 0.4)) == ["instance_lost"]
    assert sent(dispatcher.instance_ready("i3", 1, 4, 0.5)) == [[pair[1]]]


def test_disconnected_clients_requests_are_withdrawn_or_cancelled() -> None:
    dispatcher = make()
    running, waiting = request(), request()
    dispatcher.arrive([running], 0.0)
    dispatcher.arrive([waiting], 0.0)
    assert dispatcher.left(waiting, 0.1) == []
    assert dispatcher.left(running, 0.2) == [Cancel("i0", 1)]
    assert dispatcher.left(running, 0.3) == []
    assert dispatcher.finished("i0", 1, [200], 0.4) == []
    assert dispatcher.in_system == 0


def test_a_result_with_missing_members_is_a_502_for_all() -> None:
    dispatcher = make()
    dispatcher.arrive([request()], 0.0)
    for _ in range(2):
        dispatcher.arrive([request()], 0.0)
    dispatcher.finished("i0", 1, [200], 0.1)
    assert errors(dispatcher.finished("i0", 2, [200], 0.2)) == ["invalid_result"] * 2


class Misbehaving:
    """Asks for what may not be, or raises."""

    name = "misbehaving"

    def __init__(self, what: str) -> None:
        self.what = what

    def next(self, queue: QueueView, fleet: FleetView, latency: LatencyModel, now_s: float) -> Sequence[ScheduleAction]:
        del fleet, latency, now_s
        if self.what == "raises":
            raise RuntimeError("no idea")
        if self.what == "nobody":
            return (Dispatch("nobody", tuple(queue.requests)),)
        if self.what == "twice":
            return (Dispatch("i0", (queue.requests[0], queue.requests[0])),)
        if self.what == "foreign":
            return (Dispatch("i0", (request(),)),)
        return (Dispatch("i0", ()),)


def test_a_policy_that_raises_is_replaced_for_that_decision() -> None:
    dispatcher = make(Misbehaving("raises"))
    first = request()
    assert sent(dispatcher.arrive([first], 0.0)) == [[first]]
    assert dispatcher.policy_errors == 1


@pytest.mark.parametrize("what", ["nobody", "twice", "foreign", "nothing"])
def test_forbidden_dispatch_of_a_policy_is_ignored(what: str) -> None:
    dispatcher = make(Misbehaving(what))
    assert dispatcher.arrive([request()], 0.0) == []
    assert dispatcher.policy_errors == 1
    assert dispatcher.queue.requests == 1
