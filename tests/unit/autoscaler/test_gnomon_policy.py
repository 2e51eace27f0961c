"""`gnomon`: the fewest Bodies that would have kept the objective, over virtual time and in replays of single windows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_autoscaler.policies.gnomon import Gnomon, Options
from gnomon_autoscaler.policies.gnomon.policy import speed_of
from gnomon_autoscaler.policies.gnomon.replay import Speed, answered_rps, cheapest, late_share, wanted, window
from gnomon_autoscaler.registry import BUILT_IN
from gnomon_autoscaler.replica_policy import inner_memory
from gnomon_autoscaler.testing import Timeline
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.scaling import CreateBody, DestroyBody, History, Observation, PolicyState, Resize
from gnomon_core.settings import ScaleSettings, Settings, read_settings
from tests.made_up_models import BlockPlan, made_up_profile
from tests.timelines import play

SLO_S = 1.0
SETTINGS = Settings(autoscaler="gnomon", slo_s=SLO_S, scale=ScaleSettings(min=1, max=40))
ONE_AT_A_TIME = Speed(tuple(10.0 * bodies for bodies in range(41)), 0.1, 0.5)


def line(settings: Settings = SETTINGS, latency_s: tuple[float, ...] = (0.1,), start_s: float = 0.5) -> Timeline:
    made = Timeline(settings, start_s=start_s)
    made.latency_s = latency_s
    return made


# Over time


def test_a_count_is_uncertain_the_more_the_smaller_it_is() -> None:
    # 1,170 requests in a minute are expected to be 1,238: 20.6 a second, and two Bodies answer 20.
    certain = replace(SETTINGS, without=("uncertainty",))
    assert play(line(), 60.0, rps=19.5) == 3
    assert play(line(certain), 60.0, rps=19.5) == 2


def test_a_steady_load_gets_what_it_needs_and_little_more() -> None:
    timeline = line()
    assert 10 <= play(timeline, 400.0, rps=100.0) <= 12
    assert "replayed 0.0" in timeline.reason


def test_a_burst_within_the_window_is_remembered_as_a_floor_or_a_reaction() -> None:
    timeline = line()
    play(timeline, 100.0, rps=50.0)
    play(timeline, 10.0, rps=200.0)
    assert play(timeline, 30.0, rps=50.0) >= 6
    # Bodies take half a second: a rise as quick as the last one is met again.
    assert play(timeline, 3.0, rps=200.0) >= 20


def test_bodies_go_once_the_burst_has_left_the_window() -> None:
    timeline = line()
    play(timeline, 60.0, rps=200.0)
    assert play(timeline, 400.0, rps=50.0) <= 7


def test_what_waits_calls_for_more_than_the_rule() -> None:
    timeline = line()
    calm = play(timeline, 120.0, rps=20.0)
    assert play(timeline, 1.0, queued=60) > calm
    assert "60 wait" in timeline.reason
    without = line(
        read_settings(
            {"com.openfaas.scale.max": "40"}, {"gnomon/autoscaler": "gnomon", "gnomon/slo-ms": "1000", "gnomon/without": "queue"}
        )
    )
    calm = play(without, 120.0, rps=20.0)
    assert play(without, 1.0, queued=60) == calm


def test_a_handler_whose_latency_is_learned_needs_nothing_but_an_objective() -> None:
    settings = read_settings({"com.openfaas.scale.max": "30"}, {"gnomon/autoscaler": "gnomon", "gnomon/slo-ms": "1000"})
    timeline = line(settings, ())
    assert play(timeline, 60.0, rps=30.0, concurrency=12.0) >= 3
    assert "latency not known yet" in timeline.reason
    timeline.latency_s = (0.4,)  # 30 a second, 0.4 s each, one at a time
    assert 12 <= play(timeline, 300.0) <= 14


def test_starts_are_observed() -> None:
    timeline = line(start_s=5.0)
    play(timeline, 60.0, rps=50.0)
    remembered = timeline.runner.state.values
    while "load_s" not in remembered:
        remembered = inner_memory(remembered)
    assert remembered["load_s"] == pytest.approx(5.0, abs=0.5)


# Borrowed cores

MODEL = made_up_profile((BlockPlan(1.0, 10**6),), (1.0,), cores=tuple(range(1, 17)))


def seen(*, lends: bool = True, bodies: tuple[Instance, ...] = (), rps: float = 40.0) -> Observation:
    nodes = tuple(Node(f"n{n}", 16, 10**9, 16.0, 10**9, lends=lends) for n in range(4))
    bins = (rps / 2,) * 200
    history = History(0.5, 100.0, bins, bins, bins, bins)
    settings = Settings(autoscaler="gnomon", slo_s=SLO_S, cores=2, max_cores=16, scale=ScaleSettings(max=12))
    return Observation(100.0, "f", settings, bodies, nodes, 0, 0, 0.0, 100.0, history, profile=MODEL)


def test_bodies_borrow_the_cores_of_nodes_that_lend_them() -> None:
    decision, _ = Gnomon(Options()).decide(seen(), PolicyState())
    created = [action for action in decision.actions if isinstance(action, CreateBody)]
    assert {(action.cores, action.idle_cores) for action in created} == {(16, 1)}
    assert len({action.node for action in created}) == min(4, len(created)), "each on a node of its own while there is one"


@pytest.mark.parametrize("policy", [Gnomon(Options(lending=False)), Gnomon(Options())])
def test_bodies_have_the_functions_own_cores_elsewhere(policy: Gnomon) -> None:
    decision, _ = policy.decide(seen(lends=not policy.options.lending), PolicyState())
    created = [action for action in decision.actions if isinstance(action, CreateBody)]
    assert created
    assert {(action.cores, action.idle_cores) for action in created} == {(2, None)}


def test_a_node_takes_as_many_bodies_as_have_all_the_cores_that_their_profile_covers() -> None:
    """A profile of up to two cores: nodes of 16 hold eight Bodies each, and not one."""
    observation = replace(seen(rps=400.0), profile=made_up_profile((BlockPlan(1.0, 10**6),), (1.0,), cores=(1, 2)))
    for most, useful in ((12, 12), (100, 4 * 8)):
        speed = speed_of(
            replace(observation, settings=replace(observation.settings, scale=ScaleSettings(max=most))), Options(), None
        )
        assert speed is not None
        assert speed.most == useful


def test_a_body_that_borrows_is_placed_where_most_cores_are_left_for_it() -> None:
    """What the function's other Bodies may borrow there is not left."""
    nodes = (Node("large", 40, 10**9, 40.0, 10**9, lends=True), Node("small", 20, 10**9, 20.0, 10**9, lends=True))
    observation = replace(seen(rps=400.0), nodes=nodes)
    decision, _ = Gnomon(Options()).decide(observation, PolicyState())
    created = [action for action in decision.actions if isinstance(action, CreateBody)]
    assert [action.node for action in created] == ["large", "large", "small"]
    assert {(action.cores, action.idle_cores) for action in created} == {(16, 1)}


