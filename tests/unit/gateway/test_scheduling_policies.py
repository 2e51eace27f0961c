"""Scheduling policies on worked examples: Algorithm 3 (`adaptive`), `fixed`, `immediate` and `economical`.

For Algorithm 3 the SLO is 100 ms; a batch of b takes 20 + 5·b ms on one core, half of that on two."""

from __future__ import annotations

import pytest

from gnomon_core.pairs import Pair
from gnomon_core.scheduling import Dispatch, FleetView, Reject, ScheduleAction, Slot, WaitUntil
from gnomon_gateway.queueing.queue import Lane, LaneKey, Request
from gnomon_gateway.scheduling.policies import TIMER_SLACK_S, Adaptive, AdaptivePaper, Economical, Fixed, Immediate

SLO_S = 0.1
SMALL = Slot("small", 1, 4)
LARGE = Slot("large", 2, 16)
BOTH = FleetView((SMALL, LARGE), 0, 0)


class Linear:
    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        del pair
        return (0.02 + 0.005 * batch) / body_cores if variant == "v" else None


def waiting(*arrivals_s: float, deadline_s: float = 10.0, variant: str = "v") -> Lane:
    lane = Lane(LaneKey("events", variant))
    for number, arrived_s in enumerate(arrivals_s, 1):
        request = Request(lane.key, arrived_s, arrived_s + deadline_s)
        request.id = number
        lane.add(request)
    return lane


def dispatched(actions: list[ScheduleAction] | tuple[ScheduleAction, ...]) -> tuple[str, int]:
    (action,) = actions
    assert isinstance(action, Dispatch)
    return action.instance_id, len(action.requests)


def test_as_printed_one_fresh_request_waits_until_it_would_be_late() -> None:
    # t_l(1) = 25 ms on the small instance: the objective leaves 75 ms.
    (wait,) = AdaptivePaper(SLO_S).next(waiting(0.0), FleetView((SMALL,), 0, 0), Linear(), 0.0)
    assert isinstance(wait, WaitUntil)
    assert wait.time_s == pytest.approx(SLO_S - 0.025 - TIMER_SLACK_S)


def test_adaptive_paper_dispatches_when_one_more_would_miss_the_objective() -> None:
    # Three wait, the oldest for 40 ms: t_s = 40 + 35 = 75 ms, and 75·4/3 = 100 ms is not beyond 100. A millisecond later it is.
    lane = waiting(0.0, 0.01, 0.02)
    policy, fleet = AdaptivePaper(SLO_S), FleetView((SMALL,), 0, 0)
    assert isinstance(policy.next(lane, fleet, Linear(), 0.0399)[0], WaitUntil)
    assert dispatched(policy.next(lane, fleet, Linear(), 0.041)) == ("small", 3)


def test_batch_leaves_at_the_largest_size() -> None:
    only = FleetView((SMALL,), 0, 0)
    for policy in (Adaptive(SLO_S), AdaptivePaper(SLO_S)):
        assert dispatched(policy.next(waiting(0.0, 0.0, 0.0, 0.0), only, Linear(), 0.001)) == ("small", 4)


def test_a_request_does_not_wait_for_company_while_nothing_promises_any() -> None:
    assert dispatched(Adaptive(SLO_S).next(waiting(0.0), FleetView((SMALL,), 0, 0), Linear(), 0.0)) == ("small", 1)


def arriving(gap_s: float, *, waiting_now: int = 1) -> tuple[Lane, float]:
    """A lane to which requests came with this gap between them, of which the last ones wait; and the time."""
    lane = Lane(LaneKey("events", "v"))
    for number in range(20):
        request = Request(lane.key, number * gap_s, number * gap_s + 10.0)
        request.id = number + 1
        lane.add(request)
        if number < 20 - waiting_now:
            lane.remove(request)
    return lane, 19 * gap_s


FLAT = FleetView((Slot("last", 1, 8),), 0, 0)


