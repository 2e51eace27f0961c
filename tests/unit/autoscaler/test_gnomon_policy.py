"""`gnomon`: the fewest Bodies that would have kept the objective, over virtual time and in replays of single windows."""

import math
from array import array
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_autoscaler.policies.gnomon import Gnomon, Options
from gnomon_autoscaler.policies.gnomon.policy import reaction, speed_of
from gnomon_autoscaler.policies.gnomon.replay import (
    Rule,
    Speed,
    _Answers,
    cheapest,
    late_share,
    lost_by,
    wanted,
    window,
)
from gnomon_autoscaler.registry import BUILT_IN
from gnomon_autoscaler.replica_policy import inner_memory
from gnomon_autoscaler.testing import Timeline
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.scaling import CreateBody, DestroyBody, History, Observation, PolicyState, Resize, StateValue
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


def test_objective_that_no_batch_meets_does_not_call_for_all_the_bodies_there_may_be() -> None:
    """Every request is late, however many Bodies there are: as many as let a request wait for one batch."""
    beyond, met = line(replace(SETTINGS, slo_s=0.05)), line(replace(SETTINGS, slo_s=0.2))
    assert play(beyond, 400.0, rps=20.0) == play(met, 400.0, rps=20.0) < 10
    assert play(beyond, 400.0, rps=0.0) == 1


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


def test_the_least_bodies_are_left_as_soon_as_they_are_enough() -> None:
    timeline = line(replace(SETTINGS, without=("reaction",)))
    play(timeline, 60.0, rps=100.0)
    assert play(timeline, 290.0, rps=0.5) > 1
    assert play(timeline, 20.0) == 1


def test_waiting_requests_call_for_more_bodies_than_the_rule() -> None:
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


def test_bodies_that_a_queue_calls_for_stay_until_they_have_loaded() -> None:
    """The first of them empty the queue: without this they would end while the others start, and the burst goes on."""
    timeline = line(start_s=3.0)
    calm = play(timeline, 120.0, rps=20.0)
    called = play(timeline, 0.5, queued=60)
    assert called > calm
    assert play(timeline, 2.5, queued=0) == called
    assert "called by what waited" in timeline.reason
    assert play(timeline, 10.0) == calm


@pytest.mark.parametrize("lull_rps", [0.1, 20.0])
def test_a_burst_beyond_all_before_is_met_at_once(lull_rps: float) -> None:
    """Not at the next check, up to five seconds later, and without a queue: by a new rule, or by the one that wants more."""
    timeline = line()
    play(timeline, 120.0, rps=lull_rps)
    last = checked_at_s(timeline)
    while checked_at_s(timeline) == last:
        play(timeline, 0.5)
    assert play(timeline, 2.0, rps=200.0) >= 15


def checked_at_s(timeline: Timeline) -> StateValue:
    """When the policy has last checked its rule."""
    remembered = timeline.runner.state.values
    while inner := inner_memory(remembered):
        remembered = inner
    return remembered["checked_at_s"]


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


# Looks at which nothing has changed

READY = Instance("i", "f", 1, "n0", 2, 1, InstanceState.READY, 0.0)
CALM = [1.0, 3.0] * 300


def looked(counts: list[float], number: int = 2, now_s: float = 300.0, queued: int = 0) -> Observation:
    """So many ready Bodies, each of which answers ten requests a second, after these arrivals."""
    zeros = (0.0,) * len(counts)
    history = History(0.5, now_s, array("d", counts), zeros, zeros, zeros)
    bodies = tuple(replace(READY, id=f"i{index}") for index in range(number))
    return Observation(now_s, "f", SETTINGS, bodies, (), queued, 0, 0.0, now_s, history, latency_s=(0.1,))


def settled(counts: list[float]) -> tuple[Gnomon, PolicyState, int]:
    """The policy, its state and the number of Bodies once they are ready after these arrivals."""
    policy, state, number = Gnomon(Options()), PolicyState(), 1
    for _ in range(3):
        decision, state = policy.decide(looked(counts, number), state)
        number = decision.desired or 0
    assert not decision.actions
    return policy, state, number


def test_a_look_at_which_nothing_has_changed_changes_nothing() -> None:
    policy, state, number = settled(CALM)
    decision, after = policy.decide(looked([*CALM[1:], 3.0], number, 300.5), state)
    assert after is state
    assert (decision.actions, decision.desired) == ((), number)