def test_bodies_of_another_policy_give_their_cores_back_also_while_they_are_busy() -> None:
    bodies = tuple(
        Instance(f"i{n}", "f", 1, f"n{n}", 2, 1, InstanceState.READY, 0.0, busy=n == 0) for n in range(3)
    )  # fmt: skip
    decision, _ = Gnomon(Options()).decide(seen(bodies=bodies), PolicyState())
    ended = {action.id for action in decision.actions if isinstance(action, DestroyBody)}
    resized = {action for action in decision.actions if isinstance(action, Resize)}
    assert resized == {Resize(f"i{n}", 16, 1) for n in range(3) if f"i{n}" not in ended}


def test_bodies_whose_engine_has_a_fixed_number_of_threads_do_not_borrow() -> None:
    compiled = replace(MODEL, provenance={"engine": "openvino 2025.4"})
    decision, _ = Gnomon(Options()).decide(replace(seen(), profile=compiled), PolicyState())
    created = [action for action in decision.actions if isinstance(action, CreateBody)]
    assert {(action.cores, action.idle_cores) for action in created} == {(2, None)}


@pytest.mark.parametrize("policy", ["gnomon without lending", "kpa", "openfaas", "asyfunc", "batch"])
def test_borrowing_bodies_have_the_functions_own_cores_after_a_switch_of_policy(policy: str) -> None:
    body = Instance("i", "f", 1, "n0", 16, 1, InstanceState.READY, 0.0, idle_cores=1)
    observation = seen(bodies=(body,), rps=1.0)
    lends_no_more = policy.startswith("gnomon")
    made = Gnomon(Options(lending=False)) if lends_no_more else BUILT_IN[policy].make(observation.settings)
    decision, _ = made.decide(observation, PolicyState())
    assert Resize("i", 2) in decision.actions
    own = replace(body, cores=2, idle_cores=None)
    decision, _ = made.decide(replace(observation, instances=(own,)), PolicyState())
    assert not any(isinstance(action, Resize) for action in decision.actions)