class Flat:
    """Any batch takes 160 ms."""

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        del variant, body_cores, batch, pair
        return 0.16


@pytest.mark.parametrize(("waiting_now", "waits"), [(1, True), (2, True), (3, False), (4, False)])
def test_the_worked_example_of_what_is_worth_waiting_for(waiting_now: int, waits: bool) -> None:  # noqa: FBT001 - of a table
    lane, now_s = arriving(0.05, waiting_now=waiting_now)
    # The oldest has waited for none, 50, 100, 150 ms: beyond 80 it would not wait any longer in any case.
    policy = Adaptive(1.0, max_wait_s=0.5)
    (action,) = policy.next(lane, FLAT, Flat(), now_s)
    assert isinstance(action, WaitUntil if waits else Dispatch)


def test_wait_is_at_most_half_the_batch_latency() -> None:
    lane, now_s = arriving(0.05)
    (wait,) = Adaptive(1.0).next(lane, FLAT, Flat(), now_s)
    assert isinstance(wait, WaitUntil)
    assert wait.time_s == pytest.approx(now_s + 0.08)
    assert dispatched(Adaptive(1.0).next(lane, FLAT, Flat(), wait.time_s)) == ("last", 1)


def test_wait_respects_the_objective_and_max_wait() -> None:
    lane, now_s = arriving(0.05)
    (by_objective,) = Adaptive(0.2).next(lane, FLAT, Flat(), now_s)
    (by_setting,) = Adaptive(1.0, max_wait_s=0.01).next(lane, FLAT, Flat(), now_s)
    assert isinstance(by_objective, WaitUntil)
    assert by_objective.time_s == pytest.approx(now_s + 0.2 - 1.1 * 0.16 - TIMER_SLACK_S)
    assert isinstance(by_setting, WaitUntil)
    assert by_setting.time_s == pytest.approx(now_s + 0.01)


def test_requests_do_not_wait_while_an_instance_is_idle() -> None:
    lane, now_s = arriving(0.05)
    another = FleetView((Slot("first", 1, 8), Slot("second", 1, 8)), 0, 0)
    soon = FleetView((Slot("last", 1, 8),), 1, 0, free_s=now_s + 0.04)
    assert dispatched(Adaptive(1.0).next(lane, another, Flat(), now_s)) == ("first", 1)
    assert dispatched(Adaptive(1.0).next(lane, soon, Flat(), now_s)) == ("last", 1)


def test_requests_do_not_wait_where_batching_gains_nothing() -> None:
    class Proportional:
        def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
            del variant, body_cores, pair
            return 0.16 * batch

    slowly, now_s = arriving(0.5)
    assert dispatched(Adaptive(1.0).next(slowly, FLAT, Flat(), now_s)) == ("last", 1)
    quickly, now_s = arriving(0.05)
    assert dispatched(Adaptive(1.0).next(quickly, FLAT, Proportional(), now_s)) == ("last", 1)


@pytest.mark.parametrize("policy", [Adaptive(5.0), Immediate()])
def test_idle_instances_share_a_burst_where_that_answers_it_sooner(policy: Adaptive | Immediate) -> None:
    eight = FleetView(tuple(Slot(f"i{number}", 1, 8) for number in range(8)), 0, 0)
    in_proportion = Measured({size: 160.0 * size for size in range(1, 9)})
    assert dispatched(policy.next(waiting(*[0.0] * 8), eight, in_proportion, 0.0)) == ("i0", 1)
    assert dispatched(policy.next(waiting(*[0.0] * 8), eight, Flat(), 0.0)) == ("i0", 8)


@pytest.mark.parametrize("policy", [Adaptive(5.0), Immediate(), Fixed(8, 0.0)])
def test_a_batch_is_no_larger_than_the_deadline_of_its_first_request_allows(policy: Adaptive | Immediate | Fixed) -> None:
    # 41 ms are left: four take 40, five 45.
    lane = waiting(*[0.0] * 8, deadline_s=0.041)
    assert dispatched(policy.next(lane, FleetView((Slot("only", 1, 8),), 0, 0), Linear(), 0.0)) == ("only", 4)


