"""`economical`: at once, in the smallest batch with about the best rate, on as many cores as the wait calls for."""

import pytest

from gnomon_core.pairs import Pair
from gnomon_core.scheduling import Dispatch, FleetView, Slot
from gnomon_gateway.queueing.queue import Lane, LaneKey, Request
from gnomon_gateway.scheduling.policies import Economical

BORROWS = Slot("i", 26, 8, idle_cores=1)


class Linear:
    """A core works 1 s on a sample, and a little longer on each of several."""

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        del variant, pair
        return batch * (0.99 + 0.01 * batch) / body_cores


class Learned:
    """The latency in milliseconds by batch, of those that were executed; of larger ones at the rate of the largest."""

    def __init__(self, milliseconds: dict[int, int]) -> None:
        largest = max(milliseconds)
        larger = {size: milliseconds[largest] * size / largest for size in range(largest + 1, 9)}
        self._milliseconds = {**milliseconds, **larger}

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        del variant, body_cores, pair
        return self._milliseconds[batch] / 1e3 if batch in self._milliseconds else None


def lane(count: int, deadline_s: float = 20.0) -> Lane:
    made = Lane(LaneKey("events", "v"))
    for number in range(count):
        request = Request(made.key, 10.0, deadline_s)
        request.id = number + 1
        made.add(request)
    return made


def dispatched(slot: Slot, count: int = 5, now_s: float = 10.0, slo_s: float = 0.5) -> Dispatch:
    [action] = Economical(slo_s).next(lane(count), FleetView((slot,), 0, 0), Linear(), now_s)
    assert isinstance(action, Dispatch)
    return action


def test_a_batch_is_no_larger_than_it_is_worth() -> None:
    assert len(dispatched(Slot("i", 26, 8)).requests) == 1, "two take twice as long as one"


@pytest.mark.parametrize(("waited_s", "cores"), [(0.0, 16), (0.05, 21), (0.1, 26), (3.0, 26)])
def test_a_batch_asks_for_more_cores_the_longer_its_oldest_request_has_waited(waited_s: float, cores: int) -> None:
    assert dispatched(BORROWS, now_s=10.0 + waited_s).cores == cores


def test_a_short_deadline_calls_for_more_cores() -> None:
    # 1/16 s is too long for 51 ms, 1/20 s is not.
    [action] = Economical(0.5).next(lane(1, 10.051), FleetView((BORROWS,), 0, 0), Linear(), 10.0)
    assert isinstance(action, Dispatch)
    assert action.cores == 20


def test_an_instance_with_cores_of_its_own_has_them_all() -> None:
    assert dispatched(Slot("i", 4, 8)).cores is None


@pytest.mark.parametrize(
    ("milliseconds", "batch"),
    [
        ({1: 137}, 2),
        ({1: 137, 2: 152}, 4),
        ({1: 137, 2: 152, 4: 183}, 8),
        ({1: 137, 2: 270}, 1),
        ({1: 137, 2: 152, 4: 320}, 2),
        ({1: 300}, 1),
        ({1: 137, 2: 152, 4: 183, 8: 250}, 8),
    ],
    ids=["twice one", "twice two", "up to the most", "two did not pay", "four did not pay", "two may be late", "the most"],
)
def test_batches_of_a_learned_latency_grow_while_that_pays(milliseconds: dict[int, int], batch: int) -> None:
    [action] = Economical(0.5).next(lane(20), FleetView((Slot("i", 1, 8),), 0, 0), Learned(milliseconds), 10.0)
    assert isinstance(action, Dispatch)
    assert len(action.requests) == batch


def test_a_larger_batch_is_not_tried_on_a_request_that_it_might_make_late() -> None:
    [action] = Economical(0.5).next(lane(20, 10.2), FleetView((Slot("i", 1, 8),), 0, 0), Learned({1: 137}), 10.0)
    assert isinstance(action, Dispatch)
    assert len(action.requests) == 1