# Replays

COUNTS = st.lists(st.integers(0, 60).map(float), min_size=2, max_size=80)


def test_a_constant_rate_is_carried_by_as_many_as_it_takes() -> None:
    for rps, bodies in ((99.0, 10), (201.0, 21)):
        rule = cheapest(window([rps / 2] * 600, 0.5, 0.9), ONE_AT_A_TIME, SLO_S, 0.001)
        assert rule.loss <= 0.001
        assert bodies <= rule.bodies <= bodies + 1


def test_on_off_load_is_cheaper_with_a_reaction_where_bodies_start_quickly_enough() -> None:
    counts = ([50.0] * 20 + [5.0] * 100) * 5
    patient = cheapest(window(counts, 0.5, 4.9), Speed(ONE_AT_A_TIME.rates_rps, 0.1, 0.5), 5.0, 0.001)
    hasty = cheapest(window(counts, 0.5, 0.2), Speed(ONE_AT_A_TIME.rates_rps, 0.1, 4.0), 0.3, 0.001)
    assert patient.bodies < 6, "the queue of a rise is answered in time by Bodies that start meanwhile"
    assert patient.factor > 0
    assert (hasty.factor, hasty.floor) == (0.0, 10), "no reaction is in time: the floor carries the peak"


@given(COUNTS, st.integers(1, 8), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_more_bodies_are_never_late_for_more(counts: list[float], bodies: int, more: int) -> None:
    points = window(counts, 0.5, 0.9)
    few, many = (answered_rps(np.full(len(counts), float(number)), ONE_AT_A_TIME, 0.5) for number in (bodies, bodies + more))
    assert late_share(points, 0.9, many) <= late_share(points, 0.9, few) + 1e-12


@given(COUNTS, st.integers(1, 5), st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_a_rule_is_within_the_bounds_keeps_the_objective_where_any_does_and_is_the_same_each_time(
    counts: list[float], least: int, more: int
) -> None:
    points, most = window(counts, 0.5, 0.9), least + more
    rule = cheapest(points, ONE_AT_A_TIME, SLO_S, 0.001, least=least, most=most)
    assert rule == cheapest(window(counts, 0.5, 0.9), ONE_AT_A_TIME, SLO_S, 0.001, least=least, most=most)
    assert least <= rule.floor <= most
    assert least <= rule.bodies <= most
    all_rps = answered_rps(np.full(len(counts), float(most)), ONE_AT_A_TIME, 0.5)
    assert rule.loss <= max(0.001, late_share(points, 0.9, all_rps))
    steady = cheapest(points, ONE_AT_A_TIME, SLO_S, 0.001, least=least, most=most, reacts=False)
    assert rule.bodies <= steady.bodies or rule.loss < steady.loss


@given(COUNTS, st.sampled_from([0.9, 2.0]), st.sampled_from([1.0, 4.0]))
@settings(max_examples=60, deadline=None)
def test_more_arrivals_never_want_fewer_bodies(counts: list[float], factor: float, hold_s: float) -> None:
    more = [count + 3 for count in counts]
    few, many = (wanted(window(one, 0.5, 0.9), ONE_AT_A_TIME, factor, hold_s) for one in (counts, more))
    assert (few <= many).all()


@pytest.mark.parametrize("counts", [[10.0] * 100, [400.0] * 100, [0.5] * 40])
def test_points_are_all_the_requests_in_their_bins_and_in_order(counts: list[float]) -> None:
    points = window(counts, 0.5, 0.2)
    assert points.weights.sum() == pytest.approx(sum(counts), abs=1.0)
    times_s = points.bins * 0.5 + points.offsets
    assert (np.diff(times_s) >= -1e-12).all()
    assert ((points.offsets >= 0) & (points.offsets <= 0.5)).all()