def test_as_printed_it_leaves_at_the_timer_even_if_nothing_arrives() -> None:
    assert dispatched(AdaptivePaper(SLO_S).next(waiting(0.0), FleetView((SMALL,), 0, 0), Linear(), 0.074)) == ("small", 1)


def test_a_larger_instance_is_taken_when_the_small_one_would_be_late() -> None:
    # 80 ms have passed: 25 ms more are late on the small instance, 12.5 ms on the large one are not.
    assert dispatched(Adaptive(SLO_S).next(waiting(0.0), BOTH, Linear(), 0.08)) == ("large", 1)


def test_requests_beyond_the_objective_go_to_the_largest_instance() -> None:
    actions = Adaptive(SLO_S).next(waiting(0.0, 0.05), BOTH, Linear(), 0.5)
    assert dispatched(actions) == ("large", 2)


def test_hopeless_request_is_rejected_and_the_others_leave() -> None:
    lane = waiting(0.0, 0.15, deadline_s=0.2)
    reject, dispatch = Adaptive(SLO_S).next(lane, FleetView((LARGE,), 0, 0), Linear(), 0.19)
    # 10 ms are left to the first, 12.5 ms is what it takes alone; the second has 160 ms, and its own timer has not come.
    assert isinstance(reject, Reject)
    assert [request.arrived_s for request in reject.requests] == [0.0]
    assert isinstance(dispatch, Dispatch)
    assert [request.arrived_s for request in dispatch.requests] == [0.15]


def test_a_batch_grows_only_as_long_as_all_its_members_meet_their_deadlines() -> None:
    # 20 ms are left to the first: 12.5, 15, 17.5, 20 ms for 1, 2, 3, 4; a fifth would take 22.5 and make it late.
    lane = waiting(*[0.0] * 6, deadline_s=0.2)
    assert dispatched(Adaptive(SLO_S).next(lane, FleetView((LARGE,), 0, 0), Linear(), 0.18 - 1e-9)) == ("large", 4)


def test_as_printed_the_latest_leave_and_the_earlier_ones_are_dropped() -> None:
    # At 160 ms: 40 ms are left by the SLO to the one from 100 ms, none to the one from 0 ms, although its deadline is far.
    reject, dispatch = AdaptivePaper(SLO_S).next(waiting(0.0, 0.1), FleetView((LARGE,), 0, 0), Linear(), 0.16)
    assert isinstance(reject, Reject)
    assert [request.arrived_s for request in reject.requests] == [0.0]
    assert isinstance(dispatch, Dispatch)
    assert [request.arrived_s for request in dispatch.requests] == [0.1]


def test_while_nothing_is_known_it_sends_at_once() -> None:
    assert dispatched(Adaptive(SLO_S).next(waiting(0.0, variant="new"), BOTH, Linear(), 0.0)) == ("small", 1)


def test_fixed_waits_for_a_full_batch_or_the_longest_wait() -> None:
    policy = Fixed(max_batch=3, max_wait_s=0.05)
    assert policy.next(waiting(0.0, 0.01), BOTH, Linear(), 0.02) == (WaitUntil(0.05),)
    assert dispatched(policy.next(waiting(0.0, 0.01, 0.02), BOTH, Linear(), 0.02)) == ("small", 3)
    assert dispatched(policy.next(waiting(0.0, 0.01), BOTH, Linear(), 0.05)) == ("small", 2)


LITE0_MS = {1: 19.1, 2: 34.6, 3: 55.9, 4: 76.7, 5: 99.1, 6: 120.3, 7: 140.4, 8: 164.0}
"""EfficientNet-Lite0 on one core, as profiles/ has it: 52, 58, 54, 52, 50, 50, 50 and 49 samples a second."""


