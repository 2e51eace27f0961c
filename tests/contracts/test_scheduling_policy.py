"""What every scheduling policy promises, on random lanes and fleets. A new policy inherits all of it by joining the registry."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import SchedulingPolicy
from gnomon_core.pairs import Pair
from gnomon_core.scheduling import Dispatch, FleetView, Reject, Slot, WaitUntil
from gnomon_core.settings import Settings
from gnomon_gateway.queueing.queue import Lane, LaneKey, Request
from gnomon_gateway.scheduling.registry import BUILT_IN, scheduling_policy

NOW_S = 100.0
policies = tuple(BUILT_IN)


class Table:
    """10 ms and 5 ms more for each sample, divided by the cores; or nothing known."""

    def __init__(self, *, known: bool) -> None:
        self.known = known

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        del pair
        assert variant == "v"
        return (0.01 + 0.005 * batch) / body_cores if self.known else None


def make_lane(waiting: list[tuple[float, float, int]]) -> Lane:
    lane = Lane(LaneKey("events", "v"))
    for number, (waited_s, left_s, size) in enumerate(sorted(waiting, reverse=True)):
        request = Request(lane.key, NOW_S - waited_s, NOW_S + left_s, size=size)
        request.id = number + 1
        lane.add(request)
    return lane


lanes = st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 2), st.integers(1, 4)), min_size=0, max_size=40).map(make_lane)
fleets = st.builds(
    lambda sizes, busy: FleetView(
        tuple(Slot(f"i{n}", cores, size) for n, (size, cores) in enumerate(sorted(sizes))), busy, starting=0
    ),
    st.lists(st.tuples(st.integers(4, 16), st.integers(1, 4)), max_size=4),
    st.integers(0, 3),
)


@pytest.fixture(params=policies, scope="module")
def make_policy(request: pytest.FixtureRequest) -> Callable[[], SchedulingPolicy]:
    settings = Settings(slo_s=0.2, max_batch=8, max_wait_s=0.05)
    return lambda: scheduling_policy(request.param, settings)


@given(lane=lanes, fleet=fleets, known=st.booleans())
def test_actions_stay_within_what_was_shown(
    make_policy: Callable[[], SchedulingPolicy], lane: Lane, fleet: FleetView, *, known: bool
) -> None:
    actions = make_policy().next(lane, fleet, Table(known=known), NOW_S)
    shown = set(lane.requests)
    idle = {slot.instance_id: slot for slot in fleet.idle}
    taken: list[object] = []
    for action in actions:
        match action:
            case Dispatch(instance_id, requests):
                slot = idle.pop(instance_id)  # an idle one, and no instance twice
                assert requests
                assert sum(request.size for request in requests) <= slot.max_batch
                assert [r.arrived_s for r in requests] == sorted(r.arrived_s for r in requests)
                taken += requests
            case Reject(requests, reason):
                assert reason
                taken += requests
            case WaitUntil(time_s):
                assert time_s > NOW_S
    assert set(taken) <= shown
    assert len(taken) == len(set(taken))


@given(lane=lanes, fleet=fleets, known=st.booleans())
def test_the_same_view_gives_the_same_actions(
    make_policy: Callable[[], SchedulingPolicy], lane: Lane, fleet: FleetView, *, known: bool
) -> None:
    policy = make_policy()
    latency = Table(known=known)
    assert policy.next(lane, fleet, latency, NOW_S) == make_policy().next(lane, fleet, latency, NOW_S)


@given(lane=lanes, fleet=fleets)
def test_nothing_idle_or_nothing_waiting_means_nothing_to_do(
    make_policy: Callable[[], SchedulingPolicy], lane: Lane, fleet: FleetView
) -> None:
    policy = make_policy()
    assert not policy.next(lane, FleetView((), fleet.busy, fleet.starting), Table(known=True), NOW_S)
    assert not policy.next(make_lane([]), fleet, Table(known=True), NOW_S)


@given(lane=lanes.filter(len), fleet=fleets.filter(lambda fleet: fleet.idle))
def test_a_waiting_request_and_an_idle_instance_lead_to_an_action_or_a_time(
    make_policy: Callable[[], SchedulingPolicy], lane: Lane, fleet: FleetView
) -> None:
    assert make_policy().next(lane, fleet, Table(known=True), NOW_S)


@given(lane=lanes.filter(len), fleet=fleets.filter(lambda fleet: fleet.idle))
def test_at_the_time_it_named_a_policy_acts(make_policy: Callable[[], SchedulingPolicy], lane: Lane, fleet: FleetView) -> None:
    policy = make_policy()
    actions = policy.next(lane, fleet, Table(known=True), NOW_S)
    times = [action.time_s for action in actions if isinstance(action, WaitUntil)]
    if times:
        later = policy.next(lane, fleet, Table(known=True), min(times))
        assert any(isinstance(action, Dispatch | Reject) for action in later)


@pytest.mark.parametrize("name", policies)
def test_a_policy_is_found_by_its_name(name: str) -> None:
    assert scheduling_policy(name, Settings()).name == name


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(GnomonError) as caught:
        scheduling_policy("adaptve", Settings())
    assert (caught.value.status, caught.value.code) == (400, "unknown_policy")
    for name in policies:
        assert name in str(caught.value)
