"""The contract of every policy of scaling and of scheduling. A new one in a table is tested by being there."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_autoscaler.registry import BUILT_IN, scaling_policy
from gnomon_autoscaler.runner import state_from_json, state_to_json
from gnomon_autoscaler.testing import Timeline
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.interfaces import ScalingPolicy, SchedulingPolicy
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import CreateBody, DestroyBody, History, Observation, PolicyState
from gnomon_core.scheduling import Dispatch, FleetView, Reject, Slot, WaitUntil
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_gateway.queueing.queue import Lane, LaneKey, Request
from gnomon_gateway.scheduling.registry import BUILT_IN as SCHEDULING_BUILT_IN
from gnomon_gateway.scheduling.registry import scheduling_policy
from tests.made_up_models import BlockPlan, made_up_profile
from tests.timelines import play

SCHEDULERS = {"adaptive", "adaptive-fill", "economical", "fixed", "immediate"}


def busy(settings: Settings, *, instances: int = 2, profile: ModelProfile | None = None) -> Observation:
    """Much load on a few instances, with room for more."""
    bins = 240
    there = tuple(
        Instance(f"i-{number}", "f.ns", 1, "n", settings.cores, 100, InstanceState.READY, float(number), busy=True, in_flight=1)
        for number in range(instances)
    )
    history = History(0.5, 120.0, (50.0,) * bins, (50.0,) * bins, (20.0,) * bins, (float(instances),) * bins)
    nodes = (Node("n", 64, 10**6, 64 - instances, 10**6),)
    return Observation(120.0, "f.ns", settings, there, nodes, 5, 2, 0.1, 119.9, history, latency_s=(0.1,), profile=profile)


class ScalingPolicyContract:
    """Inherit and give the name of a policy in `BUILT_IN`, and the profile of the function's model if it has one."""

    profile: ModelProfile | None = None

    def busy(self, settings: Settings, *, instances: int = 2) -> Observation:
        return busy(settings, instances=instances, profile=self.profile)

    def timeline(self, settings: Settings, **more: Any) -> Timeline:
        return Timeline(settings, profile=self.profile, **more)

    @pytest.fixture
    def name(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def settings(self, name: str) -> Settings:
        return Settings(autoscaler=name, scale=ScaleSettings(min=1, max=12))

    @pytest.fixture
    def policy(self, name: str, settings: Settings) -> ScalingPolicy:
        return scaling_policy(name, settings)

    def test_policy_describes_itself(self, policy: ScalingPolicy, name: str) -> None:
        assert policy.name == name
        assert policy.period_s > 0
        assert policy.default_scheduler in SCHEDULERS

    def test_the_same_question_gets_the_same_answer(self, policy: ScalingPolicy, settings: Settings) -> None:
        state = PolicyState()
        for now_s in (120.0, 121.0, 150.0):
            seen = replace(self.busy(settings), now_s=now_s)
            first, second = policy.decide(seen, state), policy.decide(seen, state)
            assert first == second
            state = first[1]

    def test_a_decision_has_a_reason_in_one_line(self, policy: ScalingPolicy, settings: Settings) -> None:
        decision, _ = policy.decide(self.busy(settings), PolicyState())
        assert decision.reason
        assert "\n" not in decision.reason

    def test_policy_state_survives_json(self, policy: ScalingPolicy, settings: Settings, name: str) -> None:
        state = PolicyState()
        for step in range(5):
            _, state = policy.decide(replace(self.busy(settings), now_s=120.0 + step, requested=3 if step == 2 else None), state)
        assert state.policy == name
        restored = state_from_json(json.loads(json.dumps(state_to_json(state))))
        assert restored == state
        later = replace(self.busy(settings), now_s=130.0)
        assert policy.decide(later, restored) == policy.decide(later, state)

    @pytest.mark.parametrize("state", [PolicyState("another", 1, {"inner": 7}), PolicyState("", 0, {"count": "x"})])
    def test_anothers_state_is_dropped(self, policy: ScalingPolicy, settings: Settings, state: PolicyState) -> None:
        assert policy.decide(self.busy(settings), state) == policy.decide(self.busy(settings), PolicyState())

    def test_an_older_state_of_its_own_is_dropped(self, policy: ScalingPolicy, settings: Settings, name: str) -> None:
        old = PolicyState(name, -1, {"inner": "unreadable"})
        assert policy.decide(self.busy(settings), old) == policy.decide(self.busy(settings), PolicyState())

    def test_policy_stays_within_the_bounds(self, policy: ScalingPolicy) -> None:
        for low, high in ((0, 1), (1, 3), (4, 4), (7, 20)):
            seen = self.busy(Settings(scale=ScaleSettings(min=low, max=high)))
            decision, _ = policy.decide(seen, PolicyState())
            assert decision.desired is not None
            assert low <= decision.desired <= high

    @pytest.mark.parametrize("asked", [0, 3, 40])
    def test_an_operators_number_is_honoured_even_beyond_the_bounds(self, settings: Settings, asked: int) -> None:
        line = self.timeline(settings)
        line.play(30)
        assert play(line, 0.5, requested=asked) == asked
        assert play(line, 100) == asked  # the load has not changed

    def test_actions_lead_to_the_count_and_not_beyond(self, policy: ScalingPolicy, settings: Settings) -> None:
        for there in (0, 1, 5, 30):
            seen = self.busy(settings, instances=there)
            decision, _ = policy.decide(seen, PolicyState())
            made = sum(isinstance(action, CreateBody) for action in decision.actions)
            ended = [action.id for action in decision.actions if isinstance(action, DestroyBody)]
            assert len(set(ended)) == len(ended)
            assert not (made and ended)
            assert there + made - len(ended) == decision.desired

    def test_a_request_that_waits_at_zero_wakes_the_function(self, name: str) -> None:
        line = self.timeline(Settings(autoscaler=name, scale=ScaleSettings(min=0, zero=True, zero_duration_s=30.0)), start_s=3.0)
        assert play(line, 200) == 0
        line.queued = 1
        line.tick()
        assert line.live == 1
        line.play(10)  # it is not ended while the request waits for it to start, or executes
        assert line.live >= 1

    def test_an_idle_function_that_may_not_go_to_zero_stays(self, settings: Settings) -> None:
        line = self.timeline(settings)
        assert play(line, 2000) == 1

    def test_nothing_known_at_all_is_no_reason_to_fail(self, policy: ScalingPolicy, settings: Settings) -> None:
        seen = Observation(0.0, "f.ns", settings, (), (), 0, 0, 0.0, 0.0, History(0.5, 0.0))
        decision, _ = policy.decide(seen, PolicyState())
        assert len(decision.actions) == 1
        assert isinstance(decision.actions[0], CreateBody)
        assert self.profile is not None or decision.actions[0] == CreateBody(1)


class TestBuiltIn(ScalingPolicyContract):
    @pytest.fixture(params=sorted(BUILT_IN))
    def name(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


class TestFormula(ScalingPolicyContract):
    """OpenFaaS's formula hides behind the same name as its Community rule."""

    @pytest.fixture
    def name(self) -> str:
        return "openfaas"

    @pytest.fixture
    def settings(self, name: str) -> Settings:
        return Settings(autoscaler=name, scale=ScaleSettings(min=1, max=12, type="capacity", target=2.0))


class TestWithAProfile(ScalingPolicyContract):
    """With a profile both levels of scaling are at work."""

    profile = made_up_profile((BlockPlan(0.6, 20_000_000), BlockPlan(0.4, 80_000_000)), (0.2,), gmacs=4.0, overhead_bytes=10**8)

    @pytest.fixture(params=["asyfunc", "asyfunc-"])
    def name(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture(params=["layers", "adaptive", "both"])
    def settings(self, name: str, request: pytest.FixtureRequest) -> Settings:
        ablation = str(request.param)
        return Settings(autoscaler=name, slo_s=2.0, max_batch=4, ablation=ablation, scale=ScaleSettings(min=1, max=12))


NOW_S = 100.0
policies = tuple(SCHEDULING_BUILT_IN)


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
