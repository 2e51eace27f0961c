"""Which requests are let in. A batch of b takes 20 + 10·b ms: t(1) = 30 ms, t(4) = 60 ms, t(8) = 100 ms."""

from __future__ import annotations

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.pairs import Pair
from gnomon_gateway.queueing.admission import LEAST_MARGIN, MOST_MARGIN, Capacity, refusal
from gnomon_gateway.queueing.queue import FunctionQueue
from gnomon_gateway.queueing.request import LaneKey, Request

LANE = LaneKey("events", "v")


class Instances:
    """Some that take 8 each, and when the first of them is free."""

    def __init__(self, count: int, free_in_s: float = 0.0) -> None:
        self.count = count
        self.free_s = free_in_s

    @property
    def any_idle(self) -> bool:
        return self.count > 0 and self.free_s == 0

    def capacity(self) -> Capacity:
        return Capacity(instances=self.count, samples=8 * self.count, batch=8, size=1)

    def free_in_s(self, now_s: float) -> float:
        return self.free_s - now_s


BUSY = Instances(1, 0.02)
IDLE = Instances(1)


class Linear:
    def __init__(self, spread: float = 0.0) -> None:
        self._spread = spread

    def spread(self, variant: str, cores: int, pair: Pair | None = None) -> float:
        del variant, cores, pair
        return self._spread

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        del pair
        return (0.02 + 0.01 * batch) / body_cores if variant == "v" else None


def queue_of(count: int, *, max_requests: int = 100, max_bytes: int = 1000) -> FunctionQueue:
    queue = FunctionQueue(max_requests, max_bytes)
    for _ in range(count):
        queue.add(Request(LANE, 0.0, 10.0))
    return queue


def judged(
    budget_s: float, waiting: int = 0, fleet: Instances = BUSY, *, lane: LaneKey = LANE, body: bytes = b"", spread: float = 0.0
) -> GnomonError | None:
    request = Request(lane, 0.0, budget_s, body=body)
    return refusal(request, queue_of(waiting), fleet, Linear(spread), 0.0)


def least_budget_s(waiting: int, fleet: Instances, spread: float = 0.0) -> float:
    """The shortest budget in milliseconds that is let in."""
    return next(ms for ms in range(1, 10_000) if judged(ms / 1000, waiting, fleet, spread=spread) is None) / 1000


def test_the_worked_examples() -> None:
    # Nothing waits, the instance is free in 20 ms; 30 ms for ours.
    assert least_budget_s(0, BUSY) == pytest.approx(LEAST_MARGIN * 0.05, abs=0.001)
    # 20 wait: three rounds of 8. 20 ms, two full rounds before ours, and ours.
    assert least_budget_s(20, BUSY) == pytest.approx(LEAST_MARGIN * 0.32, abs=0.001)
    # The same before two instances: two rounds of 16.
    assert least_budget_s(20, Instances(2, 0.02)) == pytest.approx(LEAST_MARGIN * 0.22, abs=0.001)


def test_the_farther_batches_are_from_what_was_foretold_the_more_room_is_left() -> None:
    # 0.02 s until it is free, then a batch of one in 0.03 s.
    assert least_budget_s(0, BUSY, spread=0.02) == pytest.approx(LEAST_MARGIN * 0.05, abs=0.001)
    assert least_budget_s(0, BUSY, spread=0.08) == pytest.approx((1 + 4 * 0.08) * 0.05, abs=0.001)
    assert least_budget_s(0, BUSY, spread=0.9) == pytest.approx(MOST_MARGIN * 0.05, abs=0.001)


def test_an_idle_instance_is_tried_without_margin() -> None:
    assert judged(0.0301, fleet=IDLE) is None


def test_what_cannot_be_met_even_alone_is_a_504() -> None:
    error = judged(0.029, fleet=IDLE)
    assert error is not None
    assert (error.status, error.code) == (504, "deadline_cannot_be_met")


def test_what_the_backlog_makes_late_is_a_503_that_says_when_to_come_back() -> None:
    error = judged(0.3, waiting=40)
    assert error is not None
    assert (error.status, error.code) == (503, "overloaded")
    # Six rounds: (20 + 5·100 + 100)·1.25 = 775 ms, 475 ms too long, which rounds up to a second.
    assert error.retry_after_s == pytest.approx(0.475)
    assert error.headers()["Retry-After"] == "1"


def test_a_deadline_in_the_past_is_a_504_even_if_nothing_is_known() -> None:
    error = judged(0.0, lane=LaneKey("events", "unknown"))
    assert error is not None
    assert error.status == 504


def test_without_instances_or_knowledge_a_request_is_held() -> None:
    assert judged(0.001, fleet=Instances(0)) is None
    assert judged(0.001, waiting=50, lane=LaneKey("events", "unknown")) is None


@pytest.mark.parametrize(("waiting", "body"), [(100, b""), (0, b"x" * 1001)])
def test_a_full_queue_is_a_429(waiting: int, body: bytes) -> None:
    error = judged(10.0, waiting, body=body)
    assert error is not None
    assert (error.status, error.code) == (429, "queue_full")
    assert error.headers()["Retry-After"] == "1"


def test_a_queue_counts_and_forgets() -> None:
    queue = queue_of(0)
    requests = [Request(LANE, float(n), 10.0, size=2, body=b"xyz") for n in range(5)]
    for request in requests:
        queue.add(request)
    queue.remove(requests[2])
    lane = queue.lanes[LANE]
    assert (queue.requests, queue.samples, queue.bytes, lane.samples) == (4, 8, 12, 8)
    assert list(lane.requests) == [requests[0], requests[1], requests[3], requests[4]]
    assert next(reversed(lane.requests)) is lane.requests[-1] is requests[4]
    assert lane.requests[2] is requests[3]
    assert lane.requests[1:3] == [requests[1], requests[3]]
    assert queue.oldest_arrival_s() == 0.0
    with pytest.raises(IndexError):
        lane.requests[4]


def test_lanes_are_asked_oldest_first_and_empty_ones_do_not_pile_up() -> None:
    queue = FunctionQueue(100, 1000)
    for number in range(50):
        request = Request(LaneKey("tensors", "v", head=b"%d" % number), 0.0, 1.0)
        queue.add(request)
        queue.remove(request)
    assert len(queue.lanes) <= 16
    late, early = Request(LaneKey("a", "v"), 2.0, 9.0), Request(LaneKey("b", "v"), 1.0, 9.0)
    queue.add(late)
    queue.add(early)
    assert [lane.key.kind for lane in queue.waiting_lanes()] == ["b", "a"]
