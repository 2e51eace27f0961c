"""Policies that scale by arrival rates: od, lv, k-lv, mark and target-tracking; and what is left to do beside a provider."""

from typing import Any

import pytest

from gnomon_autoscaler.policies.fixed import Provided
from gnomon_autoscaler.policies.mark import Mark
from gnomon_autoscaler.policies.rates import capacity
from gnomon_autoscaler.registry import BUILT_IN, provided, require, scaling_policy
from gnomon_autoscaler.runner import Runner
from gnomon_autoscaler.testing import Timeline
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.interfaces import Capabilities
from gnomon_core.scaling import CreateBody, DestroyBody, History, Observation, PolicyState
from gnomon_core.settings import ScaleSettings, Settings, read_settings
from tests.refusals import refused
from tests.timelines import play

# t(1) = 0.20 s, t(2) = 0.25, t(4) = 0.40: 5, 8, 9 (t(3) = 1/3) and 10 requests a second.
LATENCY_S = (0.20, 0.25, 1 / 3, 0.40)


def settings(policy: str, *, slo_s: float = 0.5, **scale: object) -> Settings:
    return Settings(autoscaler=policy, slo_s=slo_s, max_batch=4, scale=ScaleSettings(**scale))


def timeline(policy: str, **scale: object) -> Timeline:
    line = Timeline(settings(policy, **scale))
    line.latency_s = LATENCY_S
    return line


def test_capacity_counts_the_wait_for_a_full_batch() -> None:
    # At 40 rps a batch of 4 fills in 75 ms: 475 ms in all.
    best = capacity(LATENCY_S, 0.5, 40.0)
    assert (best.batch, best.rate_rps) == (4, pytest.approx(10.0))
    # At 10 rps it fills in 300 ms, 700 ms in all; 3 take 200 + 333, 2 take 100 + 250.
    best = capacity(LATENCY_S, 0.5, 10.0)
    assert (best.batch, best.rate_rps) == (2, pytest.approx(8.0))


def test_capacity_looks_at_every_batch_because_throughput_need_not_rise() -> None:
    best = capacity((0.1, 0.25, 0.2), 1.0, 1000.0)
    assert best.batch == 3


def test_capacity_without_a_timely_batch_is_that_of_single_requests() -> None:
    best = capacity(LATENCY_S, 0.1, 40.0)
    assert (best.batch, best.rate_rps, best.within_slo) == (1, pytest.approx(5.0), False)


def test_capacity_is_unknown_without_latency() -> None:
    assert capacity((), 1.0, 5.0) is None
    assert capacity((0.0, 0.0), 1.0, 5.0) is None


def test_od_follows_the_last_second_both_ways() -> None:
    line = timeline("od")
    assert play(line, 2, rps=40.0) == 4
    assert line.reason == "40.00 rps in 1 s / 10.00 rps per instance at b = 4 = 4"
    assert play(line, 2, rps=10.0) == 2  # 10 / 8
    assert play(line, 2, rps=0.0) == 1  # scale.min


def test_a_higher_rate_may_need_fewer_instances_because_larger_batches_fill_in_time() -> None:
    line = timeline("od")
    assert play(line, 4, rps=29.0) == 4  # 29 / 9 at b = 3
    assert play(line, 4, rps=30.0) == 3  # 30 / 10 at b = 4


def test_lv_changes_once_a_period_to_the_mean_of_the_last() -> None:
    line = timeline("lv")
    assert play(line, 29.5, rps=40.0) == 1
    assert play(line, 0.5) == 4
    assert play(line, 29.5, rps=80.0) == 4
    assert play(line, 0.5) == 8


def test_lv_takes_the_mean_of_the_whole_period() -> None:
    line = timeline("lv")
    line.play(15)
    assert play(line, 15, rps=80.0) == 4


def test_k_lv_asks_for_half_as_much_again() -> None:
    line = timeline("k-lv")
    assert play(line, 30, rps=40.0) == 6
    assert line.reason == "1.5 × 40.00 rps in 30 s / 10.00 rps per instance at b = 4 = 6"