def later(seen: Observation, **fields: Any) -> Observation:
    """The observation half a second later, or with these fields."""
    return replace(seen, **{"now_s": 300.5} | fields)


CHANGES: dict[str, Callable[[Observation], Observation]] = {
    "a burst": lambda seen: later(looked([*CALM[2:], 40.0, 40.0], len(seen.instances))),
    "a queue": lambda seen: later(seen, queued=60),
    "a Body that has ended": lambda seen: later(seen, instances=seen.instances[1:]),
    "a further Body": lambda seen: later(seen, instances=(*seen.instances, READY)),
    "a Body that starts": lambda seen: later(seen, instances=(replace(READY, state=InstanceState.STARTING), *seen.instances[1:])),
    "an operator's number": lambda seen: later(seen, requested=7),
    "an objective": lambda seen: later(seen, settings=replace(SETTINGS, slo_s=0.5)),
    "a bound": lambda seen: later(seen, settings=replace(SETTINGS, scale=ScaleSettings(min=9, max=40))),
    "a minute": lambda seen: later(seen, now_s=360.0),
    "a clock that is behind": lambda seen: later(seen, now_s=100.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_look_at_which_something_has_changed_decides(change: str) -> None:
    policy, state, number = settled(CALM)
    seen = CHANGES[change](looked(CALM, number))
    decision, after = policy.decide(seen, state)
    assert after is not state
    assert (decision, after) == policy.decide(seen, replace(state, values=without_steady(state)))


def without_steady(state: PolicyState) -> dict[str, StateValue]:
    return {key: value for key, value in state.values.items() if not key.startswith("steady")}


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2, 4, 9]), st.sampled_from([0, 0, 0, 2, 12])), min_size=1, max_size=9),
    st.lists(st.sampled_from([1.0, 2.0, 9.0, 25.0]), min_size=3, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_decisions_between_two_replays_are_those_of_a_policy_that_decides_at_each_look(
    looks: list[tuple[int, int]], bursts: list[float]
) -> None:
    counts = [burst if bin_ % 200 < 20 else 2.0 for burst in bursts for bin_ in range(200)]
    policy, state, number = settled(counts)
    each = PolicyState(state.policy, state.version, without_steady(state))
    for turn, (arrived, queued) in enumerate(looks, start=1):
        counts = [*counts[1:], float(arrived)]
        seen = looked(counts, number, 300.0 + turn / 2, queued=queued)
        decision, state = policy.decide(seen, state)
        expected, each = policy.decide(seen, replace(each, values=without_steady(each)))
        assert (decision.actions, decision.desired) == (expected.actions, expected.desired)
        number = decision.desired or 0


def replayed_at_s(timeline: Timeline) -> float:
    remembered = timeline.runner.state.values
    while "renewed_at_s" not in remembered:
        remembered = inner_memory(remembered)
    return cast("float", remembered["renewed_at_s"])


def test_a_window_is_replayed_again_when_its_load_has_changed_and_after_its_time() -> None:
    timeline = line()
    play(timeline, 300.0, rps=20.0)
    replays = set()
    for _ in range(240):
        play(timeline, 0.5)
        replays.add(replayed_at_s(timeline))
    waits_s = np.diff(sorted(replays))
    assert waits_s.min() > Options().renew_s
    assert waits_s.max() <= Options().longest_keep_s + Options().renew_s
    play(timeline, 10.0, rps=60.0)
    assert timeline.now_s - replayed_at_s(timeline) <= 10.0
    assert replayed_at_s(timeline) > max(replays)


def test_a_rule_whose_time_is_over_is_left_if_it_would_lose_too_much_by_now() -> None:
    alternating, rising = [4.0, 16.0] * 300, [4.0] * 300 + [16.0] * 300
    policy, state, number = settled(alternating)
    unchanged, _ = policy.decide(looked(alternating, number, 316.0), state)
    assert unchanged.desired == number
    # As many arrivals, and no half second with more of them: 32 rps for minutes instead of 20.
    changed, _ = policy.decide(looked(rising, number, 316.0), state)
    assert number == 3
    assert changed.desired == 4


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
    """Cores that the function's other Bodies may borrow there are not free."""
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


def constant_rps(bodies: int, bins: int) -> np.ndarray:
    """The throughput in each bin of a constant number of Bodies."""
    return _Answers.of(np.full(bins, bodies), ONE_AT_A_TIME, 0.5, ONE_AT_A_TIME.load_s).rps(0.0, math.inf)


@given(COUNTS, st.integers(1, 8), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_more_bodies_are_never_late_for_more(counts: list[float], bodies: int, more: int) -> None:
    points = window(counts, 0.5, 0.9)
    few, many = (constant_rps(number, len(counts)) for number in (bodies, bodies + more))
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
    all_rps = constant_rps(most, len(counts))
    assert rule.loss <= max(0.001, late_share(points, 0.9, all_rps))
    steady = cheapest(points, ONE_AT_A_TIME, SLO_S, 0.001, least=least, most=most, reacts=False)
    assert rule.bodies <= steady.bodies or rule.loss < steady.loss


@given(COUNTS, st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_the_replay_of_a_single_rule_is_the_one_by_which_it_was_chosen(counts: list[float], most: int) -> None:
    points = window(counts, 0.5, 0.9)
    rule = cheapest(points, ONE_AT_A_TIME, SLO_S, 0.001, most=most)
    assert lost_by(rule, points, ONE_AT_A_TIME, SLO_S, most=most) == rule.loss


@given(COUNTS, st.sampled_from([0.9, 2.0]), st.sampled_from([1.0, 4.0]))
@settings(max_examples=60, deadline=None)
def test_more_arrivals_never_want_fewer_bodies(counts: list[float], factor: float, hold_s: float) -> None:
    more = [count + 3 for count in counts]
    few, many = (wanted(window(arrivals, 0.5, 0.9), ONE_AT_A_TIME, [factor], [hold_s]) for arrivals in (counts, more))
    assert (few <= many).all()


@given(COUNTS, st.sampled_from([0.9, 2.0]), st.sampled_from([1.0, 4.0]))
@settings(max_examples=60, deadline=None)
def test_the_policy_reacts_as_the_replay_of_its_rule(counts: list[float], factor: float, hold_s: float) -> None:
    history = History(0.5, 300.0, counts, counts, counts, counts)
    bodies, lasts_s = reaction(history, ONE_AT_A_TIME, Rule(1, factor, hold_s))
    replayed = [wanted(window([*counts, *[0.0] * more], 0.5, 0.9), ONE_AT_A_TIME, [factor], [hold_s])[0, 0] for more in (1, 40)]
    assert bodies == replayed[0][-1]
    # Without further arrivals the second that began last may count on, but never the one that decides now.
    later = replayed[1][len(counts) :]
    assert (later[: round(lasts_s / 0.5)] == bodies).all()


@given(COUNTS, st.lists(st.integers(0, 9), min_size=1, max_size=80), st.sampled_from([0.05, 0.3, 2.0]), st.integers(1, 90))
@settings(max_examples=60, deadline=None)
def test_late_requests_are_those_of_a_queue_that_is_followed_from_request_to_request(
    counts: list[float], bodies: list[int], wait_s: float, times: int
) -> None:
    points = window([count * times for count in counts], 0.5, wait_s)
    rates = 10.0 * times * np.resize(np.asarray(bodies), len(counts))
    late, waiting, last_s = 0.0, 0.0, 0.0
    for column, bin_ in enumerate(points.bins):
        for offset_s, weight in zip(points.offsets[:, column], points.weights[:, column], strict=True):
            now_s = bin_ * 0.5 + offset_s
            edges = [last_s, *(edge * 0.5 for edge in range(int(last_s / 0.5) + 1, bin_ + 1)), now_s]
            for begin_s, end_s in pairwise(edges):
                waiting -= rates[min(int((begin_s + end_s) / 2 / 0.5), len(rates) - 1)] * (end_s - begin_s)
            waiting, last_s = max(0.0, waiting), now_s
            late += weight * (waiting + max(0.0, weight - 1) / 2 > wait_s * rates[bin_] + 1e-9)
            waiting += weight
    assert late_share(points, wait_s, rates) == pytest.approx(late / max(1.0, points.total), abs=1e-9)


@pytest.mark.parametrize("counts", [[10.0] * 100, [400.0] * 100, [0.5] * 40])
def test_points_are_all_the_requests_in_their_bins_and_in_order(counts: list[float]) -> None:
    points = window(counts, 0.5, 0.2)
    assert points.weights.sum() == pytest.approx(sum(counts), abs=1.0)
    times_s = (points.bins * 0.5 + points.offsets).T.ravel()
    assert (np.diff(times_s) >= -1e-12).all()
    assert ((points.offsets >= 0) & (points.offsets <= 0.5)).all()