class Measured:
    def __init__(self, milliseconds: dict[int, float], scale: float = 1e-3) -> None:
        self._milliseconds, self._scale = milliseconds, scale

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        del variant, body_cores, pair
        found = self._milliseconds.get(batch)
        return None if found is None else found * self._scale


@pytest.mark.parametrize(("waiting_now", "leave"), [(1, 1), (2, 2), (3, 2), (5, 2), (8, 2), (20, 2)])
def test_immediate_takes_no_more_than_is_worth_it(waiting_now: int, leave: int) -> None:
    fleet = FleetView((Slot("only", 1, 8),), 0, 0)
    assert dispatched(Immediate().next(waiting(*[0.0] * waiting_now), fleet, Measured(LITE0_MS), 0.0)) == ("only", leave)


def test_immediate_takes_all_if_batches_pay_or_are_short_or_unknown() -> None:
    fleet, lane = FleetView((Slot("only", 1, 8),), 0, 0), waiting(*[0.0] * 8)
    weights = {size: 11.0 + size for size in range(1, 9)}
    in_proportion = {size: 20.0 * size * (1.03 if size % 2 else 1.0) for size in range(1, 9)}
    for latency in (Measured(weights), Measured(in_proportion), Measured(LITE0_MS, 1e-5), Measured({})):
        assert dispatched(Immediate().next(lane, fleet, latency, 0.0)) == ("only", 8)


def test_immediate_takes_what_is_there() -> None:
    assert dispatched(Immediate().next(waiting(0.0), BOTH, Linear(), 0.0)) == ("small", 1)
    assert dispatched(Immediate().next(waiting(*[0.0] * 9), BOTH, Linear(), 0.0)) == ("small", 4)


BORROWS = Slot("i", 26, 8, idle_cores=1)


class NearlyProportional:
    """A core works 1 s on a sample, and a little longer on each of several."""

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        del variant, pair
        return batch * (0.99 + 0.01 * batch) / body_cores


class LearnedRates:
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


def economical(slot: Slot, count: int = 5, now_s: float = 10.0, slo_s: float = 0.5) -> Dispatch:
    [action] = Economical(slo_s).next(lane(count), FleetView((slot,), 0, 0), NearlyProportional(), now_s)
    assert isinstance(action, Dispatch)
    return action


def test_a_batch_is_no_larger_than_it_is_worth() -> None:
    assert len(economical(Slot("i", 26, 8)).requests) == 1, "two take twice as long as one"


@pytest.mark.parametrize(("waited_s", "cores"), [(0.0, 16), (0.05, 21), (0.1, 26), (3.0, 26)])
def test_a_batch_asks_for_more_cores_the_longer_its_oldest_request_has_waited(waited_s: float, cores: int) -> None:
    assert economical(BORROWS, now_s=10.0 + waited_s).cores == cores


def test_a_short_deadline_calls_for_more_cores() -> None:
    # 1/16 s is too long for 51 ms, 1/20 s is not.
    [action] = Economical(0.5).next(lane(1, 10.051), FleetView((BORROWS,), 0, 0), NearlyProportional(), 10.0)
    assert isinstance(action, Dispatch)
    assert action.cores == 20


def test_an_instance_with_cores_of_its_own_has_them_all() -> None:
    assert economical(Slot("i", 4, 8)).cores is None


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
    [action] = Economical(0.5).next(lane(20), FleetView((Slot("i", 1, 8),), 0, 0), LearnedRates(milliseconds), 10.0)
    assert isinstance(action, Dispatch)
    assert len(action.requests) == batch


def test_a_larger_batch_is_not_tried_on_a_request_that_it_might_make_late() -> None:
    [action] = Economical(0.5).next(lane(20, 10.2), FleetView((Slot("i", 1, 8),), 0, 0), LearnedRates({1: 137}), 10.0)
    assert isinstance(action, Dispatch)
    assert len(action.requests) == 1
