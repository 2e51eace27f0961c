"""The dispatcher's fleet: its views after any sequence of events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gnomon_gateway.dispatch.fleet import Sizing, Worker, Workers
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.queueing.queue import Batch, LaneKey, Request

LANE = LaneKey("events", "v")
INSTANCES = [f"instance-{number}" for number in range(4)]


def fleet() -> Workers:
    return Workers(Sizing(LearnedLatency(), 1.0, ()))


def batch(number: int, worker: Worker, end_s: float) -> Batch:
    sent = Batch(number, worker.id, LANE, (Request(LANE, 0.0, 10.0),), 0.0)
    sent.cores, sent.expected_end_s = worker.cores, end_s
    return sent


def first_end_s(workers: Workers) -> float:
    """The earliest expected end of a batch on an instance that is not draining."""
    serving = [worker for worker in workers.by_id.values() if not worker.draining]
    return min((one.expected_end_s for worker in serving for one in worker.batches.values()), default=float("inf"))


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "take", "release", "drain", "remove"]), st.sampled_from(INSTANCES), st.integers(1, 3)),
        max_size=60,
    )
)
def test_a_policy_sees_the_free_slots_and_the_first_end_of_the_present_fleet(events: list[tuple[str, str, int]]) -> None:
    workers = fleet()
    for number, (event, name, value) in enumerate(events):
        worker = workers.by_id.get(name)
        if event == "add":
            workers.add(name, 1, 8, concurrency=value)
        elif worker is not None and event == "take" and worker.free_slots:
            workers.take(worker, batch(number, worker, float(value)))
        elif worker is not None and event == "release" and worker.batches:
            workers.release(worker, next(iter(worker.batches.values())))
        elif worker is not None and event == "drain":
            workers.drain(worker)
        elif worker is not None and event == "remove":
            workers.remove(worker)
        view = workers.view(solo=False)
        idle = [one for one in workers.by_id.values() if not one.draining and len(one.batches) < one.concurrency]
        assert {slot.instance_id for slot in view.idle} == {one.id for one in idle}
        assert view.room == sum(one.concurrency - len(one.batches) for one in idle)
        assert view.free_s == first_end_s(workers)
        assert workers.busy == sum(bool(one.batches) for one in workers.by_id.values())


def test_a_batch_without_end_keeps_no_memory_of_the_batches_after_it() -> None:
    workers = fleet()
    workers.add("endless", 1, 1)
    workers.add("busy", 1, 1)
    endless, busy = workers.by_id["endless"], workers.by_id["busy"]
    workers.take(endless, batch(0, endless, 1.0))
    for number in range(1, 1000):
        after = batch(number, busy, 1.0 + number)
        workers.take(busy, after)
        assert workers.view(solo=False).free_s == 1.0
        workers.release(busy, after)
    assert len(workers._ends) <= 65