def test_without_latency_the_number_comes_from_concurrency_and_says_so() -> None:
    line = Timeline(settings("k-lv"))
    assert play(line, 30, rps=40.0, concurrency=8.0) == 3  # 1.5 × 8 / 4
    assert "latency not known yet, by concurrency" in line.reason


def test_an_slo_that_no_batch_meets_is_said() -> None:
    line = Timeline(settings("od", slo_s=0.1))
    assert play(line, 2, latency_s=LATENCY_S, rps=10.0) == 2
    assert "no batch meets the SLO" in line.reason


def test_with_minimum_zero_no_load_means_no_instance_until_a_request_waits() -> None:
    line = timeline("lv", min=0)
    assert play(line, 5) == 0
    assert play(line, 0.5, rps=1.0, queued=1) == 1  # in the middle of a period


ECHO, OTHER = "echo.openfaas-fn", "other.openfaas-fn"


def slot(name: str, state: InstanceState = InstanceState.READY, *, busy: bool = False) -> Instance:
    return Instance(name, ECHO, 1, ECHO, 1, 0, state, 0.0, busy=busy, in_flight=int(busy))


def seen(places: int, *slots: Instance, queued: int = 0) -> Observation:
    nodes = (Node(ECHO, places, 0, 0.0, 0), Node(OTHER, 50, 0, 50.0, 0))
    return Observation(10.0, ECHO, Settings(), slots, nodes, queued, 0, 0.0, 0.0, History(0.1, 10.0))


def test_as_many_slots_are_opened_as_its_own_replicas_have_places() -> None:
    decision, _ = Provided().decide(seen(3, slot("a")), PolicyState())
    assert decision.actions == (CreateBody(1, ECHO), CreateBody(1, ECHO))
    assert (decision.desired, decision.reason) == (3, "the provider's replicas take 3 requests at once")


def test_idle_slots_are_closed_before_busy_ones() -> None:
    decision, _ = Provided().decide(seen(1, slot("a", busy=True), slot("b"), slot("c", InstanceState.STARTING)), PolicyState())
    assert decision.actions == (DestroyBody("c"), DestroyBody("b"))


def test_without_a_replica_one_slot_is_opened_while_a_request_waits() -> None:
    assert Provided().decide(seen(0), PolicyState())[0].actions == ()
    decision, state = Provided().decide(seen(0, queued=5), PolicyState())
    assert decision.actions == (CreateBody(1, ECHO),)
    assert Provided().decide(seen(0, slot("a", InstanceState.STARTING), queued=5), state)[0].actions == ()


@pytest.mark.parametrize("name", sorted(BUILT_IN.keys() - {"openfaas"}))
def test_a_policy_that_would_scale_is_refused_where_a_provider_does(name: str) -> None:
    with refused(400, "unsupported_policy", message=name):
        scaling_policy(name, read_settings(None, {"gnomon/autoscaler": name}), provided())


def test_a_function_that_names_no_policy_is_left_to_the_provider() -> None:
    settings = read_settings(None, None)
    assert isinstance(scaling_policy(settings.autoscaler, settings, provided()), Provided)


def test_openfaas_leaves_scaling_to_openfaas() -> None:
    policy = scaling_policy("openfaas", Settings(), provided())
    assert isinstance(policy, Provided)
    require(policy, Capabilities(place=False, size=False, victim=False, resize=False, pair=False))


# One instance sustains 10 requests a second with any batch.
TEN_RPS_S = (0.1, 0.2, 0.3, 0.4)


def mark(*, rps: float, start_s: float = 0.0, alpha: float = 0.8, low: int = 1) -> tuple[Timeline, Runner]:
    runner = Runner("echo.openfaas-fn", origin_s=0.0)
    settings = Settings(autoscaler="mark", slo_s=1.0, max_batch=4, alpha=alpha, scale=ScaleSettings(min=low, max=50))
    line = Timeline(settings, start_s=start_s, runner=runner)
    line.latency_s, line.rps = TEN_RPS_S, rps
    return line, runner


def test_instances_are_those_for_the_mean_of_two_minutes_with_headroom() -> None:
    line, _ = mark(rps=40.0)
    assert play(line, 120) == 5  # 40 / (0.8 × 10)
    said = "1.25 × 40.00 rps in 120 s / 10.00 rps per instance at b = 1 = 5"
    assert any(decision.reason.startswith(said) for _, decision in line.decisions)


