"""Which requests are let in. A batch of b takes 20 + 10·b ms: t(1) = 30 ms, t(4) = 60 ms, t(8) = 100 ms."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.pairs import Pair
from gnomon_gateway.queueing.admission import MAX_MARGIN, MIN_MARGIN, Admission, Capacity, Place
from gnomon_gateway.queueing.queue import FunctionQueue, LaneKey, Request

LANE = LaneKey("events", "v")


class Instances:
    """Each takes 8 samples, and is free after its time; idle where that is 0."""

    def __init__(self, *free_in_s: float) -> None:
        self._free_in_s = free_in_s

    def capacity(self) -> Capacity:
        count = len(self._free_in_s)
        return Capacity(instances=count, samples=8 * count, batch=8, size=1)

    def places(self, now_s: float) -> Sequence[Place]:
        return [Place(1, None, 8, max(0.0, free_in_s - now_s), idle=free_in_s == 0) for free_in_s in self._free_in_s]

    def idle_sizes(self) -> Sequence[tuple[int, Pair | None]]:
        return [(1, None) for free_in_s in self._free_in_s if free_in_s == 0]

    def largest_idle(self) -> Place | None:
        return next((place for place in self.places(0.0) if place.idle), None)


BUSY = Instances(0.02)
IDLE = Instances(0.0)


class Linear:
    revision = 0

    def __init__(self, spread: float | None = 0.0) -> None:
        self._spread = spread

    def spread(self, variant: str, cores: int, pair: Pair | None = None) -> float | None:
        del variant, cores, pair
        return self._spread

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        del pair
        return (0.02 + 0.01 * batch) / body_cores if variant == "v" else None


def queue_of(count: int, *, max_requests: int = 100, max_bytes: int = 1000, deadline_s: float = 10.0) -> FunctionQueue:
    queue = FunctionQueue(max_requests, max_bytes)
    for _ in range(count):
        queue.add(Request(LANE, 0.0, deadline_s))
    return queue


def judged(
    budget_s: float,
    waiting: int = 0,
    fleet: Instances = BUSY,
    *,
    lane: LaneKey = LANE,
    body: bytes = b"",
    spread: float | None = 0.0,
    theirs_s: float | None = None,
    settled: bool = True,
) -> GnomonError | None:
    """Whether a request with this budget is let in, where the others that wait have the same, or `theirs_s`."""
    request = Request(lane, 0.0, budget_s, body=body)
    queue = queue_of(waiting, deadline_s=budget_s if theirs_s is None else theirs_s)
    return Admission(queue, fleet, Linear(spread)).refusal(request, 0.0, settled=settled)


def least_budget_s(waiting: int, fleet: Instances, spread: float | None = 0.0, **options: float) -> float:
    """The shortest budget in milliseconds that is let in."""
    return next(ms for ms in range(1, 10_000) if judged(ms / 1000, waiting, fleet, spread=spread, **options) is None) / 1000  # type: ignore[arg-type]


def test_the_worked_examples() -> None:
    # Nothing waits, the instance is free in 20 ms; 30 ms for ours.
    assert least_budget_s(0, BUSY) == pytest.approx(MIN_MARGIN * 0.05, abs=0.001)
    # 20 wait: 20 ms, two full batches of 100, and one of the last five in 70.
    assert least_budget_s(20, BUSY) == pytest.approx(MIN_MARGIN * 0.29, abs=0.001)
    # The same before two instances: a full batch and one of three here, a full batch and one of two there.
    assert least_budget_s(20, Instances(0.02, 0.02)) == pytest.approx(MIN_MARGIN * 0.17, abs=0.001)


def test_an_instance_that_is_free_later_takes_what_it_still_can() -> None:
    # By 150 ms, and a margin: an idle one answers 8 and 2 in 100 + 40 ms, one that is free in 60 ms 7 in 90.
    both = Instances(0.01, 0.06)
    assert judged(0.151 * MIN_MARGIN, 16, both) is None
    assert judged(0.149 * MIN_MARGIN, 16, both) is not None


def test_a_prediction_that_is_never_off_leaves_no_room() -> None:
    assert least_budget_s(20, BUSY, spread=None) == pytest.approx(0.291)


def test_margin_grows_with_the_error_of_predictions() -> None:
    # 0.02 s until it is free, then a batch of one in 0.03 s.
    assert least_budget_s(0, BUSY, spread=0.02) == pytest.approx(MIN_MARGIN * 0.05, abs=0.001)
    assert least_budget_s(0, BUSY, spread=0.081) == pytest.approx((1 + 4 * 0.081) * 0.05, abs=0.001)
    assert least_budget_s(0, BUSY, spread=0.9) == pytest.approx(MAX_MARGIN * 0.05, abs=0.001)


def test_idle_instance_needs_no_margin() -> None:
    assert judged(0.0301, fleet=IDLE) is None
    assert judged(0.0301, waiting=7, fleet=IDLE) is None
    assert judged(0.0301, waiting=7, fleet=IDLE, settled=False) is not None, "those that came just now leave first"


def test_urgent_request_goes_first() -> None:
    assert least_budget_s(40, BUSY, theirs_s=10.0) == pytest.approx(MIN_MARGIN * 0.05, abs=0.001)


def test_urgent_request_is_refused_where_others_would_be_late() -> None:
    # 20 wait, and one more makes 290 ms with the margin 362: 361 ms are too few for all of them.
    assert judged(0.1, 20, theirs_s=0.363) is None
    error = judged(0.1, 20, theirs_s=0.361)
    assert error is not None
    assert error.code == "overloaded"


def test_other_lanes_count_in_the_prediction() -> None:
    queue = queue_of(8)
    other = Request(LaneKey("tensors", "v"), 0.0, MIN_MARGIN * 0.149)
    assert Admission(queue, BUSY, Linear()).refusal(other, 0.0) is not None
    other.deadline_s = MIN_MARGIN * 0.151
    assert Admission(queue, BUSY, Linear()).refusal(other, 0.0) is None


def test_deadline_that_cannot_be_met_alone_answers_504() -> None:
    error = judged(0.029, fleet=IDLE)
    assert error is not None
    assert (error.status, error.code) == (504, "deadline_cannot_be_met")


def test_backlogged_request_answers_503_with_retry_after() -> None:
    error = judged(0.3, waiting=40)
    assert error is not None
    assert (error.status, error.code) == (503, "overloaded")
    # Five full batches and one of one: (20 + 5·100 + 30)·1.25 = 687.5 ms, 387.5 ms too long, which rounds up to a second.
    assert error.retry_after_s == pytest.approx(0.3875)
    assert error.headers()["Retry-After"] == "1"


def test_a_deadline_in_the_past_is_a_504_even_if_nothing_is_known() -> None:
    error = judged(0.0, lane=LaneKey("events", "unknown"))
    assert error is not None
    assert error.status == 504


def test_without_instances_or_knowledge_a_request_is_held() -> None:
    assert judged(0.001, fleet=Instances()) is None
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


def test_a_lane_puts_first_who_is_due_first_and_knows_who_came_first() -> None:
    lane = FunctionQueue(100, 1000)
    requests = [Request(LANE, float(number), deadline_s) for number, deadline_s in enumerate((9.0, 5.0, 9.0, 4.0))]
    for request in requests:
        lane.add(request)
    waiting = lane.lanes[LANE]
    assert waiting.overtaken
    waiting.sort_by_deadline()
    assert list(waiting.requests) == [requests[3], requests[1], requests[0], requests[2]]
    assert waiting.oldest_arrival_s() == 0.0
    assert not waiting.overtaken


def test_a_lane_knows_how_often_requests_come() -> None:
    queue = FunctionQueue(100, 1000)
    gaps: list[float] = []
    for number in range(12):
        request = Request(LANE, number * 0.05 if number else -60.0, 9.0)
        queue.add(request)
        gaps.append(queue.lanes[LANE].gap_s)
        queue.remove(request)
    assert gaps[:8] == [float("inf")] * 8
    assert gaps[8] > 7, "the pause before the burst still counts"
    assert gaps[9:] == pytest.approx([0.05] * 3)
    queue.put_back([request])
    assert queue.lanes[LANE].gap_s == pytest.approx(0.05), "what comes back has not arrived again"
