"""The dispatcher on timelines on which something goes wrong: late, lost or wrong answers, clients that leave, a wrong policy."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gnomon_core.interfaces import LatencyModel
from gnomon_core.scheduling import Dispatch, FleetView, QueueView, ScheduleAction
from gnomon_gateway.dispatch.dispatcher import Cancel
from gnomon_gateway.queueing.request import ANSWERED, Request
from gnomon_gateway.scheduling.basic import Fixed
from tests.unit.gateway.dispatching import TENSORS, errors, make, request, sent


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


def test_what_an_instance_never_received_goes_back_to_where_it_was() -> None:
    dispatcher = make(instances=0)
    first, second, third = request(), request(), request(deadline_s=0.5)
    for each in (first, second, third):
        dispatcher.arrive([each], 0.0)
    assert sent(dispatcher.instance_ready("i1", 1, 2, 0.0)) == [[first, second]]
    dispatcher.left(second, 0.1)
    assert errors(dispatcher.instance_gone("i1", 0.1, unread=True)) == []
    assert sent(dispatcher.instance_ready("i2", 1, 2, 0.2)) == [[first, third]]
    # As often as it takes, until the deadline.
    assert errors(dispatcher.instance_gone("i2", 0.6, unread=True)) == ["no_instance"]
    assert sent(dispatcher.instance_ready("i3", 1, 2, 0.7)) == [[first]]
    assert dispatcher.queue.bytes == 0


def test_what_may_be_repeated_runs_once_more_alone() -> None:
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


def test_a_client_that_leaves_is_not_executed_and_an_abandoned_batch_is_cancelled() -> None:
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
def test_what_a_policy_may_not_do_does_not_happen(what: str) -> None:
    dispatcher = make(Misbehaving(what))
    assert dispatcher.arrive([request()], 0.0) == []
    assert dispatcher.policy_errors == 1
    assert dispatcher.queue.requests == 1