def test_alpha_is_how_full_instances_may_be() -> None:
    line, _ = mark(rps=40.0, alpha=1.0)
    assert play(line, 120) == 4


def test_inherited_instances_stay_for_two_minutes() -> None:
    line, _ = mark(rps=10.0, low=6)
    assert play(line, 30) == 6
    line.runner = Runner("echo.openfaas-fn", origin_s=0.0)
    assert play(line, 60, settings=Settings(autoscaler="mark", slo_s=1.0, max_batch=4, scale=ScaleSettings(min=1, max=50))) == 6
    assert "6 until there are 120 s" in line.reason or "6 planned" in line.reason
    assert play(line, 120) == 2  # 10 / (0.8 × 10)


def test_the_number_changes_once_a_minute() -> None:
    line, _ = mark(rps=40.0)
    line.play(125)  # it has been deciding since second 5, the first with a latency
    assert play(line, 59, rps=120.0) == 5
    assert play(line, 1) == 10  # half of two minutes had 40 a second, half 120
    assert play(line, 60) == 15


def test_ready_instances_carry_their_share_and_the_rest_overflows() -> None:
    line, runner = mark(rps=40.0, start_s=30.0)
    line.play(180)
    assert runner.overflow == 0.0
    play(line, 5, rps=200.0)
    # Five instances carry 50 of 200.
    assert runner.overflow == pytest.approx(0.75)
    assert line.reason.endswith("; 200.00 rps in 5 s and 0 waiting are more than 5 ready carry: 75% overflow to functions")
    play(line, 10, rps=40.0)
    assert runner.overflow == 0.0


def test_queue_must_leave_within_the_objective() -> None:
    line, runner = mark(rps=40.0)
    line.play(180)
    play(line, 5, queued=55)
    # Each of five takes one at once; 50 in a second and 40 that come, of which 50 are carried.
    assert runner.overflow == pytest.approx(1 - 50 / 90)


def test_before_an_instance_is_ready_all_overflows() -> None:
    line, runner = mark(rps=10.0, start_s=60.0)
    line.play(10)
    assert runner.overflow == 1.0


def test_without_a_latency_nothing_is_known_to_overflow() -> None:
    line, runner = mark(rps=1000.0)
    play(line, 10, latency_s=())
    assert runner.overflow == 0.0
    assert line.live == 1
    assert "latency not known yet" in line.reason
    assert play(line, 5, latency_s=TEN_RPS_S) == 50  # scale.max, as soon as it is known


def test_another_policy_lets_nothing_overflow() -> None:
    line, runner = mark(rps=10.0, start_s=60.0)
    line.play(10)
    play(line, 1, settings=Settings(autoscaler="fixed"))
    assert runner.overflow == 0.0


def test_mark_needs_no_platform_capability() -> None:
    assert Mark().needs == frozenset()


MINUTE_S = 60.0


def target_tracking(
    *, rps: float, target_rps: float | None = 10.0, start_s: float = 0.0, low: int = 1, **settings: Any
) -> Timeline:
    scale = ScaleSettings(min=low, max=50)
    line = Timeline(Settings(autoscaler="target-tracking", target_rps=target_rps, scale=scale, **settings), start_s=start_s)
    line.rps = rps
    return line


def minutes(line: Timeline, count: float) -> int:
    line.play(count * MINUTE_S)
    return line.live


def test_three_figures_above_the_target_make_it_grow_to_what_the_load_needs() -> None:
    line = target_tracking(rps=15.0, low=2)
    assert minutes(line, 3) == 2
    line.rps = 30.0  # 2 instances get 900 a minute each, the target is 600
    assert minutes(line, 2) == 2
    assert line.reason == "900 a minute to each of 2, target 600, above it 2 of 3 times: 2"
    assert minutes(line, 1) == 3
    assert line.reason == "900 a minute to each of 2, target 600, above it 3 times: 3"


def test_a_figure_at_the_target_starts_the_count_again() -> None:
    line = target_tracking(rps=20.0)
    minutes(line, 2)
    line.rps = 10.0
    minutes(line, 1)
    line.rps = 20.0
    assert minutes(line, 2) == 1
    assert minutes(line, 1) == 2


def test_target_tracking_shrinks_after_15_min_once_per_cooldown() -> None:
    line = target_tracking(rps=40.0)
    assert minutes(line, 3) == 4
    line.rps = 20.0
    assert minutes(line, 14) == 4
    assert "below 90% of it 14 of 15 times" in line.reason
    assert minutes(line, 1) == 2
    line.rps = 10.0
    assert minutes(line, 4) == 2
    assert "1 after 60 s of scale-in cooldown" in line.reason
    assert minutes(line, 1) == 1


def test_between_nine_tenths_and_the_target_nothing_happens() -> None:
    line = target_tracking(rps=40.0)
    minutes(line, 3)
    line.rps = 36.5
    assert minutes(line, 60) == 4


def test_starting_instances_count_towards_the_target() -> None:
    line = target_tracking(rps=40.0, start_s=240.0)
    assert minutes(line, 3) == 4
    assert minutes(line, 3) == 4
    assert "and as many are coming: 4" in line.reason


def test_within_the_scale_out_cooldown_only_a_larger_step_counts() -> None:
    line = target_tracking(rps=40.0)
    assert minutes(line, 3) == 4  # a step of 3
    line.rps = 60.0
    assert minutes(line, 3) == 4  # a step of 2
    assert "6 after 120 s of scale-out cooldown: 4" in line.reason
    line.rps = 90.0
    assert minutes(line, 1) == 9  # a step of 5


def test_the_cooldown_ends() -> None:
    line = target_tracking(rps=40.0)
    minutes(line, 3)
    line.rps = 60.0
    assert minutes(line, 4) == 4
    assert minutes(line, 1) == 6


def test_cooldowns_are_settings() -> None:
    settings = read_settings({}, {"gnomon/scale-out-cooldown": "2m", "gnomon/scale-in-cooldown": "30m"})
    assert (settings.scale_out_cooldown_s, settings.scale_in_cooldown_s) == (120.0, 1800.0)
    assert (Settings().scale_out_cooldown_s, Settings().scale_in_cooldown_s) == (300.0, 300.0)
    line = target_tracking(rps=40.0, scale_in_cooldown_s=1800.0)
    minutes(line, 3)
    line.rps = 30.0
    assert minutes(line, 15) == 3
    line.rps = 10.0
    assert minutes(line, 29) == 3
    assert "after 60 s of scale-in cooldown" in line.reason
    assert minutes(line, 1) == 1


def test_growing_ends_the_scale_in_cooldown() -> None:
    line = target_tracking(rps=40.0, scale_in_cooldown_s=36_000.0)
    minutes(line, 3)
    line.rps = 20.0
    assert minutes(line, 15) == 2
    line.rps = 40.0
    assert minutes(line, 3) == 4
    line.rps = 20.0
    assert minutes(line, 15) == 2


def test_without_a_target_it_is_half_of_what_an_instance_sustains() -> None:
    line = target_tracking(rps=10.0, target_rps=None, slo_s=1.0)
    assert minutes(line, 3) == 1
    assert "latency is not known yet" in line.reason
    line.latency_s = (0.1,)  # 10 a second, so that 5 are the target
    assert minutes(line, 3) == 2
    assert line.reason == "600 a minute to each of 1, target 300, above it 3 times: 2"


def test_target_tracking_continues_from_a_manual_scale() -> None:
    line = target_tracking(rps=40.0)
    minutes(line, 3)
    assert play(line, 1, requested=6) == 6
    line.rps = 80.0
    assert minutes(line, 3) == 8


def test_a_change_of_settings_within_a_minute_takes_no_second_figure() -> None:
    line = target_tracking(rps=20.0)
    minutes(line, 2)
    for _ in range(5):
        play(
            line,
            5,
            settings=Settings(autoscaler="target-tracking", target_rps=10.0, scale=ScaleSettings(max=50 + int(line.now_s))),
        )
    assert line.live == 1
    assert "within the minute" in line.reason
